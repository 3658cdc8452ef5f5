"""What config.json says of rotary embedding: its base, and how Llama 3.1 stretches the long wavelengths. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_THETA = 10000.0
LLAMA3_FACTORS = ("factor", "low_freq_factor", "high_freq_factor")


@dataclass(frozen=True)
class Llama3Scaling:
    """`rope_type` llama3: a model trained on a short context reads `factor` times as much of a longer one."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def divisor(self, frequency: float) -> float:
        """What a frequency (radians per position) is divided by, 1 to `factor`: the more, the less it turns in all."""
        turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
        if turns > self.high_freq_factor:
            return 1.0
        if turns < self.low_freq_factor:
            return self.factor
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return 1.0 / ((1.0 - smooth) / self.factor + smooth)


def read_rope(folder: Path, values: dict[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """theta, and the scaling if there is one. ValueError for kinds that do not work here.

    transformers 5 writes `rope_parameters`; before that it was `rope_theta` and an optional `rope_scaling`, which
    transformers 5 still reads, and prefers.
    """
    rope = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in rope.values()):
        raise ValueError(f"{folder}: rope parameters differ between kinds of layers; only models of equal layers work")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ("default", "llama3"):
        raise ValueError(f"{folder}: rope scaling of type {kind} is not supported; only default and llama3 work")
    if rope.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError(f"{folder}: partial_rotary_factor is set; only rotary embedding of whole heads works")
    given = [where["rope_theta"] for where in (rope, values) if where.get("rope_theta") is not None]
    theta = float(given[0]) if given else DEFAULT_THETA
    return theta, _llama3_scaling(folder, values, rope) if kind == "llama3" else None


def _llama3_scaling(folder: Path, values: dict[str, Any], rope: dict[str, Any]) -> Llama3Scaling:
    original = (
        values.get("original_max_position_embeddings")
        or rope.get("original_max_position_embeddings")
        or values["max_position_embeddings"]
    )
    for name in LLAMA3_FACTORS:
        if name not in rope:
            raise ValueError(
                f"{folder}: rope scaling of type llama3 lacks {name}; it needs {', '.join(LLAMA3_FACTORS)}"
            )
    scaling = Llama3Scaling(*(float(rope[name]) for name in LLAMA3_FACTORS), int(original))
    factors = 0 < scaling.low_freq_factor < scaling.high_freq_factor < math.inf and 1 <= scaling.factor < math.inf
    if not factors or original < 1:
        raise ValueError(
            f"{folder}: rope scaling of type llama3 needs factor >= 1, 0 < low_freq_factor < high_freq_factor and"
            f" original_max_position_embeddings >= 1, not {scaling.factor:g}, {scaling.low_freq_factor:g},"
            f" {scaling.high_freq_factor:g} and {original}"
        )
    return scaling
