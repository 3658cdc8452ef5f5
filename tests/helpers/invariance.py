"""Marks of tests that ask for the same bits whatever else is in the batch: not every CPU has linears that give them."""

from __future__ import annotations

import pytest
import torch

from common.models.linear import Linear, can_pack, linear_for

PACKS_FLOAT32 = can_pack(torch.float32, torch.device("cpu"))

invariant = pytest.mark.skipif(not PACKS_FLOAT32, reason="without oneDNN, F.linear's bits depend on the row count")
bfloat16_invariant = pytest.mark.skipif(
    linear_for(torch.bfloat16, torch.device("cpu")) is Linear,
    reason="neither oneDNN nor FBGEMM has bfloat16 weights here, and F.linear's bits depend on the row count",
)
