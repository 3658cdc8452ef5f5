"""The public tests of lab 1. Each prints what a call cost."""

from __future__ import annotations

import socket
from statistics import median

import pytest
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from experiments.labs.marks import cost, task

from . import adapters, truth
from .ranks import Ranks

SIZES = (0, 1, 200)


def check_answers(fan_out: object, sizes: tuple[int, ...] = SIZES, seed: int = 0) -> None:
    for size in sizes:
        requests = truth.some_requests(size, seed)
        assert fan_out.step(requests) == truth.answer_to(requests)


@task("1a_by_value")
@pytest.mark.timeout(15)
def test_by_value() -> None:
    requests = truth.some_requests(3)
    assert adapters.unpack(adapters.pack(requests)) == requests
    with Ranks(2) as ranks:
        fan_out = adapters.value_fan_out(ranks.connections)
        check_answers(fan_out)
        with adapters.packing() as packed:
            from_router, from_ranks = truth.usual(lambda: fan_out.step(requests), ranks)
    assert packed.call_count == 20, "20 steps: the requests are packed once for all ranks"
    assert (from_router.messages, from_ranks.messages) == (2, 2), "one message to each rank, and one back"
    payload = len(adapters.pack(requests))
    assert from_router.bytes < 2 * (payload + 100), "the payload once to each rank, and what rpyc writes around it"
    cost(f"2 + 2 messages a step; {from_router.bytes} bytes to 2 ranks for a payload of {payload}")


@task("1a_by_value")
@pytest.mark.timeout(15)
def test_waiting_burns_nothing() -> None:
    """A router that spins looks ten thousand times a second whether something has arrived, and takes a core for it
    where it gets one. Asked for: less than a hundred looks, and less than a third of a core."""
    adapters.pack([])
    with Ranks(2) as ranks:
        fan_out = adapters.value_fan_out(ranks.connections)
        fan_out.step([])
        looks = sum(channel.looks for channel in ranks.channels)
        wait = [{"rank": 1, "do": "wait", "seconds": 1.0}]
        cpu, wall = truth.router_cpu(lambda: fan_out.step(wait))
        looks = sum(channel.looks for channel in ranks.channels) - looks
    assert wall >= 1.0, "a step is over when every rank has answered"
    assert looks < 100, f"looked {looks} times at the connections while one rank took a second"
    assert cpu < wall / 3, f"{cpu:.2f} s of CPU in {wall:.2f} s of waiting"
    cost(f"waiting burns {cpu / wall:.1%} of a core, with {looks} looks at the connections")


@task("1b_by_reference")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("count", [2, 3])
def test_by_reference(count: int) -> None:
    take, give = adapters.rank_end("reference")
    assert take(truth.some_requests(1)) == truth.some_requests(1)  # of a list that is here already
    assert give([{"rank": 0}]) == [{"rank": 0}]
    with Ranks(count, "reference") as ranks:
        fan_out = adapters.reference_fan_out(ranks.connections)
        check_answers(fan_out)
        few, _ = truth.usual(lambda: fan_out.step(truth.some_requests(1)), ranks)
        many, _ = truth.usual(lambda: fan_out.step(truth.some_requests(60)), ranks, steps=8)
    assert few.messages == many.messages, "a list is pulled in one piece, however long it is"
    assert many.messages <= 5 * count + 2
    cost(f"{count} ranks: {many.messages} messages of the router a step; {many.bytes} bytes for 60 requests")


@task("1c_count")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("compress", [False, True])
def test_a_channel_that_counts(compress: bool) -> None:
    here, there = (adapters.counting_channel()(SocketStream(one), compress) for one in socket.socketpair())
    frames = [b"", b"x" * 10, b"y" * 5000]
    for frame in frames:
        here.send(frame)
    assert [there.recv() for _ in frames] == frames
    assert (here.messages, here.sent_bytes) == (3, 5010), "bytes as handed over, before compression"
    assert (there.messages, there.sent_bytes) == (0, 0)
    cost("3 messages, 5,010 bytes")


@task("1c_count")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["value", "reference"])
def test_what_a_step_sends(how: str) -> None:
    predicted = adapters.messages_of_a_step(how, 2)
    from_router, from_ranks = truth.engine_counts(how, 2, truth.some_requests(5))
    assert predicted == (from_router.messages, from_ranks.messages), "of the router, and of all ranks together"
    cost(f"by {how}: {sum(predicted)} messages, {from_router.bytes + from_ranks.bytes} bytes a step of 2 ranks")


@task("1d_failures")
@pytest.mark.timeout(15)
def test_a_rank_raises() -> None:
    adapters.pack([])
    with Ranks(2) as ranks:
        fan_out = adapters.value_fan_out(ranks.connections)
        with pytest.raises(ValueError, match="rank 1 has no memory left"):
            fan_out.step([{"rank": 1, "do": "raise"}])
        check_answers(fan_out)
    cost("the next step is right again")


@task("1d_failures")
@pytest.mark.timeout(15)
def test_a_rank_dies() -> None:
    """The other one waits for it in lock-step, and will never answer."""
    adapters.pack([])
    with Ranks(2) as ranks:
        fan_out = adapters.value_fan_out(ranks.connections)
        check_answers(fan_out)
        with pytest.raises(adapters.rank_lost()) as lost:
            fan_out.step([{"rank": 1, "do": "die"}])
    assert lost.value.rank == 1
    cost("told of rank 1's death by its connection; rank 0 was still waiting")


@task("1e_nagle")
@pytest.mark.timeout(20)
def test_sends_of_a_frame() -> None:
    sizes = (0, 10, 50_000, 63_000, 65_000, 100_000)
    assert [adapters.sends_of_a_frame(size) for size in sizes] == [len(truth.sends(Channel, size)) for size in sizes]
    for size in sizes:
        assert len(truth.sends(adapters.whole_frames(), size)) == 1
        assert b"".join(truth.sends(adapters.whole_frames(), size)) == b"".join(truth.sends(Channel, size))
    cost(f"100,000 bytes: {adapters.sends_of_a_frame(100_000)} sends of rpyc's channel, 1 in one piece")


@task("1e_nagle")
@pytest.mark.timeout(60)
def test_nagle() -> None:
    """The median of 15 calls in each way. Where Nagle's algorithm holds back the end of a frame, it waits for the other
    side's delayed acknowledgement, which Linux sends after 40 ms at the least; else a call takes well under 1 ms. On a
    busy machine a call takes some ms more, so three times is asked for."""
    assert adapters.sends_of_a_frame(0) == 1
    payload = bytes(70_000)
    plain = median(truth.call_times(Channel, payload))
    whole = median(truth.call_times(adapters.whole_frames(), payload))
    tuned = median(truth.call_times(Channel, payload, adapters.tune))
    assert plain > 3 * whole, f"in one piece {plain / whole:.1f} times as fast"
    assert plain > 3 * tuned, f"tuned {plain / tuned:.1f} times as fast"
    cost(f"70,000 bytes: a call is {plain / whole:.0f} x as fast in one piece, {plain / tuned:.0f} x tuned")
