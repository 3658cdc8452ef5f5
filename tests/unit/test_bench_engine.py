"""`bench engine` on the tiny model: every arm runs, and what is claimed follows from the samples."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from common.models.config import load_config
from experiments.bench import engine
from tests.unit.test_runner import Driver, build_smollm2_shaped


def options(**given: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    engine.add_arguments(parser)
    namespace = parser.parse_args([])
    vars(namespace).update(given)
    return namespace


def test_zero_groups_leave_the_logits_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    build_smollm2_shaped(tmp_path / "model")
    config = load_config(tmp_path / "model")
    padded = engine.pad_groups(tmp_path / "model", config, 4, tmp_path / "padded")
    assert json.loads((padded / "config.json").read_text())["num_attention_heads"] == 12
    torch.set_num_threads(1)
    logits = []
    for folder in (tmp_path / "model", padded):
        driver = Driver(folder)
        driver.prefill(driver.seq(0, np.arange(20)))
        logits.append(driver.logits)
    assert torch.equal(*logits)
    assert engine.pad_groups(padded, load_config(padded), 4, tmp_path / "again") == padded


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompts": "8,x"}, "--prompts '8,x'"),
        ({"prompts": "0"}, "--prompts '0'"),
        ({"prompts": "8,8"}, "--prompts: 8 is there twice"),
        ({"prompts": "²"}, "--prompts '²'"),
        ({"repeats": 0}, "--repeats must be at least 1, not 0"),
        ({"dtypes": "int8"}, "int8"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine.run(options(model_path="tiny", **given))


def arm(seconds: float, ids: list[int], **more: float) -> list[dict]:
    return [{"seconds": seconds, "output_ids": [ids], "cpu_seconds": 1.0, "idle_cpu_seconds": 0.0, **more}] * 7


def test_what_is_claimed_follows_from_the_samples() -> None:
    arms = {
        "transformers": arm(2.0, [1, 2]),
        "tp1": arm(1.0, [1, 2]),
        "tp1 padded": arm(1.1, [1, 2]),
        "tp2": arm(1.6, [1, 3]),
        "bare tp2": [{"seconds": 1.32, "own": 0.132, "wait": 0.264}] * 7,
    }
    measured = {"prompts": {1: arms}, "read_gb_per_s": [9.0, 10.0], "weight_bytes": 2e8}
    said = engine.judge({"float32": measured})
    row = said["rows"][0]
    assert row["to_transformers"]["median"] == 2.0
    assert row["tp2_to_tp1"]["median"] == pytest.approx(1 / 1.6)
    factors = [row[part]["median"] for part in ("padding", "sharding", "engine")]
    assert np.prod(factors) == pytest.approx(row["tp2_to_tp1"]["median"])
    assert (row["collectives_own"], row["collectives_wait"]) == pytest.approx((0.1, 0.2))
    assert row["floor_tokens_per_s"] == pytest.approx(50)
    assert row["same_tokens"] == {"tp1": 7, "tp2": 0}
    assert said["verdicts"] == {"float32, 1: to transformers": "holds", "float32, 1: TP 2 to TP 1": "fails"}
    assert said["verdict"] == "fails"
    few = {name: taken[:5] for name, taken in arms.items()}
    said = engine.judge({"float32": measured | {"prompts": {1: few}}})
    assert set(said["verdicts"].values()) == {"undecided"} and said["verdict"] == "undecided"
