"""What the reader of a comparison must know before its figures."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

from experiments.compare.records import Arm, Plan, Run
from experiments.intervals import ENOUGH
from report.comparison import REFERENCE, Ratio, number
from report.words import coverage_words, listed, of_many

BUSY_FROM = 0.5  # of the cores, as load average before a run
PAUSE_FROM = 60  # s between the end of a run and the begin of the next; starting and stopping an engine take 5 to 10


def cautions(plan: Plan, runs: list[Run], ratios: list[Ratio], null: dict[str, Any] | None) -> list[str]:
    """`null`: the result of `bench null`, if there is one."""
    done = {arm: sum(run.arm == arm for run in runs) for arm in plan.arms}
    return [
        *_missing(plan, runs, done),
        *_interrupted(runs),
        *_few([count for count in done.values() if count]),
        *_stages(plan, ratios),
        *_cores(plan, runs),
        *_null(plan, null),
    ]


def _missing(plan: Plan, runs: list[Run], done: dict[Arm, int]) -> list[str]:
    lines = []
    if len(runs) < len(plan.arms) * plan.repeats:
        lines.append(f"This comparison is not whole: {len(runs)} of {len(plan.arms) * plan.repeats} runs are there.")
    if missing := [arm.name for arm, count in done.items() if count == 0]:
        lines.append(f"Without any run: {listed(missing)}.")
    return lines


def _interrupted(runs: list[Run]) -> list[str]:
    times = sorted((datetime.fromisoformat(run.began).timestamp(), run.startup_s + run.duration_s) for run in runs)
    pauses = [later - begin - took for (begin, took), (later, _) in pairwise(times)]
    long = [pause for pause in pauses if pause > PAUSE_FROM]
    if not long:
        return []
    return [
        f"The measuring was interrupted {of_many(len(long), 'time')}, for up to {number(max(long) / 60)} minutes: runs "
        "of one repeat that lie on both sides of a pause met the machine at different times."
    ]


def _few(counts: list[int]) -> list[str]:
    fewest = min(counts)
    if fewest == 1:
        return ["Some arms ran once: nothing is said of a difference there, and their values have no interval."]
    if fewest < ENOUGH:
        return [
            f"With {of_many(fewest, 'run')} of an arm an interval is the range from the least to the largest pair, "
            f"which holds the true median in {coverage_words([fewest])} of the cases, not in 95%: {ENOUGH} runs are "
            "the fewest that can."
        ]
    return []


def _stages(plan: Plan, ratios: list[Ratio]) -> list[str]:
    lines = []
    if len({arm.stage for arm in plan.arms}) > 1 and not any(arm.stage == REFERENCE for arm in plan.arms):
        lines.append(f"There is no arm of {REFERENCE}, so there are no ratios between stages.")
    mixed = dict.fromkeys((one.above, one.below) for one in ratios if one.above.scheduling != one.below.scheduling)
    if mixed:
        shown = [f"{above.name} over {below.name}" for above, below in list(mixed)[:2]]
        more = f", and {len(mixed) - 2} more" if len(mixed) > 2 else ""
        lines.append(
            "Arms with different scheduling (who plans a turn) are set in a ratio: it holds what the scheduling does, "
            f"too. {'; '.join(shown)}{more}."
        )
    return lines


def _cores(plan: Plan, runs: list[Run]) -> list[str]:
    lines = []
    cores = len(plan.environment.get("affinity") or []) or plan.environment.get("cpu_count") or 1
    ranks = max(arm.tp_size * arm.dp_size for arm in plan.arms)
    if ranks + 2 > cores:
        lines.append(
            f"Up to {of_many(ranks, 'rank')}, main and a detokenizer share {of_many(cores, 'core')}: where processes "
            "outnumber cores, times say more about the cores than about the stage."
        )
    busy = [run.load_average[0] for run in runs if run.load_average[0] > BUSY_FROM * cores]
    if busy:
        lines.append(
            f"Before {len(busy)} of {of_many(len(runs), 'run')} the load average was above half the cores (up to "
            f"{number(max(busy))} on {cores}). It holds the engine that was measured just before, and whatever else "
            "ran: then times are of a machine that was shared."
        )
    return lines


def _null(plan: Plan, null: dict[str, Any] | None) -> list[str]:
    if null is None:
        return [
            "No A/A test (null.json) lies beside these results: how often two arms that are alike would seem to differ "
            "was not measured here."
        ]
    lines = []
    if not null_is_of(plan, null):
        cpu = (null.get("environment") or {}).get("cpu_model")
        lines.append(
            f"The A/A test (null.json) is not of this device and CPU, but of {null.get('device')} on {cpu}: how often "
            "two arms that are alike would seem to differ was not measured here."
        )
    if null["verdict"] != "holds":
        lines.append(f"The A/A test did not come out as it should ({null['verdict']}): {null_figures(null)}.")
    return lines


def null_is_of(plan: Plan, null: dict[str, Any]) -> bool:
    """Whether it was measured on the plan's device and CPU."""
    own = (plan.environment.get("device"), plan.environment.get("cpu_model"))
    return own == (null.get("device"), (null.get("environment") or {}).get("cpu_model"))


def null_figures(null: dict[str, Any]) -> str:
    """How often arms that are alike seemed to differ, and how wide the intervals were."""
    share, width, most = (null[name] for name in ("share_that_holds_1", "median_half_width", "most_half_width"))
    return (
        f"of {of_many(len(null_judged(null)), 'interval')} between arms that are alike (every stage with "
        f"{null_constants(null)} constants at {listed(null['shapes'])}, {of_many(null['repeats'], 'repeat')} of "
        f"{of_many(null['rounds'], 'round')}) {share:.0%} hold 1 (85 to 99% is right); their median half-width is "
        f"{width:.1%} (at most {most:.0%})"
    )


def null_judged(null: dict[str, Any]) -> list[dict[str, Any]]:
    """The intervals that its verdict is about."""
    return [one for one in null["intervals"] if one["judged"]]


def null_constants(null: dict[str, Any]) -> str:
    words = {word for one in null["intervals"] for word in one["arm"].split()}
    return listed([kind for kind in ("level", "era") if kind in words] or ["unknown"])
