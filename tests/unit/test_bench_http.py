"""`bench http` with one short pair of engine and server: both arms run, and the claims follow from the samples."""

from __future__ import annotations

import argparse

import pytest

from experiments.bench import http
from experiments.bench.rounds import median


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    http.add_arguments(parser)
    return parser.parse_args(list(arguments))


def test_a_pair(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, nothing_left_behind) -> None:
    for name, few in (("SINGLES", 3), ("STREAMS", 4), ("BATCHES", 2), ("OUTPUT_LEN", 16)):
        monkeypatch.setattr(http, name, few)
    result = http.run(options("--repeats", "1", "--stage", "broadcast"))
    (sample,) = result["samples"]
    assert {len(times) for times in sample["ttft"].values()} == {3}
    assert {len(rates) for rates in sample["throughput"].values()} == {2}
    added = median(sample["ttft"]["http"]) - median(sample["ttft"]["offline"])
    assert result["added_ttft_ms"]["median"] == pytest.approx(added * 1e3)
    ratio = median(sample["throughput"]["http"]) / median(sample["throughput"]["offline"])
    assert result["throughput_ratio"]["pairs"] == [pytest.approx(ratio)]
    assert result["verdict"] == "undecided"  # of one pair
    http.show(result)
    assert "throughput of 4 streams" in capsys.readouterr().out


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="--repeats must be at least 1"):
        http.run(options("--repeats", "0"))
