"""y = x W^T + b for any number of rows, and the two elementwise parts of a Llama that are easily row-dependent.

Batch invariance: a row's result must have the same bits alone and among others. F.linear in float32 gives other bits
for 1, 2 and 3 rows; oneDNN-packed weights gave the same for 1 to 512 rows at any thread count, and are faster: all
matrices of a SmolLM2 step at 8 rows took 21 ms packed and 64 ms plain (2-core Zen4, float32).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

# oneDNN picks its layout for this many rows. The result does not depend on it.
EXPECTED_ROWS = 128


class Linear:
    """x [N, in] -> [N, out], through F.linear."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight  # [out, in]
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """The same through oneDNN, with a private copy of the weight in oneDNN's layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), EXPECTED_ROWS)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN packs such weights here: on x86 CPUs float32 always, bfloat16 only with AVX-512 or AMX."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., H] over its root mean square, computed in float32, times weight [H]."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """[N, 2 * I], gate then up -> silu(gate) * up, [N, I].

    Not F.silu: its last few elements (of a row, or of a thread's share) go through another exp and get other bits.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    wide = gate.float()
    return (wide / (1 + torch.exp(-wide))).to(gate.dtype) * up
