"""Who gets a request where there are replicas, by which way, and what the way costs."""

from __future__ import annotations

import re

from common.args import EngineArgs
from experiments.bench import dispatch
from experiments.bench.engines import start
from experiments.bench.rounds import median
from experiments.claims.bounds import at_least, between, exactly, ratio
from experiments.claims.lives import COMMANDS, REQUESTS, SINGLES, Life, first_times_of, life, total
from experiments.claims.once import once
from experiments.claims.trial import Samples, Trial
from report.trace import working_turns

PAIRS = 6  # of engines, with and without the hop
ALIKE = 8  # requests
DISPATCHERS = {"broadcast": "evo-controller-multi", "peer": "evo-dp-controller"}


def _replica_threads(seen: Life) -> list[int]:
    """The turns of each thread of the controller that runs a replica's loop."""
    threads = [t for t in seen.threads if t.process == "evo-router" and re.fullmatch(r"DP\d+", t.thread)]
    return [len(working_turns(thread)) for thread in threads]


def _threads_then_processes() -> Samples:
    controls = [name for name in life("broadcast", dp=2).names if name.startswith("evo-controller DP")]
    older = life("rpyc", dp=2, constants="era")
    return [[len(_replica_threads(older))], [older.depth("DP0 TP0")], [len(controls)]]


def _loop_in_a_thread() -> Samples:
    turns = _replica_threads(life("rpyc", dp=2, constants="era"))
    return [[len(turns)], turns]


def _through_a_queue() -> Samples:
    dispatcher = life("broadcast", dp=2).thread(DISPATCHERS["broadcast"])
    return [[total(dispatcher, "messages")], [total(dispatcher, "pickles")]]


def _from_queue_to_zmq() -> Samples:
    found = []
    for stage, name in DISPATCHERS.items():
        dispatcher = life(stage, dp=2).thread(name)
        found.append([total(dispatcher, "pickles") / total(dispatcher, "messages")])
    return found


# ---------------------------------------------------------------------- which replica


@once
def one_at_a_time(constants: str, policy: str) -> tuple[int, int]:
    """Of ALIKE requests with the same prompt, the next when the one before is done: those that replica 0 got, and those
    that found nothing of their prompt in a cache."""
    args = EngineArgs(
        stage="broadcast",
        dp_size=2,
        constants=constants,
        idle="block",
        load_balance_method=policy,
        model_path="tiny",
        max_total_tokens=2048,
    )
    with start(args) as engine:
        params = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
        prompt = list(range(1, 65))
        results = [engine.generate(input_ids=prompt, sampling_params=params) for _ in range(ALIKE)]
        first = engine.stats()[0]["finished"]
    return first, sum(result["meta_info"]["cached_tokens"] == 0 for result in results)


def _knows_no_cache() -> Samples:
    return [[one_at_a_time("level", policy)[1] for policy in ("round_robin", "shortest_queue")]]


def _only_the_backlog() -> Samples:
    rate = dispatch.capacity("broadcast", "era", 2, dispatch.REQUESTS)
    shares = []
    for stage, constants in (("broadcast", "era"), ("rpyc", "era"), ("broadcast", "level")):
        system = {"stage": stage, "constants": constants, "dp_size": 2, "requests_per_s": rate}
        (sample,) = dispatch.measure(system, "shortest_queue", [0.4], dispatch.REQUESTS, 0)
        shares.append(sample["share_of_requests"][0])
    return [[one_at_a_time("era", "shortest_queue")[0]], shares[:2], shares[2:]]


# ---------------------------------------------------------------------- the way


def messages_of_a_request(seen: Life, dispatcher: str | None) -> float:
    """Until it is at its replica. Main sends it once; a dispatcher hands it on."""
    if dispatcher is None:
        return 1
    return 1 + (total(seen.thread(dispatcher), "messages") - 2 * COMMANDS) / REQUESTS


def _price_of_the_hop() -> Samples:
    alone, behind = [], []
    for pair in range(PAIRS):
        for dp, times in ((1, alone), (2, behind)) if pair % 2 == 0 else ((2, behind), (1, alone)):
            times.append(median(first_times_of("peer", dp)))
    hops = [messages_of_a_request(life(stage, dp=2), name) for stage, name in DISPATCHERS.items()]
    between_them = [life("peer").depth("TP0"), life("peer", dp=2).depth("DP0 TP0")]
    return [
        [messages_of_a_request(life("peer"), None)],
        hops,
        [between_them[1] - between_them[0]],
        [b / a for a, b in zip(alone, behind, strict=True)],
    ]


TRIALS = [
    Trial(
        8,
        "two replicas of 0.1.17, and of broadcast: what runs the loop of each",
        (
            exactly("threads of one controller that run a replica each, 0.1.17", 2),
            exactly("processes between main and a replica's rank, 0.1.17", 1),
            exactly("processes that run a replica each, broadcast", 2),
        ),
        7.0,
        _threads_then_processes,
    ),
    Trial(
        10,
        f"broadcast with 2 replicas, {ALIKE} requests with one prompt, one after the other, under each policy",
        (exactly("requests that find nothing of it cached (1 if the dispatcher knew)", 2),),
        5.0,
        _knows_no_cache,
    ),
    Trial(
        11,
        f"2 replicas, shortest_queue: {ALIKE} requests one after the other; then a stream at 0.4 of the capacity",
        (
            exactly(f"requests that replica 0 gets of {ALIKE} one after the other, 0.2.0", ALIKE),
            at_least("replica 0's share of the stream, where the backlog is counted (0.2.0, 0.1.17)", 0.65),
            between("replica 0's share of the stream, where what is outstanding is counted", 0.35, 0.65),
        ),
        19.0,
        _only_the_backlog,
    ),
    Trial(
        12,
        "two replicas of 0.1.17, traced by thread",
        (
            exactly("threads of the controller that run a replica's loop", 2),
            at_least("turns that each of them ran, with a call in it", 10),
        ),
        1.0,
        _loop_in_a_thread,
    ),
    Trial(
        26,
        f"broadcast with 2 replicas, whose channels carry msgpack: {REQUESTS} requests, {COMMANDS} commands to both",
        (
            exactly("messages that ControllerMulti puts into queues", REQUESTS + 2 * COMMANDS),
            exactly("pickles made of them, which only multiprocessing.Queue makes", REQUESTS + 2 * COMMANDS),
        ),
        1.0,
        _through_a_queue,
    ),
    Trial(
        46,
        f"peer with 1 and with 2 replicas, {PAIRS} engines of each in turn, {SINGLES} requests one after the other",
        (
            exactly("messages until a request is at its replica, 1 replica", 1),
            exactly("messages until a request is at its replica, 2 replicas, broadcast and peer", 2),
            exactly("processes more on its way with 2 replicas, peer", 1),
            ratio("time until the rank has it, 2 replicas over 1", 1.2, 6),
        ),
        27.0,
        _price_of_the_hop,
    ),
    Trial(
        61,
        "broadcast and peer with 2 replicas: pickles that the dispatcher makes, whose channels carry msgpack",
        (
            exactly("pickles a message to a replica, broadcast (multiprocessing.Queue)", 1),
            exactly("pickles a message to a replica, peer (ZMQ)", 0),
        ),
        1.0,
        _from_queue_to_zmq,
    ),
]
