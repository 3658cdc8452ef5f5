"""What a broadcast sends, and what a large message costs in it."""

from __future__ import annotations

import pickle
import time

from common.parallel.broadcast import ListOfInts, NumpyBuffer
from experiments.bench.mechanism_payloads import IMAGES, make_messages
from experiments.claims.bounds import between, exactly, ratio
from experiments.claims.lives import life, total
from experiments.claims.mechanisms import PAYLOADS, TIMED, counts, walls
from experiments.claims.spinning import spinning
from experiments.claims.trial import Samples, Trial
from report.trace import working_turns

LARGE = "4 MiB"
REPEATS = 7


def _receive_then_step() -> Samples:
    seen = life("broadcast", 2, check=1)
    rank1 = seen.rank(1)
    begins = [
        next(part.name for part in rank1.turns[number].parts if part.name != "other") for number in working_turns(rank1)
    ]
    return [
        [sum(name not in ("idle", "transport") for name in begins)],
        [abs(len(working_turns(seen.rank(0))) - len(begins))],
        [total(rank1, "messages")],
    ]


def _length_first() -> Samples:
    found = [spinning("broadcast"), spinning("peer")]
    return [
        [one.broadcasts_when_idle for one in found],
        [one.broadcasts_of_a_list for one in found],
        [counts("gloo-list", 2, "0")["bytes"]],
        [counts("gloo-list", 2, "0")["messages"]],
        [counts("gloo-list", 2, "1")["messages"]],
    ]


def _the_same_with_another_encoding() -> Samples:
    different = []
    for payload in PAYLOADS:
        older, newer = (counts(name, 2, payload) for name in TIMED)
        different.append(sum(older[name] != newer[name] for name in older))
    return [different, _list_over_buffer()]


def _list_over_buffer() -> list[float]:
    return [a / b for a, b in zip(walls("gloo-list"), walls("gloo-buffer"), strict=True)]


def _to_every_rank() -> Samples:
    two, three = (counts("gloo-list", ranks, "1 MiB")["bytes"] for ranks in (2, 3))
    return [[two / (1 << 20)], [three / two], _list_over_buffer()]


def _what_travels() -> Samples:
    """Of bytes that are no image at all: nobody looks into them."""
    content = len(pickle.dumps(make_messages("1 MiB")))
    return [[counts("gloo-list", 2, "1 MiB")["bytes"] / content], [content / IMAGES["1 MiB"]]]


def _share_of_the_pickle() -> Samples:
    """CPU time of both ends, without the way between them."""
    messages = make_messages(LARGE)
    shares, slower = [], []
    for _ in range(REPEATS):
        began = time.process_time()
        pickle.loads(pickle.dumps(messages))
        pickled = time.process_time()
        ListOfInts().decode(ListOfInts().encode(messages))
        listed = time.process_time()
        NumpyBuffer().decode(NumpyBuffer().encode(messages))
        buffered = time.process_time()
        shares.append((pickled - began) / (listed - pickled))
        slower.append((listed - pickled) / (buffered - listed))
    return [shares, slower]


TRIALS = [
    Trial(
        18,
        "broadcast at TP 2, traced",
        (
            exactly("turns of rank 1 that do not begin with the broadcast", 0),
            exactly("turns that one rank ran more than the other", 0),
            exactly("messages that rank 1 sent, which drops what step returns", 0),
        ),
        1.0,
        _receive_then_step,
    ),
    Trial(
        19,
        "idle engines of 0.2.0 and 0.4.0 at TP 2, then a request; bare broadcasts, counted",
        (
            exactly("broadcasts of an idle turn", 1),
            exactly("broadcasts of a turn that brings requests", 2),
            exactly("bytes of the single 0", 8),
            exactly("messages to one more rank without a request", 1),
            exactly("messages to one more rank with a request", 2),
        ),
        13.0,
        _length_first,
    ),
    Trial(
        39,
        "bare broadcasts of 0.2.0 (a list of ints) and of 0.4.0 (a buffer) to one more rank",
        (
            exactly("counts (messages, bytes, encodings, decodings) that differ, with no, one, and a large request", 0),
            ratio("wall time with 1 MiB, a list of ints over a buffer", least=10),
        ),
        1.0,
        _the_same_with_another_encoding,
    ),
    Trial(
        40,
        "bare broadcasts of 0.2.0 of a request with 1 MiB, to one and to two more ranks",
        (
            between("bytes that travel to one more rank, over those of the image", 1, 1.01),
            exactly("bytes that travel to two more ranks, over those to one", 2),
            ratio("wall time, a list of ints over a buffer", least=10),
        ),
        1.0,
        _to_every_rank,
    ),
    Trial(
        41,
        "a request with 1 MiB of random bytes in the place of a tensor, pickled and broadcast",
        (
            between("bytes that travel over those of the pickle, whatever they hold", 1, 1.001),
            between("bytes of the pickle over those of the tensor", 1, 1.01),
        ),
        1.0,
        _what_travels,
    ),
    Trial(
        58,
        f"CPU time of both ends for a request with {LARGE}: the pickle alone, as a list of ints, as a buffer",
        (
            ratio("CPU time, the pickle alone over the list of ints, which holds a pickle", most=0.1),
            ratio("CPU time, a list of ints over a buffer", least=10),
        ),
        3.0,
        _share_of_the_pickle,
    ),
]
