"""`bench overlap` with one short pair of engines: what is claimed follows from the samples."""

from __future__ import annotations

import argparse
import json

import pytest

from experiments.bench import overlap
from experiments.bench.overlap_plot import draw


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    overlap.add_arguments(parser)
    return parser.parse_args(list(arguments))


def test_a_pair_of_engines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path) -> None:
    monkeypatch.setattr(overlap, "OUTPUT_LEN", 12)
    monkeypatch.setitem(overlap.SAMPLING, "max_new_tokens", 12)
    result = overlap.run(options("--repeats", "1", "--sizes", "1,3"))
    assert result["verdict"] is None and result["tokens_identical"]
    for size, judged in result["sizes"].items():
        normal, ahead = (result["samples"][size][arm] for arm in overlap.ARMS)
        assert judged["ratios"]["tpot"]["pairs"] == [ahead["tpot"][0] / normal["tpot"][0]]
        assert 0 < result["predicted"][size] < normal["turn"][0] < 0.2
        control = [a["turn"][0] - result["predicted"][size] - a["late"][0] for a in (normal, ahead)]
        assert judged["hidden"]["median"] == pytest.approx(1 - control[1] / control[0])
        assert 0 <= ahead["late"][0] < ahead["turn"][0]
        assert judged["verdict"] == "undecided", "one pair decides nothing"
    overlap.show(result)
    assert "identical with both loops" in capsys.readouterr().out
    assert len(draw(json.loads(json.dumps(result)), tmp_path)) == 2


def test_a_share_of_nothing_is_none() -> None:
    """A forward may be predicted longer than a turn took."""
    assert overlap.hidden_share([1e-4, 1e-4], [2e-4, 0.0]) is None
    assert overlap.hidden_share([1e-4, 3e-4], [2e-4, 3e-4])["values"] == [0.5, 0.0]


def test_other_tokens_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = dict.fromkeys(overlap.FIGURES, 1.0)
    monkeypatch.setattr(overlap, "measure", lambda engine, *rest: ({"1": figures}, [[int(engine.args.overlap)]]))
    assert overlap.run(options("--repeats", "1", "--sizes", "1"))["verdict"] == "fails"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", "0"), "--repeats must be at least 1"),
        (("--sizes", "1,many"), "give numbers of requests"),
        (("--sizes", "1,16,1"), "give each number of requests once"),
        (("--sizes", "1000"), "at most 256 requests run at once"),
    ],
)
def test_bad_input(arguments: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overlap.run(options(*arguments))
