"""The four questions before the chapter. Three of the answers start engines, with the tiny model."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from evolution.engine import Engine
from evolution.history import data
from evolution.history.answers.exercises import file_event
from evolution.history.answers.page import Answer, Sources, verdict
from evolution.stages import process_tree

PROMPTS = ["one", "two and a half", "three", "four"]
GREEDY = {"max_new_tokens": 8, "temperature": 0}
SCHEDULER = "scheduler.py"
WORKER = "tp_worker.py"


def show_rpyc_and_broadcast(console: Console, sources: Sources) -> bool:
    """Both stages at TP 2: what really ran, against the tree foretold, and the same tokens from both."""
    as_said = True
    tokens = []
    for stage in ("rpyc", "broadcast"):
        with _engine(stage, tp_size=2, scheduling="replicated") as engine:
            names = [report.name for process in engine.processes for report in process.walk()]
            tokens.append(_tokens(engine))
            counts = engine.stats()[0]
        console.print(f"{stage}, TP 2: main, {', '.join(names)}", soft_wrap=True)
        foretold = {node.name for node in process_tree(engine.args).walk()} - {"main"}
        as_said &= verdict(console, "these are the processes that `processes` foretells", set(names) == foretold)
    sent, empty = counts["broadcasts"], counts["empty_broadcasts"]
    console.print(
        f"broadcast: {sent} broadcasts: {(sent - empty) // 2} lists, a length and a content each; {empty} single 0s"
    )
    as_said &= verdict(console, "each list took two broadcasts", sent > empty and (sent - empty) % 2 == 0)
    return verdict(console, "both ways brought the same tokens", tokens[0] == tokens[1]) and as_said


def show_same_plans(console: Console, sources: Sources) -> bool:
    """Digests of both ranks' plans, compared before every forward: an engine whose ranks differ ends. Then rank 0
    alone plans."""
    tokens = {}
    for scheduling in ("replicated", "rank0"):
        checked = {"check_divergence": 1} if scheduling == "replicated" else {}
        with _engine("broadcast", tp_size=2, scheduling=scheduling, **checked) as engine:
            tokens[scheduling] = _tokens(engine)
            turns = engine.stats()[0]["turns"]
        if checked:
            console.print(f"replicated: {turns} turns, and in each both ranks had planned the same")
    same = tokens["replicated"] == tokens["rank0"]
    return verdict(console, "planning on rank 0 alone brings the same tokens", same)


def show_dispatch(console: Console, sources: Sources) -> bool:
    with _engine("broadcast", dp_size=2, load_balance_method="round_robin") as engine:
        names = [report.name for process in engine.processes for report in process.walk()]
        _tokens(engine)
        shares = [stats["finished"] for stats in engine.stats()]
    controllers = sum(name.startswith("evo-controller DP") for name in names)
    console.print(f"broadcast, DP 2: main, {', '.join(names)}", soft_wrap=True)
    console.print(f"{len(PROMPTS)} requests, by round robin: {shares[0]} to replica 0, {shares[1]} to replica 1")
    one_above = names.count("evo-controller-multi") == 1 and controllers == 2
    return verdict(console, "one dispatcher above one controller for each replica", one_above) & verdict(
        console, "each replica had half of the requests", shares == [len(PROMPTS) // 2] * 2
    )


def show_split(console: Console, sources: Sources) -> bool:
    """Lines of the two files in the releases around that day, and the commit where a clone is given."""
    found = data.listings()
    for version in ("0.3.2", "0.3.3"):
        files = found[version].files
        sizes = ", ".join(f"{name} {files.get(name, 0)} lines" for name in (WORKER, SCHEDULER))
        console.print(f"{version} ({found[version].date}): {sizes}")
    before, after = found["0.3.2"].files, found["0.3.3"].files
    file_event(console, sources.repo, "A", SCHEDULER)
    moved = SCHEDULER not in before and SCHEDULER in after and after[WORKER] < before[WORKER] / 5
    return verdict(console, "between them the file appears, and the worker shrinks to less than a fifth", moved)


def _engine(stage: str, **settings: Any) -> Engine:
    return Engine(stage=stage, model_path="tiny", max_total_tokens=1024, log_level="error", **settings)


def _tokens(engine: Engine) -> list[list[int]]:
    return [result["output_ids"] for result in engine.generate(PROMPTS, GREEDY)]


PAGES = {
    "self-test-1": Answer(
        "What was rpyc for in the first version, and how do requests reach the ranks without it?",
        "The router called a method of each rank over rpyc, once a turn, and read rank 0's answer. The list of"
        " requests went by reference; each rank pulled it back as a pickle. (At TP 1 there was no rpyc: the router held"
        " the model.) Since 0.2.0 rank 0 itself takes the requests and broadcasts them to the other ranks over gloo: a"
        " length, then the bytes; a 0 alone when none came.",
        show_rpyc_and_broadcast,
        "bench mechanisms",
    ),
    "self-test-2": Answer(
        "Why does every rank schedule, and not rank 0 for all?",
        "A batch follows from what arrived and from what the rank already holds. Ranks that get the same list in the"
        " same turn, and use no clock or randomness of their own, plan the same batch. So only the new requests have to"
        " travel, and not each batch with its rows and KV slots. The price is the CPU time of planning, once per rank."
        " It was so in 0.1.5 already.",
        show_same_plans,
        "bench scheduling",
    ),
    "self-test-3": Answer(
        "How do controller_single and controller_multi relate, and where is a request given to a replica?",
        "A ControllerSingle is rank 0 of one replica, and its control. ControllerMulti stands above as many of them as"
        " there are replicas, and puts each request into the queue of one: in turn, or where fewest wait. So dispatch"
        " is the controller's, and the schedulers below know nothing of it.",
        show_dispatch,
        "bench dispatch",
    ),
    "self-test-4": Answer(
        "On which day did scheduler.py appear, out of which file, and what stayed there?",
        "On 2024-09-29, out of tp_worker.py, in which the forward and the sampling stayed (TpModelWorker). Two pull"
        " requests of that day share it: #1534 most likely brought a short file of that name, and #1538 moved the"
        " scheduling into it. Only the repository's history can tell (--repo).",
        show_split,
        "history listings",
    ),
}
