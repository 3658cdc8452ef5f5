"""Which processes there are, and what they hold."""

from __future__ import annotations

from evolution.history.trees import MODELS, Sizes
from experiments.claims.bounds import at_least, exactly
from experiments.claims.lives import Life, life
from experiments.claims.trial import Samples, Trial

ROLES = ("tokenize", "detokenize", "forward")


def _models(seen: Life) -> int:
    return sum(name.startswith("evo-rpyc ") for name in seen.names)


def _one_for_each_rank() -> Samples:
    alone, two = life("rpyc"), life("rpyc", 2, check=1)
    return [[_models(alone)], [len(alone.names)], [_models(two)], [len(two.names)]]


def _in_the_control_process() -> Samples:
    stages = ("rpyc", "broadcast")
    return [
        [life(stage).depth("TP0") for stage in stages],
        [life("rpyc", 2, check=1).depth("TP0")],
        [life("broadcast", 2, check=1).depth("TP0")],
        [len(life(stage).names) for stage in stages],
    ]


def _socket_files() -> Samples:
    older = life("broadcast", dp=2, constants="era")
    return [[life("peer", dp=2, constants=constants).ports for constants in ("era", "level")], [older.ports]]


def _nineteen() -> Samples:
    today = MODELS[-1]
    ours = life("peer", 4, 2).names
    return [
        [len(today.tree(Sizes(4, 2, 2)).walk())],
        [len(today.tree(Sizes(4, 2, 2, dp_attention=True)).walk())],
        [len(ours)],
        [abs(len(today.tree(Sizes(4, 2)).walk()) - len(ours))],
    ]


def _three_roles() -> Samples:
    """A process that is in two of the corners would be counted in both."""
    lives = [life("rpyc", 2, check=1), life("broadcast", 2, check=1), life("peer", 2, check=1)]
    by_role = {role: [_that(seen, role) for seen in lives] for role in ROLES}
    twice = [sum(len(by_role[role][place]) for role in ROLES) for place in range(len(lives))]
    alone = [len(set().union(*(by_role[role][place] for role in ROLES))) for place in range(len(lives))]
    counts = [[len(names) for names in by_role[role]] for role in ROLES]
    return [*counts, [a - b for a, b in zip(twice, alone, strict=True)]]


def _that(seen: Life, role: str) -> set[str]:
    """The processes that do this. Main is where requests are made: it traces what it sends, and tokenizes them."""
    if role == "tokenize":
        return {t.process for t in seen.threads if t.thread == "caller" and len(t.turns) > 1}
    return {t.process for t in seen.threads if any(turn.has(role) for turn in t.turns)}


TRIALS = [
    Trial(
        1,
        "rpyc at TP 1 and TP 2: the processes that really ran",
        (
            exactly("model processes at TP 1, where the router holds the model", 0),
            exactly("processes at TP 1", 3),
            exactly("model processes at TP 2", 2),
            exactly("processes at TP 2", 5),
        ),
        5.0,
        _one_for_each_rank,
    ),
    Trial(
        17,
        "rpyc and broadcast at TP 1 and TP 2: how far rank 0 is from main",
        (
            exactly("processes between main and rank 0 at TP 1, rpyc and broadcast", 0),
            exactly("processes between main and rank 0 at TP 2, rpyc", 1),
            exactly("processes between main and rank 0 at TP 2, broadcast, where it is the control process", 0),
            exactly("processes at TP 1, rpyc and broadcast", 3),
        ),
        5.0,
        _in_the_control_process,
    ),
    Trial(
        36,
        "2 replicas of 0.4.0 and of 0.2.0, one rank each: TCP ports on which their processes listen",
        (
            exactly("ports, peer, with the constants of 0.4.0 and with level", 0),
            at_least("ports, 0.2.0, whose channels were TCP", 1),
        ),
        7.0,
        _socket_files,
    ),
    Trial(
        52,
        "arithmetic for PP 2, which this suite does not run; without stages the peer stage, started at TP 4, DP 2",
        (
            exactly("processes of today's tree at TP 4, PP 2, DP 2", 19),
            exactly("processes of today's tree at TP 4, PP 2, DP 2, with DP attention", 11),
            exactly("processes that peer started at TP 4, DP 2", 11),
            exactly("processes by which today's tree at TP 4, PP 1, DP 2 differs from these", 0),
        ),
        10.0,
        _nineteen,
    ),
    Trial(
        55,
        "rpyc, broadcast and peer at TP 2, traced: which processes do what",
        (
            exactly("processes that take requests in and tokenize, in each stage", 1),
            exactly("processes that detokenize", 1),
            exactly("processes that run forwards, which are the ranks", 2),
            exactly("processes that do two of these", 0),
        ),
        3.0,
        _three_roles,
    ),
]
