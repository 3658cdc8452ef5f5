"""Calls of a router, and what went when it did."""

from __future__ import annotations

from evolution.rpyc_router.constants import V0_1_5
from experiments.claims.bounds import at_least, exactly
from experiments.claims.lives import LONG, Life, life, usual
from experiments.claims.mechanisms import counts
from experiments.claims.trial import Samples, Trial
from report.trace import working_turns

CALLS = 1 + (LONG - 1) // V0_1_5.rules.decode_steps  # of the long request: its prefill, then so many steps in each


def _router(era: bool = False) -> Life:
    return life("rpyc", 2, constants="era" if era else "level", check=1)


def _a_step() -> Samples:
    by_reference, by_value = counts("rpyc-reference", 2, "1"), counts("rpyc-value", 2, "1")
    waiting = _router(era=True).waiting
    return [
        [by_reference["messages"]],
        [by_value["messages"]],
        [by_reference["encodings"]],
        [len(waiting)],
        waiting,
        [len(_router().waiting)],
    ]


def _one_call_to_each_rank() -> Samples:
    seen = _router()
    turns = [len(working_turns(seen.rank(rank))) for rank in (0, 1)]
    return [[usual(seen.thread("evo-router"), "messages", distribute=True)], [abs(turns[0] - turns[1])]]


def messages_of_a_turn(seen: Life) -> int:
    """Between the processes that run it, when it brings nothing new: what most turns take."""
    threads = [thread for thread in seen.threads if working_turns(thread)]
    return sum(usual(thread, "messages", distribute=True) for thread in threads)


def _a_hop_less() -> Samples:
    routed, direct = _router(), life("broadcast", 2, check=1)
    messages = [[messages_of_a_turn(seen)] for seen in (routed, direct)]
    return [*messages, [len(routed.names)], [len(direct.names)]]


def _messages_to_rank_0(seen: Life, ranks: int) -> float:
    """Main sends each request once; a router hands it on to each rank."""
    routers = [thread for thread in seen.threads if thread.process == "evo-router" and working_turns(thread)]
    return 1 + sum(usual(router, "messages", distribute=True) / ranks for router in routers)


def _through_the_router() -> Samples:
    routed, direct = _router(), life("broadcast", 2, check=1)
    alone = life("rpyc")
    return [
        [_messages_to_rank_0(routed, 2)],
        [_messages_to_rank_0(direct, 2)],
        [routed.depth("TP0")],
        [direct.depth("TP0")],
        [alone.depth("TP0")],
    ]


TRIALS = [
    Trial(
        3,
        "bare calls to 2 ranks with one request, counted; an engine of 0.1.5 whose router's threads are watched",
        (
            exactly("messages of a step, by reference (4 each way for each of 2 ranks, 2 to pull the answer)", 18),
            exactly("messages of a step, by value", 4),
            exactly("pickles of a step, by reference (2 for each of T + 1 pulls)", 6),
            exactly("threads that wait for a rank, by reference", 2),
            at_least(f"times that each of them went to sleep in {CALLS} steps", CALLS),
            exactly("threads that wait for a rank, by value", 0),
        ),
        23.0,
        _a_step,
    ),
    Trial(
        4,
        "rpyc at TP 2, every rank plans, traced",
        (
            exactly("calls that the router sends in a turn, one to each of 2 ranks", 2),
            exactly("turns that one rank ran more than the other", 0),
        ),
        1.0,
        _one_call_to_each_rank,
    ),
    Trial(
        22,
        "a decode turn at TP 2 that brings nothing new, traced: rpyc by value, and broadcast",
        (
            exactly("messages of the turn, rpyc (a call and an answer of each rank)", 4),
            exactly("messages of the turn, broadcast (a single 0)", 1),
            exactly("processes, rpyc", 5),
            exactly("processes, broadcast", 4),
        ),
        1.0,
        _a_hop_less,
    ),
    Trial(
        57,
        "the messages and the processes between main and rank 0, rpyc and broadcast at TP 2, rpyc at TP 1",
        (
            exactly("messages until rank 0 has a request, rpyc (to the router, and from it)", 2),
            exactly("messages until rank 0 has a request, broadcast", 1),
            exactly("processes between main and rank 0, rpyc", 1),
            exactly("processes between main and rank 0, broadcast", 0),
            exactly("processes between main and rank 0, rpyc at TP 1, whose router is rank 0", 0),
        ),
        1.0,
        _through_the_router,
    ),
]
