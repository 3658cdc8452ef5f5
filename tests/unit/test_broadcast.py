"""How what rank 0 broadcasts becomes a tensor, then and now."""

from __future__ import annotations

import time

import pytest

from common.batch import BatchPlan, Turn
from common.messages import AbortRequest, GenerateRequest, ImageData, Request, SamplingParams, pack_ids
from common.parallel.broadcast import Encoding, make_encoding

NAMES = ("msgpack", "list of ints", "numpy buffer")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_encoded_is_decoded(name):
    requests = [GenerateRequest("r0", pack_ids([1, 2]), SamplingParams(stop=("a",))), AbortRequest(3, "r0")]
    encoding = make_encoding(name, list[Request])
    assert encoding.decode(encoding.encode(requests)) == requests
    turn = Turn(BatchPlan(7, [], pack_ids([0]), pack_ids([5])), stop=False)
    encoding = make_encoding(name, Turn)
    assert encoding.decode(encoding.encode(turn)) == turn


def test_an_image_through_a_list_of_ints_costs_50_times_the_buffer():
    """0.2.0's encoding of a 4 MB request: a Python int for each byte, there and back."""
    image = bytes(range(256)) * 16384
    requests = [GenerateRequest("r0", pack_ids([1]), SamplingParams(), image=ImageData(image, "0"))]
    msgpack, ints, _ = (cpu_seconds(make_encoding(name, list[Request]), requests) for name in NAMES)
    print(f"4 MiB, encode and decode: list of ints {ints * 1e3:.1f} ms, buffer {msgpack * 1e3:.2f} ms of CPU")
    assert ints > 50 * msgpack


def cpu_seconds(encoding: Encoding, requests: list[Request]) -> float:
    """Least of three: CPU time of this thread to encode, and to decode as one other rank does."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        encoding.decode(encoding.encode(requests))
        times.append(time.thread_time() - began)
    return min(times)
