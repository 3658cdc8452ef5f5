"""`report`: from the folder of a comparison to a page, its pictures and its tables.

```
DIR/plan.json, runs.jsonl          the comparison
DIR/NAME.json, notes.md            optional: results of benches (others are copied here); what a person has to say
DIR/trace-NAME.png, trace-NAME.txt optional: pictures of traces, and their captions
        |
DIR/index.html                     one file, without network
DIR/pictures/*.png, *.svg          each picture
DIR/tables/*.csv, *.md             each table
```
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
from markupsafe import Markup

from experiments.compare.metrics import COUNTS, TIMES
from experiments.compare.records import PLAN, RUNS, Arm, Plan, Run, read_plan, read_runs
from report import bench_files, findings, notes
from report.cautions import cautions
from report.comparison import (
    REFERENCE,
    Ratio,
    era_pairs,
    heading,
    number,
    ratios,
    stage_pairs,
    tokens_verdict,
    values,
)
from report.glossary import COUNTED, STAGES, TERMS
from report.pictures import cpu, forest, latency, process_tree, scaling, turn_parts, turn_strip
from report.pictures.style import Picture
from report.process_table import process_table
from report.surprises import surprises
from report.table_files import TableFile, parts_table, ratio_table, value_table
from report.words import interval_words, micro, who

PAGE = "index.html"


@dataclass(frozen=True)
class Trace:
    """A picture of a trace in its viewer, given as it is."""

    file: str
    caption: str
    data: str  # base64


def write_report(folder: Path, also: list[Path]) -> list[Path]:
    """Writes the page and its files; returns the page's path, then the others'. ValueError of one line for a folder
    that holds no comparison, or holds no run yet, and for a file that is not of a bench."""
    matplotlib.use("agg")
    plan, runs = read_plan(folder), read_runs(folder)
    if not runs:
        raise ValueError(f"{folder / RUNS}: no run has ended yet, so there is nothing to report")
    runs = [run for run in runs if run.arm in plan.arms]
    if not runs:
        raise ValueError(f"{folder / RUNS}: none of its runs is of an arm that {PLAN} names")
    benches = bench_files.find_benches(folder, also)
    null = next((bench.result for bench in benches if bench.name == "null"), None)
    text = notes.render(folder)
    for bench in benches:
        bench_files.fill(bench, folder)
    pictures = draw_all(folder, plan, runs)
    over_reference = ratios(plan, runs, stage_pairs(plan), TIMES)
    over_level = ratios(plan, runs, era_pairs(plan), TIMES)
    forests = draw_forests(folder, plan, over_reference, over_level, len(runs))
    tables = make_tables(plan, runs, over_reference, over_level)
    for table in tables.values():
        table.write(folder)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("report", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    page = environment.get_template("page.html.j2").render(
        plan=plan,
        runs=runs,
        facts=facts(plan, runs),
        cautions=cautions(plan, runs, over_reference + over_level, null),
        in_short=findings.in_short(plan, runs, over_reference, over_level, null),
        multiplicity=findings.multiplicity(over_reference + over_level),
        count_sentences=findings.count_sentences(plan, runs),
        stage_sentences=findings.ratio_sentences(plan, over_reference),
        era_sentences=findings.ratio_sentences(plan, over_level),
        opposite=findings.turn_against_token(plan, over_reference + over_level),
        surprises=surprises(plan, runs, over_reference, over_level),
        notes=Markup(text),  # noqa: S704, rendered without HTML of its own
        tables=tables,
        pictures=pictures,
        forests=forests,
        benches=benches,
        traces=find_traces(folder),
        terms=TERMS,
        counted=COUNTED,
        stages={name: STAGES[name] for name in dict.fromkeys(arm.stage for arm in plan.arms) if name in STAGES},
        reference=REFERENCE,
        repeats=repeats_text(plan, runs),
        loads=loads_text(runs),
        machine=machine(plan),
        interval=interval_words([sum(run.arm == arm for run in runs) for arm in dict.fromkeys(r.arm for r in runs)]),
        device=device_text(plan.environment),
        micro=micro,
        plan_file=PLAN,
        runs_file=RUNS,
        svg=lambda picture: Markup(picture.svg),  # noqa: S704, matplotlib escapes what it writes
    )
    path = folder / PAGE
    path.write_text(page, encoding="utf-8")
    made = [*(picture for group in pictures.values() for picture in group), *forests, *tables.values()]
    made += [one for bench in benches for one in (*bench.pictures, *bench.tables)]
    return [path, *(folder / file for one in made for file in one.files)]


def find_traces(folder: Path) -> list[Trace]:
    traces = []
    for path in sorted(folder.glob("trace-*.png")):
        beside = path.with_suffix(".txt")
        caption = beside.read_text(encoding="utf-8").strip() if beside.exists() else path.stem.replace("-", " ")
        traces.append(Trace(path.name, caption, base64.b64encode(path.read_bytes()).decode()))
    return traces


# ---------------------------------------------------------------------- pictures and tables


def draw_all(folder: Path, plan: Plan, runs: list[Run]) -> dict[str, list[Picture]]:
    """By section, the one to be shown first in front. What the runs do not hold is not drawn."""
    shapes = main_first(plan)
    kinds = list(dict.fromkeys(arm.constants for arm in plan.arms))
    bare = {arm: who(plan, arm) for arm in plan.arms}
    full = {arm: heading(plan, arm).replace("\n", " ") for arm in plan.arms}

    def where(shape: str, kind: str) -> tuple[list[Arm], str]:
        arms = [arm for arm in plan.arms if arm.shape == shape and arm.constants == kind]
        return arms, shape if len(kinds) == 1 else f"{shape}, {kind} constants"

    found: dict[str, list[Picture | None]] = {"processes": [], "strips": [], "parts": [], "latency": []}
    for shape in shapes:
        arms, name = where(shape, kinds[0])
        found["processes"].append(process_tree.draw(folder, runs, arms, bare, name))
        for kind in kinds:
            arms, name = where(shape, kind)
            found["strips"].append(turn_strip.draw(folder, runs, arms, bare, name))
        arms = [arm for arm in plan.arms if arm.shape == shape]
        found["parts"].append(turn_parts.draw(folder, runs, arms, bare, shape))
    for kind in kinds:
        arms = [arm for arm in plan.arms if arm.constants == kind]
        found["latency"].append(latency.draw(folder, runs, arms, bare, kind))
    metrics = [findings.metric_named(name) for name in scaling.METRICS]
    found["scaling"] = [scaling.draw(folder, values(plan, runs, metrics), full, "tables/times.csv", len(runs))]
    found["cpu"] = [cpu.draw(folder, runs, plan.arms, full)]
    return {section: [picture for picture in drawn if picture] for section, drawn in found.items()}


def main_first(plan: Plan) -> list[str]:
    """The shapes, the one with most ranks in a single replica in front: there the stages differ in one thing only."""
    first = max(plan.arms, key=lambda arm: (-arm.dp_size, arm.tp_size)).shape
    return [first, *(shape for shape in dict.fromkeys(arm.shape for arm in plan.arms) if shape != first)]


def draw_forests(
    folder: Path, plan: Plan, over_reference: list[Ratio], over_level: list[Ratio], runs: int
) -> list[Picture]:
    def row_of(one: Ratio) -> str:
        return f"{one.above.shape}  {who(plan, one.above)}"

    found = []
    kinds = dict.fromkeys(arm.constants for arm in plan.arms)
    for kind in sorted(kinds, key=lambda kind: kind != "level"):  # the page shows one in front
        of_kind = [one for one in over_reference if one.above.constants == kind]
        title = f"Stages over {REFERENCE}, {kind} constants"
        found.append(forest.draw(folder, f"ratios-{kind}", title, of_kind, row_of, "tables/ratios-stages.csv", runs))
    title = "Era over level constants"
    found.append(forest.draw(folder, "ratios-era-over-level", title, over_level, row_of, "tables/ratios-era.csv", runs))
    return [picture for picture in found if picture]


def make_tables(
    plan: Plan, runs: list[Run], over_reference: list[Ratio], over_level: list[Ratio]
) -> dict[str, TableFile]:
    count = len(runs)
    shapes = list(dict.fromkeys(arm.shape for arm in plan.arms))
    kinds = list(dict.fromkeys(arm.constants for arm in plan.arms))
    bars = {}
    for shape in shapes:
        for kind in kinds:
            arms = [arm for arm in plan.arms if arm.shape == shape and arm.constants == kind]
            of_place = turn_parts.bars_of(
                runs, [arm for arm in arms if any(run.arm == arm and run.turns for run in runs)],
                {arm: who(plan, arm) for arm in arms},
            )  # fmt: skip
            if of_place:
                bars[shape if len(kinds) == 1 else f"{shape}, {kind}"] = of_place
    tables = {
        "counts": value_table("counts", "Counts", plan, values(plan, runs, COUNTS), COUNTS, False, count),
        "times": value_table("times", "Times", plan, values(plan, runs, TIMES), TIMES, True, count),
        "parts": parts_table("turn-parts", "Where a turn goes, wall µs, means", bars, count),
        "processes": process_table(plan, runs),
    }
    if over_reference:
        tables["stages"] = ratio_table("ratios-stages", f"Stages over {REFERENCE}", plan, over_reference, count)
    if over_level:
        tables["era"] = ratio_table("ratios-era", "era over level", plan, over_level, count)
    return tables


# ---------------------------------------------------------------------- what stands at its head


def facts(plan: Plan, runs: list[Run]) -> list[tuple[str, str]]:
    env, work = plan.environment, plan.workload
    settings = ", ".join(f"{name} {value}" for name, value in plan.settings.items() if value is not None)
    sent = "all at once" if work.request_rate is None else f"{work.request_rate:g} a second, Poisson"
    return [
        ("arms", f"{len(plan.arms)}: {', '.join(dict.fromkeys(arm.stage for arm in plan.arms))}; constants "
                 f"{', '.join(dict.fromkeys(arm.constants for arm in plan.arms))}; "
                 f"{', '.join(dict.fromkeys(arm.shape for arm in plan.arms))}"),
        ("workload", f"{work.rounds} x {work.num_prompts} requests of {work.input_len} random token ids, "
                     f"{work.output_len} tokens out of each, greedy, {sent}, on an empty cache"),
        ("engine", settings),
        ("device", device_text(env)),
        ("scheduling", ", ".join(dict.fromkeys(arm.scheduling for arm in plan.arms)) + " (who plans a turn's batch)"),
        ("machine", machine(plan)),
        ("versions", ", ".join(
            f"{name} {version}" for name, version in {"Python": env.get("python"), **env.get("versions", {})}.items())),
        ("commit", str(env.get("git_commit") or "not from a checkout")),
        ("command", str(env.get("command", "?"))),
        ("measured", f"{min(run.began for run in runs)} to {max(run.began for run in runs)}"),
        ("output tokens", tokens_verdict(runs)),
    ]  # fmt: skip


def machine(plan: Plan) -> str:
    env = plan.environment
    cores = f"{env.get('cpu_count', '?')} cores"
    affinity = env.get("affinity") or []
    if len(affinity) not in (0, env.get("cpu_count")):
        cores += f", of which {len(affinity)} may be used"
    return f"{env.get('cpu_model', 'unknown CPU')}, {cores}; threads per rank {env.get('threads_per_rank', '?')}"


def device_text(environment: dict[str, Any]) -> str:
    profile = environment.get("sim_profile")
    if not profile:
        return str(environment.get("device", "?"))
    model = profile.get("model", {}).get("name", "?")
    return (
        f"{environment.get('device')}: no model runs; a forward takes as long as profile {profile.get('name')} "
        f"predicts ({model} on {profile.get('device')}), during which its ranks sleep; what simulating takes of the "
        "cores, and how much longer than predicted a forward lasted, stands among the times"
    )


def repeats_text(plan: Plan, runs: list[Run]) -> str:
    counts = sorted({sum(run.arm == arm for run in runs) for arm in plan.arms})
    text = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{text} run" if counts == [1] else f"{text} runs"


def loads_text(runs: list[Run]) -> str:
    loads = [run.load_average[0] for run in runs]
    return f"{number(min(loads))} to {number(max(loads))}"
