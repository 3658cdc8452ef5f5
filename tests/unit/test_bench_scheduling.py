"""`bench scheduling` with one small pair of engines: what is counted is what must travel."""

from __future__ import annotations

import argparse

import pytest

from experiments.bench import scheduling


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    scheduling.add_arguments(parser)
    return parser.parse_args(list(arguments))


@pytest.mark.parametrize("one_stage", ["broadcast", "rpyc"])
def test_a_pair_of_engines(one_stage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(scheduling, "LEAST_REQUESTS", 1)
    result = scheduling.run(options("--repeats", "1", "--stages", one_stage, "--tp-size", "2", "--cells", "16+0,64+8"))
    samples = {(one["scheduling"], one["running"], one["waiting"]): one for one in result["samples"]}
    assert len(samples) == 4
    for running, waiting in ((16, 0), (64, 8)):
        replicated, rank0 = (samples[name, running, waiting] for name in scheduling.SCHEDULINGS)
        per_request = replicated["bytes"] * replicated["turns"] / (running + waiting)
        assert rank0["bytes"] > replicated["bytes"]
        if one_stage == "broadcast":  # a prompt is 512 bytes, and goes to one more rank
            assert 512 < per_request < 1024
            assert rank0["collectives"] > 1.9 and replicated["collectives"] < 1.2
            for one in (replicated, rank0):  # to one more rank
                assert one["messages"] == one["collectives"]
        else:  # to two, by a call and an answer each; rank 0's plan is one more call
            assert per_request > 1024
            assert 3.9 < replicated["messages"] < 4.5 and 5.9 < rank0["messages"] < 6.5
        for one in (replicated, rank0):
            assert one["turns"] >= scheduling.OUTPUT_LENS[0]
            assert 0 < one["planning_us"] < one["cpu_us"] < 1e5
    assert {one["figure"] for one in result["ratios"]} >= {"bytes", "cpu_us", "tpot_us", "planning_us"}
    ratio = next(one for one in result["ratios"] if (one["figure"], one["running"]) == ("bytes", 16))["ratio"]
    assert ratio["pairs"] == [samples["rank0", 16, 0]["bytes"] / samples["replicated", 16, 0]["bytes"]]
    assert result["verdict"] is None
    scheduling.show(result)
    assert f"{one_stage}, TP 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--repeats", "0"), "--repeats must be at least 1"),
        (("--cells", "16"), "--cells '16': give running"),
        (("--cells", "16+5"), "requests wait only where 64 run"),
        (("--cells", "16+0,16+0"), "--cells: 16+0 is there twice"),
        (("--tp-size", "\u00b2"), "one rank plans for itself"),
        (("--stages", "peer,peer"), "--stages: peer is there twice"),
        (("--tp-size", "1"), "one rank plans for itself"),
        (("--stages", "nothing"), "unknown stage"),
        (("--schedule-policy", "best"), "--schedule-policy 'best'"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("+", r"\+")):
        scheduling.run(options(*arguments))
