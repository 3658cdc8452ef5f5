"""The hidden tests of lab 3: other sizes, seeds and numbers of ranks."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from experiments.labs.marks import cost, task

from . import adapters, scenarios
from .ranks import run_ranks
from .scenarios import mixed_turns, pack, turn_of_length
from .test_lab import (
    MIB,
    check_cost_of_image,
    check_encoding,
    check_exchange,
    check_header,
    check_kept,
    check_loop,
    check_no_pickle_is_loaded,
    check_nothing,
    check_packed,
    check_refused,
    check_room,
    image_turn,
    image_turns,
    say,
)


@task("3a_cost")
@pytest.mark.timeout(20)
def test_other_predictions() -> None:
    rng = random.Random(11)
    for ranks in (2, 3, 8):
        lengths = [rng.choice([0, 0, rng.randrange(1, 5000), rng.randrange(1, 5_000_000)]) for _ in range(200)]
        broadcasts = sum(1 + (length > 0) for length in lengths)
        assert adapters.cost(lengths, ranks) == (broadcasts, sum(8 + length for length in lengths) * (ranks - 1))
    assert adapters.cost([], 4) == (0, 0)


@task("3b_header")
@pytest.mark.timeout(20)
def test_lengths_up_to_2_to_the_62() -> None:
    rng = random.Random(12)
    for bits in range(1, 63):
        check_header(rng.randrange(1 << (bits - 1), 1 << bits))


@task("3c_broadcast")
@pytest.mark.timeout(60)
def test_three_ranks_hold_the_same() -> None:
    turns = mixed_turns(seed=13, count=40, empty=0.0, longest=60)
    cost(check_exchange(turns, run_ranks(scenarios.exchange, 3, turns=pack(turns))))


@task("3d_nothing")
@pytest.mark.timeout(60)
def test_nothing_between_images() -> None:
    images = image_turns([MIB, 70_000, 3])
    turns = [[], *images[:1], [], [], *images[1:], *mixed_turns(seed=14, count=40, empty=0.9), []]
    cost(check_nothing(turns, run_ranks(scenarios.exchange, 3, turns=pack(turns))))


@task("3e_loop")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("turns_of_request", [1, 20])
def test_three_ranks_in_lock_step(turns_of_request: int) -> None:
    names = [f"other{number}" for number in range(75)]
    ranks = run_ranks(scenarios.loop, 3, say(names), turns_of_request=turns_of_request)
    cost(check_loop(names, turns_of_request, ranks))


@task("3f_image")
@pytest.mark.timeout(60)
def test_an_image_of_another_size() -> None:
    check_encoding(image_turn(3 * MIB + 17))
    cost(check_cost_of_image(6 * MIB + 1))


@task("3f_image")
@pytest.mark.timeout(60)
def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    for protocol in (0, 2):
        check_no_pickle_is_loaded(tmp_path / f"sprung{protocol}", protocol)
    check_refused(msgspec.msgpack.encode({"rid": "r0"}))
    check_refused(msgspec.msgpack.encode([["generate", "r0"]]))
    check_refused(msgspec.msgpack.encode(image_turn(300)) + b"\x00")


@task("3g_buffer")
@pytest.mark.timeout(60)
def test_memory_of_other_sizes_is_kept() -> None:
    rng = random.Random(15)
    for _ in range(20):
        check_room([rng.randrange(1, 300_000) for _ in range(30)])
    check_room([7] * 50)


@task("3g_buffer")
@pytest.mark.timeout(60)
def test_three_ranks_receive_into_kept_memory() -> None:
    turns = image_turns([10, 3 * MIB, 50, 60, 3 * MIB - 1, 4 * MIB, 100_000, 100_001])
    check_kept(turns, run_ranks(scenarios.exchange_kept, 3, turns=pack(turns)))


@task("3h_packed")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("block", [8, 128])
def test_other_blocks(block: int) -> None:
    edges = [turn_of_length(length) for length in (119, 120, 121, 128, 1000)]
    turns = [*edges, [], *mixed_turns(seed=16, count=30, empty=0.5, longest=3), *reversed(edges)]
    cost(check_packed(turns, block, run_ranks(scenarios.exchange_packed, 3, turns=pack(turns), block=block)))
