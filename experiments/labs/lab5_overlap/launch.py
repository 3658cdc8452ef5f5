"""Launch: a plan on its way to the thread of the forwards, with the ids that a batch of 0.4.0 named."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from common.batch import BatchPlan
from common.messages import unpack_ids


class Launch(NamedTuple):
    """input_ids: int32, of each decode row in the plan's order, the id of the token that it is fed, or the placeholder
    of one that is not known yet; empty for a prefill. names: int32 [plan.sampled_count()], the placeholders of what
    this turn samples, in the order in which it does."""

    plan: BatchPlan
    input_ids: np.ndarray
    names: np.ndarray


def decode_rows(plan: BatchPlan) -> np.ndarray:
    """int32, the rows that decode, in the plan's order; empty for a prefill."""
    return unpack_ids(plan.decode_rows)


def sampling_rows(plan: BatchPlan) -> np.ndarray:
    """int32 [plan.sampled_count()], the rows that sample a token, in the order in which they do. In a prefill that is
    not every row: a chunk that is not a prompt's last one samples nothing."""
    if plan.prefill:
        return np.array([seq.row for seq in plan.prefill if seq.sample], dtype=np.int32)
    return unpack_ids(plan.decode_rows)
