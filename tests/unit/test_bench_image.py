"""`bench image`: its counts are exact, each size is measured in each arm, and what is claimed follows from samples."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evolution import cli
from experiments.bench import image, image_measure
from experiments.bench.image_plot import draw
from experiments.bench.mechanism_payloads import IMAGES, make_messages


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    image.add_arguments(parser)
    return parser.parse_args(list(arguments))


def cell(stage: str, constants: str, size: str, seconds: list[float]) -> dict[str, Any]:
    rounds = [[value * 0.9, value, value * 2] for value in seconds]
    return {"stage": stage, "constants": constants, "size": size, **dict.fromkeys(image.PARTS, rounds)}


@pytest.mark.parametrize(("multiple", "word"), [(50.5, "holds"), (49.5, "fails")])
def test_era_over_level(multiple: float, word: str) -> None:
    level = [0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01]
    cells = [cell("broadcast", "level", "4 MiB", level)]
    cells += [cell("broadcast", "era", "4 MiB", [multiple * value for value in level])]
    cells += [cell("broadcast", "era", "1 MiB", [9.0] * 7)]
    judged = {one["part"]: one for one in image.judge(cells, ["broadcast"])}
    assert judged["whole"]["ratio"]["median"] == pytest.approx(multiple)
    assert judged["whole"]["verdict"] == judged["distribute"]["verdict"] == word
    assert judged["cpu"]["verdict"] is None and judged["cpu"]["at_least"] is None


def test_the_hash_alone() -> None:
    cells = [cell("peer", "level", "4 MiB", [0.008, 0.009]), cell("peer", "level", "hash", [0.001, 0.001])]
    (one,) = image.same_again(cells, ["peer"])
    assert (one["stage"], one["constants"]) == ("peer", "level")
    assert one["ratio"]["pairs"] == pytest.approx([8, 9])


@pytest.mark.timeout(180)
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(image_measure, "MEASURED", 2)
    sizes = ["hash", "1 KiB", "256 KiB"]
    arguments = ("--repeats", "1", "--stages", "broadcast", "--sizes", ",".join(sizes))
    result = image.run(options(*arguments))
    cells = {(one["constants"], one["size"]): one for one in result["cells"]}
    assert set(cells) == {(constants, size) for constants in ("era", "level") for size in sizes}
    for (constants, size), one in cells.items():
        for whole, part, cpu in zip(one["whole"][0], one["distribute"][0], one["cpu"][0], strict=True):
            assert whole > part > 0 and cpu > 0
        assert len(one["whole"][0]) == 2
        (request,) = make_messages(size)
        if constants == "level":  # the channel carries the request, the broadcast its length and then the list
            channel, broadcast = len(msgspec.msgpack.encode([request])), len(msgspec.msgpack.encode([request]))
        else:
            channel = broadcast = len(pickle.dumps([request]))
        assert one["messages"] == [1, 2]
        assert one["bytes"] == [channel, 8 + broadcast]
        assert one["bytes"][0] > IMAGES[size]
    assert result["ratios"] == [] and result["verdict"] is None  # 4 MiB was not measured
    image.show(result)
    assert "bytes of them" in capsys.readouterr().out
    assert all(Path(path).stat().st_size > 1000 for path in draw(result, tmp_path))


@pytest.mark.parametrize(
    "arguments", [("--repeats", "0"), ("--stages", "peer,x"), ("--sizes", "5 KiB"), ("--sizes", "1 KiB,1 KiB")]
)
def test_bad_options_are_one_line(arguments: tuple[str, str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "image", *arguments])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert arguments[0] in said and said.count("\n") == 1
