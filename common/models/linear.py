"""y = x W^T + b for any number of rows, and the two elementwise parts of a Llama that are easily row-dependent.

Batch invariance: a row's result must have the same bits alone and among others. F.linear gives other bits for 1, 2 and
3 rows. What gives the same, at any thread count, and is faster: ms for all matrices of a SmolLM2 step at 1 and at 8
rows, two threads of a Zen3, one run:

    float32    F.linear      62  110
    float32    PackedLinear  47   63
    bfloat16   HalfLinear    20   34
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

# oneDNN picks its layout for this many rows. The result does not depend on it.
EXPECTED_ROWS = 128

# With AVX-512 oneDNN gives one row other bits than two or more when a sum is over more than 1024 elements. And four
# rows are the fastest (SmolLM2's matrices, one thread of a Zen 4: 0.75 of the time of one). With AVX2 neither is so.
LEAST_ROWS = 4 if torch.cpu._is_avx512_supported() else 1

# FBGEMM works off rows in groups of up to six. Groups of one and two sum in another order than the larger ones, and a
# multiple of three never leaves such a rest: no difference in any count up to 600. Three rows take no longer than one.
ROW_MULTIPLE = 3


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
        self.weight = _reorder(weight)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _pointwise(_enough_rows(x), self.weight, self.bias, "none", [], "")[: len(x)]


class HalfLinear:
    """bfloat16 weights and float32 activations, through FBGEMM, for CPUs without bfloat16 instructions.

    FBGEMM keeps float16 and widens it on the fly, which AVX2 does in one instruction: as few bytes are read as there
    are in bfloat16. float16 has three bits more for the fraction and three less for the exponent, so the weight is
    scaled by a power of two that puts its largest entry near float16's limit. That is exact for every entry above
    2^-32 of the largest; what is smaller keeps an error that the sum's own rounding hides.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        low, high = weight.aminmax()
        exponent = 15 - int(torch.frexp(torch.maximum(-low, high).float()).exponent)  # the largest gets below 2^15
        self.weight = torch.ops.quantized.linear_prepack_fp16(weight.float().mul_(2.0**exponent), None)
        self.scale = 2.0**-exponent
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.new_zeros(len(x) + -len(x) % ROW_MULTIPLE, x.shape[1])
        torch.mul(x, self.scale, out=rows[: len(x)])
        y = torch.ops.quantized.linear_dynamic_fp16(rows, self.weight)[: len(x)]
        return y if self.bias is None else y.add_(self.bias)


class Gate:
    """silu(x Wg^T) * (x Wu^T), [N, in] -> [N, I], from a linear whose weight is Wg above Wu, [2 * I, in]."""

    def __init__(self, linear: type[Linear] | type[HalfLinear], weight: torch.Tensor) -> None:
        self.linear = linear(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return swiglu(self.linear(x))


class PackedGate:
    """The same through oneDNN, which applies silu and the product to its sums before it writes them."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.gate, self.up = map(_reorder, weight.chunk(2))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = _enough_rows(x)
        gate = _pointwise(rows, self.gate, None, "swish", [], "")
        return _pointwise_binary(rows, gate, self.up, None, "mul")[: len(x)]


_pointwise = torch.ops.mkldnn._linear_pointwise.default
_pointwise_binary = torch.ops.mkldnn._linear_pointwise.binary


def _reorder(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), EXPECTED_ROWS)


def _enough_rows(x: torch.Tensor) -> torch.Tensor:
    if len(x) >= LEAST_ROWS:
        return x
    rows = x.new_zeros(LEAST_ROWS, x.shape[1])
    rows[: len(x)] = x
    return rows


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN packs such weights here: on x86 CPUs float32 always, bfloat16 only with AVX-512 or AMX."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def linear_for(dtype: torch.dtype, device: torch.device) -> type[Linear] | type[PackedLinear] | type[HalfLinear]:
    """The fastest of the three here."""
    if can_pack(dtype, device):
        return PackedLinear
    if device.type == "cpu" and dtype == torch.bfloat16 and "fbgemm" in torch.backends.quantized.supported_engines:
        return HalfLinear
    return Linear


def gate_for(linear: type, weight: torch.Tensor) -> Gate | PackedGate:
    """The gate that goes with such linears."""
    return PackedGate(weight) if linear is PackedLinear else Gate(linear, weight)


def activation_dtype(linear: type, dtype: torch.dtype) -> torch.dtype:
    """What a forward with such linears computes in, given the dtype of its weights."""
    return torch.float32 if linear is HalfLinear else dtype


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., H] over its root mean square, computed in float32, times weight [H]."""
    return F.rms_norm(x, weight.shape, weight, eps)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """[N, 2 * I], gate then up -> silu(gate) * up, [N, I].

    Not F.silu: its last few elements (of a row, or of a thread's share) go through another exp and get other bits.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    wide = gate.float()
    denominator = torch.neg(wide).exp_().add_(1)
    return torch.div(wide, denominator, out=denominator).to(up.dtype).mul_(up)
