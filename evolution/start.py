"""Starting all processes, and waiting for them as long as something is done."""

from __future__ import annotations

import time

from common.args import EngineArgs
from common.channels import Endpoints
from common.processes import Board, Failure, ReadyReport, Supervisor
from common.processes.board import Line
from common.processes.stacks import is_stopped, read_stacks
from evolution.stages import era_hears, find_stage

LOOKS = 20  # per timeout
LONGEST_BREAK = 1.0  # s between two looks


class StartFailed(RuntimeError):
    """Nothing was started; or nothing goes on: then the message names the process that makes no progress, and shows
    where it and the others stand."""


def start_processes(
    args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor, times: dict[str, float]
) -> list[ReadyReport]:
    """Blocks until all are ready, and raises what `wait_for_start` does."""
    launch, _ = find_stage(args.stage)
    kwargs = {"args": args, "endpoints": endpoints}
    supervisor.start("evo-detokenizer", "common.detokenizer_process:run_detokenizer_process", kwargs)
    launch(args, endpoints, supervisor)
    times["launched"] = time.monotonic()
    processes = wait_for_start(supervisor, supervisor.board, args.startup_timeout)
    if len(processes) == 1:
        raise StartFailed(f"stage {args.stage!r} started no process")
    if args.supervision == "era":
        supervisor.hear_only(era_hears(args))
    return processes


def wait_for_start(supervisor: Supervisor, board: Board, timeout: float) -> list[ReadyReport]:
    """Blocks until every process is ready. ProcessFailed when one ends first; StartFailed when for `timeout` s (0: for
    ever) no process has loaded its modules, a layer of the model, or become ready. As in the watchdog, time in which
    this process did not run does not count."""
    if not timeout:
        return supervisor.wait_ready()
    pause = min(LONGEST_BREAK, timeout / LOOKS)
    done, idle = -1, 0.0
    while True:
        try:
            return supervisor.wait_ready(pause)
        except TimeoutError:
            lines = board.lines()
        now = len(lines) + sum(line.steps for line in lines)
        idle = 0.0 if now != done else idle + pause
        done = now
        if idle >= timeout:
            raise StartFailed(describe(lines, idle))


def describe(lines: list[Line], seconds: float) -> str:
    line = whom_to_name([line for line in lines if not line.ready])
    state = "it is stopped (by SIGSTOP or a debugger)" if is_stopped(line.pid) else "it makes no progress"
    cause = f"hangs while starting: {state}, and no process has done anything for {seconds:.1f} s"
    stacks = read_stacks([line for line in lines if not line.ready])
    return f"{Failure(line.name, line.pid, cause, 0, time.monotonic())}\n{stacks}".rstrip()


def whom_to_name(waiting: list[Line]) -> Line:
    """Of those that are not ready: one that is stopped, else the one that has done least and waits for no child."""
    for line in waiting:
        if is_stopped(line.pid):
            return line
    parents = {line.parent for line in waiting}
    return min((line for line in waiting if line.pid not in parents), key=lambda line: line.steps)
