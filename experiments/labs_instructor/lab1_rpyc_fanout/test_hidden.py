"""The hidden tests of lab 1: more ranks, other requests."""

from __future__ import annotations

import random
import socket
import threading

import pytest
import rpyc
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from experiments.labs.marks import cost, task

from . import adapters, truth
from .ranks import Ranks


class Counted(dict):
    """Counts how often it is pickled; unpickled it is a plain dict."""

    pickled = 0

    def __reduce__(self) -> tuple:
        Counted.pickled += 1
        return dict, (dict(self),)


@task("1a_by_value")
@pytest.mark.timeout(20)
def test_four_ranks_by_value() -> None:
    rng = random.Random(7)
    adapters.pack([])
    with Ranks(4) as ranks:
        fan_out = adapters.value_fan_out(ranks.connections)
        for size in (3, 0, 50, 1000, 1):
            requests = truth.some_requests(size, seed=rng.randrange(1000))
            assert fan_out.step(requests) == truth.answer_to(requests)
        few, back = truth.usual(lambda: fan_out.step([]), ranks)
    assert (few.messages, back.messages) == (4, 4)
    cost(f"4 ranks: {few.messages + back.messages} messages a step")


@task("1a_by_value")
@pytest.mark.timeout(15)
def test_slow_ranks_by_value() -> None:
    """The step is over when the slowest has answered, whichever it is."""
    adapters.pack([])
    with Ranks(3) as ranks:
        fan_out = adapters.value_fan_out(ranks.connections)
        for slowest in (0, 2):
            slow = [{"rank": slowest, "do": "wait", "seconds": 0.3}]
            spent, wall = truth.router_cpu(lambda slow=slow: fan_out.step(slow))
            assert wall >= 0.3
    cost(f"{spent / wall:.1%} of a core while waiting")


@task("1b_by_reference")
@pytest.mark.timeout(40)
def test_five_ranks_by_reference() -> None:
    """More than the cores of a small machine, and than threads of a small pool."""
    adapters.rank_end("reference")[0]([])
    with Ranks(5, "reference") as ranks:
        fan_out = adapters.reference_fan_out(ranks.connections)
        for size in (20, 0, 400):
            requests = truth.some_requests(size, seed=size)
            assert fan_out.step(requests) == truth.answer_to(requests)
        Counted.pickled = 0
        fan_out.step([Counted(rid="r0", ids=[1], tokens=2)])
    assert Counted.pickled == 5, "each rank pulls the list once"
    cost(f"5 ranks: the list is pickled {Counted.pickled} times")


@task("1c_count")
@pytest.mark.timeout(20)
def test_a_channel_that_counts_for_threads() -> None:
    """A live connection's: many messages from several threads, one at a time, as rpyc lets them."""
    here, there = (adapters.counting_channel()(SocketStream(one), True) for one in socket.socketpair())
    lock = threading.Lock()

    def send_some(size: int) -> None:
        for _ in range(50):
            with lock:
                here.send(bytes(size))

    threads = [threading.Thread(target=send_some, args=(size,)) for size in (1, 4000)]
    for thread in threads:
        thread.start()
    received = [len(there.recv()) for _ in range(100)]
    for thread in threads:
        thread.join()
    assert (here.messages, here.sent_bytes) == (100, sum(received)) == (100, 50 * 4001)
    cost(f"{here.messages} messages")


@task("1c_count")
@pytest.mark.timeout(60)
def test_what_a_step_of_more_ranks_sends() -> None:
    for ranks in (1, 3, 4, 8, 16):
        assert adapters.messages_of_a_step("value", ranks) == (ranks, ranks)
    predicted = adapters.messages_of_a_step("reference", 3)
    sent, back = truth.engine_counts("reference", 3, truth.some_requests(40, seed=3))
    assert predicted == (sent.messages, back.messages)
    per_rank = adapters.messages_of_a_step("reference", 8)[0] - adapters.messages_of_a_step("reference", 7)[0]
    assert per_rank * 3 + 1 == sent.messages
    cost(f"by reference each further rank is {per_rank} messages more of the router")


@task("1d_failures")
@pytest.mark.timeout(15)
def test_every_rank_raises() -> None:
    adapters.pack([])
    with Ranks(3) as ranks:
        fan_out = adapters.value_fan_out(ranks.connections)
        for who in ("all", 2, 0):
            with pytest.raises(ValueError, match="has no memory left"):
                fan_out.step([{"rank": who, "do": "raise"}])
        requests = truth.some_requests(9, seed=9)
        assert fan_out.step(requests) == truth.answer_to(requests)
    cost("three steps failed, the fourth is right")


@task("1d_failures")
@pytest.mark.timeout(15)
@pytest.mark.parametrize("victim", [0, 2])
def test_another_rank_dies(victim: int) -> None:
    adapters.pack([])
    with Ranks(3) as ranks:
        fan_out = adapters.value_fan_out(ranks.connections)
        with pytest.raises(adapters.rank_lost()) as lost:
            fan_out.step([{"rank": victim, "do": "die"}])
    assert lost.value.rank == victim
    cost(f"told of rank {victim}'s death")


@task("1d_failures")
@pytest.mark.timeout(15)
def test_a_rank_dies_between_two_steps() -> None:
    adapters.pack([])
    with Ranks(2) as ranks:
        fan_out = adapters.value_fan_out(ranks.connections)
        fan_out.step([])
        ranks.kill(1)
        ranks.processes[1].join(10)
        with pytest.raises(adapters.rank_lost()) as lost:
            fan_out.step([])
    assert lost.value.rank == 1
    cost("told of it by the next step")


@task("1e_nagle")
@pytest.mark.timeout(20)
def test_sends_of_other_frames() -> None:
    """Around each border, and a large one."""
    sizes = [63_994, 63_995, 127_995, 127_996, 191_995, 191_996, 4_000_000]
    wanted = [len(truth.sends(Channel, size)) for size in sizes]
    assert [adapters.sends_of_a_frame(size) for size in sizes] == wanted == [1, 2, 3, 4, 4, 5, 64]
    cost(f"4,000,000 bytes: {wanted[-1]} sends")


@task("1e_nagle")
@pytest.mark.timeout(40)
def test_frames_of_every_kind_arrive() -> None:
    """Also one that is larger than what a socket takes at once; and the end of a connection is rpyc's EOFError."""
    assert adapters.sends_of_a_frame(0) == 1
    with Ranks(2, "tcp", channel=adapters.whole_frames()) as ranks:
        for channel in ranks.channels:
            adapters.tune(channel.stream.sock)
            assert channel.stream.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        steps = [rpyc.async_(connection.root.step) for connection in ranks.connections]
        for size in (0, 1, 63_995, 8_000_000):
            replies = [step(bytes(size)) for step in steps]
            assert [reply.value for reply in replies] == [b"", b""]
        ranks.kill(0)
        ranks.processes[0].join(10)
        with pytest.raises(EOFError):
            for _ in range(3):  # the first may still be taken by the socket
                steps[0](bytes(1_000_000))
    cost("0 bytes to 8,000,000")
