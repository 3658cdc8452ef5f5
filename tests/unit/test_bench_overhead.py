"""`bench overhead` with one short pair of engines: both arms run, and what is claimed follows from the samples."""

from __future__ import annotations

import argparse

import pytest

from experiments.bench import overhead


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    overhead.add_arguments(parser)
    return parser.parse_args(list(arguments))


def test_a_pair_of_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(overhead, "OUTPUT_LEN", 20)
    monkeypatch.setattr(overhead, "BATCHES", 2)
    result = overhead.run(options("--repeats", "1", "--stage", "broadcast"))
    (off,), (on,) = result["samples"]["off"], result["samples"]["on"]
    assert len(off) == len(on) == 2
    assert result["ratio"]["pairs"] == [pytest.approx((on[0] / off[0] + on[1] / off[1]) / 2)]
    assert min(off + on) > 0 and max(off + on) < 0.1
    assert result["calls_per_turn"] > 5
    assert 0 < result["call_us"]["other"] < result["call_us"]["sampled"] < 1000
    assert result["verdict"] == "undecided"  # of one pair
    overhead.show(result)
    assert "calls a turn on rank 0" in capsys.readouterr().out


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="--repeats must be at least 1"):
        overhead.run(options("--repeats", "0"))
