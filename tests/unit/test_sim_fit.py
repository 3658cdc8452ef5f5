"""The fit of `experiments.sim_fit`, on turns that a known profile gives."""

from __future__ import annotations

import msgspec
import pytest

from common.sim.profiles import PROFILES
from common.sim.roofline import Roofline
from experiments.sim_fit import FITTED, UNSEEN, Turn, fit


def turns_of(profile, points) -> list[Turn]:
    roofline = Roofline(profile, 1)
    return [Turn(rows, context, roofline.decode_seconds(rows, rows * context)) for rows, context in points]


@pytest.mark.parametrize(
    "known",
    [
        {"memory_bandwidth": 18e9, "flops": 130e9, "token_seconds": 0.0007, "key_seconds": 1e-6},
        {"memory_bandwidth": 18e9, "flops": 1e12},  # memory-bound throughout, so nothing is said of flops
    ],
)
def test_it_predicts_turns_that_it_has_not_seen(known):
    profile = msgspec.structs.replace(PROFILES["h100-qwen3-0.6b"], dtype="float32", **known)
    start = msgspec.structs.replace(profile, memory_bandwidth=1.0, flops=1.0, token_seconds=0.0, key_seconds=0.0)
    fitted = fit(start, turns_of(profile, FITTED))
    for expected, got in zip(turns_of(profile, UNSEEN), turns_of(fitted, UNSEEN), strict=True):
        assert got.seconds == pytest.approx(expected.seconds, rel=0.02)
    assert fitted.memory_bandwidth == pytest.approx(18e9, rel=0.02)
