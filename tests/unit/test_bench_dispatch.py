"""`bench dispatch` with one small pair of engines: shares as dispatched, ratios as the samples have them."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from experiments.bench import dispatch


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    dispatch.add_arguments(parser)
    return parser.parse_args(list(arguments))


def test_a_pair_of_engines(capsys: pytest.CaptureFixture) -> None:
    arguments = ("--repeats", "1", "--systems", "peer:level", "--dp-size", "2", "--loads", "0.8", "--requests", "16")
    result = dispatch.run(options(*arguments))
    turns, shortest = (dispatch.chosen(result["samples"], policy=policy)[0] for policy in dispatch.POLICIES)
    assert turns["share_of_requests"] == [0.5, 0.5]
    for one in (turns, shortest):
        assert len(one["ttft"]) == len(one["e2e"]) == 32
        assert sum(one["share_of_tokens"]) == pytest.approx(1)
        assert 0 <= one["late"] < 1
        assert all(0 < first <= last for first, last in zip(one["ttft"], one["e2e"], strict=True))
        assert one["rate"] == pytest.approx(0.8 * result["capacities"][0]["requests_per_s"])
    ratio = next(one for one in result["ratios"] if (one["time"], one["percentile"]) == ("e2e", 95))["ratio"]
    assert ratio["pairs"] == [np.percentile(shortest["e2e"], 95) / np.percentile(turns["e2e"], 95)]
    assert result["verdict"] is None
    dispatch.show(result)
    assert "peer, level, DP 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--repeats", "0"), "--repeats must be at least 1"),
        (("--requests", "0"), "--requests must be at least 1"),
        (("--loads", "much"), "--loads 'much': give fractions"),
        (("--loads", "0"), "--loads '0': give fractions"),
        (("--loads", "0.4,0.40"), "--loads: 0.4 is there twice"),
        (("--dp-size", "²"), "--dp-size '²': give numbers of replicas"),
        (("--dp-size", "2,2"), "--dp-size: 2 is there twice"),
        (("--systems", "peer:level,peer:level"), "--systems: peer:level is there twice"),
        (("--dp-size", "1"), "--dp-size '1': give numbers of replicas"),
        (("--systems", "peer:era"), "shortest_queue raised an error in 0.4.0"),
        (("--systems", "peer"), "--constants ''"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dispatch.run(options(*arguments))
