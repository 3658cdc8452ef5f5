"""`compare`: run every arm in turn, repeat by repeat, into a folder; then the table of what differs.

```
for repeat in 0 .. repeats-1:
    for arm in arms, in an order of this repeat's own:
        start an engine, warm it up, send the workload, stop it     one engine alive at a time
        append what there was to measure to DIR/runs.jsonl
```
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.args import EngineArgs
from evolution.bench_command import check_folder
from evolution.compare_args import DEFAULT_REPEATS, DEFAULT_WORKLOAD, SETTINGS, add_compare_args
from evolution.engine import EngineError
from evolution.environment import code, environment
from evolution.stages import STAGES
from experiments.compare.measure import arm_args, make_rounds, measure
from experiments.compare.records import (
    RUNS,
    Arm,
    Plan,
    Run,
    Workload,
    append_run,
    drop_torn_line,
    locked,
    read_plan,
    read_runs,
    write_plan,
)
from report.comparison import print_comparison

# What an engine's life took on two cores of 2024, for the first estimate: to start and stop, then per process.
START_S, PROCESS_S = 1.5, 0.7
ROUND_S = {"sim": 0.4, "cpu": 12.0, "cuda": 2.0}
MOST = 100_000  # of anything that is counted
LEAST_RATE = 0.001  # requests/s
# What must not have changed when a comparison goes on.
SAME_ENVIRONMENT = ("git_commit", "git_changes", "git_diff", "cpu_model", "cpu_count", "affinity", "python", "versions")


def compare_command(options: argparse.Namespace) -> int:
    if not options.out:
        raise ValueError("--out: give the name of a folder")
    folder = Path(options.out)
    if options.resume:
        with locked(folder):
            return go_on(folder, resumed_plan(folder, options))
    plan = make_plan(options)
    check_folder(folder)
    with locked(folder):
        check_empty(folder)
        write_plan(folder, plan)
        return go_on(folder, plan)


def go_on(folder: Path, plan: Plan) -> int:
    """Run what is left of the plan, and print what there is. 1: an engine failed, or outputs differ."""
    console = Console()
    todo = remaining(plan, read_runs(folder))
    if todo:
        console.print(expectation(plan, todo), soft_wrap=True)
    how = f"`python -m evolution compare --out {folder} --resume` goes on"
    try:
        run_all(folder, plan, todo, console)
    except EngineError as error:
        print(f"python -m evolution compare: {error}; what was measured is kept, {how}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, SystemExit):
        print(f"python -m evolution compare: {len(read_runs(folder))} runs are kept, {how}", file=sys.stderr)
        raise
    runs = read_runs(folder)
    print_comparison(console, plan, runs)
    console.print(
        f"{len(runs)} runs: {folder / RUNS}; `python -m evolution report {folder}` draws them", soft_wrap=True
    )
    return 0 if len({run.tokens for run in runs}) == 1 else 1


def make_plan(options: argparse.Namespace) -> Plan:
    """Every arm checked. ValueError of one line for what cannot work."""
    settings = {name: getattr(options, name) for name in SETTINGS}
    if options.device not in DEFAULT_WORKLOAD:
        raise ValueError(f"--device {options.device!r}: choose from {', '.join(DEFAULT_WORKLOAD)}")
    given = (options.num_prompts, options.input_len, options.output_len, options.rounds)
    defaults = DEFAULT_WORKLOAD[options.device]
    workload = Workload(
        *(default if value is None else value for value, default in zip(given, defaults, strict=True)),
        request_rate=options.request_rate,
    )
    for name in ("num_prompts", "input_len", "output_len", "rounds"):
        value = at_least_one(name.replace("_", "-"), getattr(workload, name))
        if value > MOST:
            raise ValueError(f"--{name.replace('_', '-')} must be at most {MOST}, not {value}")
    if workload.request_rate is not None and not LEAST_RATE <= workload.request_rate < float("inf"):
        raise ValueError(
            f"--request-rate must be a finite number of at least {LEAST_RATE}, not {workload.request_rate}"
        )
    repeats = at_least_one("repeats", DEFAULT_REPEATS if options.repeats is None else options.repeats)
    if repeats > MOST:
        raise ValueError(f"--repeats must be at most {MOST}, not {repeats}")
    combinations = itertools.product(
        _numbers("tp-size", options.tp_size),
        _numbers("dp-size", options.dp_size),
        _words("constants", options.constants, ("level", "era")),
        _words("scheduling", options.scheduling, ("rank0", "replicated")),
        _words("stages", options.stages, tuple(STAGES)),
    )
    arms = []
    for tp_size, dp_size, constants, scheduling, stage in combinations:
        arm = Arm(stage, constants, scheduling, tp_size, dp_size)
        args, config = arm_args(arm, settings)
        make_rounds(workload, args, config)
        arms.append(msgspec.structs.replace(arm, scheduling=args.scheduling))
    return Plan(list(dict.fromkeys(arms)), repeats, workload, settings, environment(args))


def check_empty(folder: Path) -> None:
    if read_runs(folder):
        raise ValueError(f"--out {folder} holds runs already: --resume goes on with them, or choose another folder")


def resumed_plan(folder: Path, options: argparse.Namespace) -> Plan:
    """The plan in the folder, with other repeats where they are given. ValueError for other options, or where this is
    not the machine and the code that it was begun with."""
    defaults = argparse.ArgumentParser()
    add_compare_args(defaults)
    for name, default in vars(defaults.parse_args(["--out", ""])).items():
        if name not in ("out", "resume", "repeats") and getattr(options, name) != default:
            raise ValueError(
                f"--{name.replace('_', '-')} does not go with --resume: the plan in {folder} says what runs"
            )
    plan = read_plan(folder)
    check_same(folder, plan.environment, environment(EngineArgs()))
    if options.repeats is not None:
        plan.repeats = at_least_one("repeats", options.repeats)
    drop_torn_line(folder)
    write_plan(folder, plan)
    return plan


def check_code(plan: Plan) -> None:
    """EngineError when what the next engine would import is not what the plan was made with."""
    for what, now in code().items():
        if plan.environment.get(what) != now:
            raise EngineError(f"the code has changed since this was begun ({what})")


def check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for what in SAME_ENVIRONMENT:
        if before.get(what) != now.get(what):
            raise ValueError(f"--resume: {folder} was begun with another {what}: runs of both cannot be compared")


def at_least_one(option: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"--{option} must be at least 1, not {value}")
    return value


def remaining(plan: Plan, runs: list[Run]) -> list[tuple[int, Arm]]:
    """(repeat, arm) in the order in which they run. Arms of one TP and DP stay together, since they are compared; their
    order and that of the shapes is shuffled anew in each repeat, so that no arm always follows the same other."""
    done = {(run.repeat, run.arm) for run in runs}
    order = []
    for repeat in range(plan.repeats):
        shuffled = random.Random(repeat)
        shapes = list(dict.fromkeys(arm.shape for arm in plan.arms))
        shuffled.shuffle(shapes)
        for shape in shapes:
            arms = [arm for arm in plan.arms if arm.shape == shape]
            shuffled.shuffle(arms)
            order += [(repeat, arm) for arm in arms]
    return [item for item in order if item not in done]


def expectation(plan: Plan, todo: list[tuple[int, Arm]]) -> str:
    seconds = sum(_seconds(plan, arm) for _, arm in todo)
    return (
        f"{len(todo)} runs of {len(plan.arms)} arms, one engine at a time: about {max(1, round(seconds / 60))} minutes"
    )


def _seconds(plan: Plan, arm: Arm) -> float:
    """A first guess, before anything was measured."""
    processes = 3 + arm.tp_size * arm.dp_size
    return START_S + PROCESS_S * processes + plan.workload.rounds * ROUND_S[plan.settings["device"]]


def run_all(folder: Path, plan: Plan, todo: list[tuple[int, Arm]], console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[left]}"))  # fmt: skip
    guesses = {arm: _seconds(plan, arm) for arm in plan.arms}
    # Drawn between two runs only: a thread that draws would be among what a run measures.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=len(todo), left="")
        for order, (repeat, arm) in enumerate(todo, len(plan.arms) * plan.repeats - len(todo)):
            left = sum(guesses[later] for _, later in todo[progress.tasks[task].completed :])
            progress.update(task, description=arm.name, left=f"{round(left / 60)} min left", refresh=True)
            check_code(plan)
            began = time.monotonic()
            append_run(folder, measure(arm, plan.settings, plan.workload, repeat, order))
            guesses[arm] = time.monotonic() - began
            progress.advance(task)


def _words(option: str, text: str, choices: tuple[str, ...]) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in choices:
            raise ValueError(f"--{option} {word!r}: choose from {', '.join(choices)}, separated by commas")
    return list(dict.fromkeys(words))


def _numbers(option: str, text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        raise ValueError(f"--{option} {text!r}: give whole numbers separated by commas, like 1,2") from None
