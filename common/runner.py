"""ModelRunner: the executor of one rank. Given a batch plan: one forward, one sample.

It knows no requests. Per row of its slot table it keeps which KV slots hold the row's tokens, how many there are, the
token sampled last, and how to sample; a plan and the rank's own sampled ids are all that changes them. So the runners
of all ranks agree as long as they execute the same plans.
"""

from __future__ import annotations

import numpy as np
import torch

from common.attention import PagedAttention
from common.batch import BatchPlan, PrefillSeq, RowSampling
from common.messages import unpack_ids
from common.models.config import ModelConfig, plan_heads
from common.models.llama import Llama
from common.parallel.collectives import Collectives
from common.sampler import sample

# In `last_token`: the row has not sampled since its latest prefill.
NO_TOKEN = -1


class ModelRunner:
    def __init__(
        self,
        config: ModelConfig,
        tp: Collectives,
        *,
        max_running_requests: int,
        context_length: int,
        max_total_tokens: int,
        dtype: str = "float32",
        device: str = "cpu",
        packed: bool = True,
        keep_logits: bool = False,
    ) -> None:
        """Load the shard of rank tp.rank and lay out its KV pool of max_total_tokens slots.

        context_length: the most tokens a row may hold. keep_logits: leave each turn's logits, float32 [M, vocab], in
        `last_logits`. On cuda it uses the GPU that is current when it is made.
        """
        self.device = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)
        self.context_length = context_length
        self.max_total_tokens = max_total_tokens
        layout = plan_heads(config, tp.size)
        torch_dtype = getattr(torch, dtype)
        self.model = Llama(config, layout, tp.rank, tp, torch_dtype, self.device, packed)
        self.attention = PagedAttention(
            config.num_layers, max_total_tokens, layout.num_kv_heads, config.head_dim, torch_dtype, self.device
        )
        self.slot_table = np.zeros((max_running_requests, context_length + 1), dtype=np.int32)
        self.lengths = np.zeros(max_running_requests, dtype=np.int64)  # tokens with KV
        self.last_token = np.full(max_running_requests, NO_TOKEN, dtype=np.int32)
        self.sampling: list[RowSampling | None] = [None] * max_running_requests
        self._keep_logits = keep_logits
        self.last_logits: torch.Tensor | None = None

    def execute(self, plan: BatchPlan) -> np.ndarray:
        """Run one turn: int32 token ids, one per prefill sequence with `sample`, in order, or one per decode row.

        ValueError names the row of a plan that does not fit what the rows hold; nothing has changed then. Collective:
        every rank executes the same plan. May be called from any thread, from one at a time.
        """
        # Grad mode and the current GPU belong to the thread, and this may not be the one that made the runner.
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        with torch.inference_mode():
            if plan.prefill:
                return self._prefill(plan.prefill)
            return self._decode(unpack_ids(plan.decode_rows), unpack_ids(plan.decode_slots))

    def _prefill(self, seqs: list[PrefillSeq]) -> np.ndarray:
        rows = np.array([seq.row for seq in seqs])
        self._check_rows(rows)
        for seq in seqs:
            self._check_prefill(seq)
        for seq in seqs:
            self._extend(seq)
        tables = [self.slot_table[seq.row, : self.lengths[seq.row]] for seq in seqs]
        starts = [seq.start for seq in seqs]
        self.attention.prepare_prefill(tables, starts)
        input_ids = np.concatenate([unpack_ids(seq.input_ids) for seq in seqs])
        positions = np.concatenate([np.arange(start, len(table)) for start, table in zip(starts, tables, strict=True)])
        last = np.cumsum([len(seq.input_ids) // 4 for seq in seqs]) - 1
        sampled = np.array([seq.sample for seq in seqs])
        return self._forward(input_ids, positions, last[sampled], rows[sampled])

    def _decode(self, rows: np.ndarray, slots: np.ndarray) -> np.ndarray:
        self._check_rows(rows)
        self._check_decode(rows, slots)
        positions = self.lengths[rows]
        self.slot_table[rows, positions] = slots
        self.lengths[rows] += 1
        self.attention.prepare_decode(self.slot_table, rows, self.lengths[rows])
        return self._forward(self.last_token[rows], positions, np.arange(len(rows)), rows)

    def _forward(
        self, input_ids: np.ndarray, positions: np.ndarray, logit_rows: np.ndarray, table_rows: np.ndarray
    ) -> np.ndarray:
        """input_ids, positions [N]; logit_rows [M] of 0..N-1 are sampled for rows table_rows [M] of the slot table."""
        logits = self.model.forward(
            self._tensor(input_ids), self._tensor(positions), self.attention.attend, self._tensor(logit_rows)
        )
        if self._keep_logits:
            self.last_logits = logits.clone()
        # The token being sampled has as many tokens before it as the row holds.
        tokens = sample(logits, [self.sampling[row] for row in table_rows], self.lengths[table_rows].tolist())
        self.last_token[table_rows] = tokens
        return tokens

    def _extend(self, seq: PrefillSeq) -> None:
        table = self.slot_table[seq.row]
        new_slots = unpack_ids(seq.new_slots)
        if seq.sampling is not None:
            table[: seq.start] = unpack_ids(seq.prefix_slots)
            self.sampling[seq.row] = seq.sampling
        table[seq.start : seq.start + len(new_slots)] = new_slots
        self.lengths[seq.row] = seq.start + len(new_slots)
        self.last_token[seq.row] = NO_TOKEN

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.device)

    # ------------------------------------------------------------------ a plan that fits the rows

    def _check_rows(self, rows: np.ndarray) -> None:
        for row in rows[(rows < 0) | (rows >= len(self.lengths))]:
            raise ValueError(f"row {row}: the slot table has rows 0..{len(self.lengths) - 1}")
        if len(set(rows.tolist())) < len(rows):
            row = next(row for row in rows if (rows == row).sum() > 1)
            raise ValueError(f"row {row} is planned twice in one turn")

    def _check_prefill(self, seq: PrefillSeq) -> None:
        new = len(seq.new_slots) // 4
        prefix = len(seq.prefix_slots) // 4
        if new == 0 or len(seq.input_ids) // 4 != new:
            raise ValueError(f"row {seq.row}: {len(seq.input_ids) // 4} tokens to compute and {new} slots for them")
        if seq.sampling is not None and prefix != seq.start:
            raise ValueError(f"row {seq.row}: starts at token {seq.start} with {prefix} prefix slots")
        if seq.sampling is None and (prefix or seq.start != self.lengths[seq.row] or not self.sampling[seq.row]):
            raise ValueError(
                f"row {seq.row}: a later chunk starts at token {seq.start} with {prefix} prefix slots,"
                f" and the row holds {self.lengths[seq.row]} tokens"
            )
        if seq.start + new > self.context_length:
            raise ValueError(f"row {seq.row}: {seq.start + new} tokens, and the context is {self.context_length}")
        self._check_slots(seq.row, unpack_ids(seq.new_slots))
        self._check_slots(seq.row, unpack_ids(seq.prefix_slots))

    def _check_decode(self, rows: np.ndarray, slots: np.ndarray) -> None:
        if len(rows) == 0 or len(rows) != len(slots):
            raise ValueError(f"a decode turn of {len(rows)} rows and {len(slots)} slots")
        for row in rows[self.last_token[rows] == NO_TOKEN]:
            raise ValueError(f"row {row} decodes and has sampled no token since its prefill")
        for row in rows[self.lengths[rows] >= self.context_length]:
            raise ValueError(f"row {row}: it holds {self.context_length} tokens, the whole context")
        for row, slot in zip(rows, slots, strict=True):
            self._check_slots(row, slot)

    def _check_slots(self, row: int, slots: np.ndarray) -> None:
        if np.any((slots < 0) | (slots >= self.max_total_tokens)):
            raise ValueError(f"row {row}: its KV slots must lie in 0..{self.max_total_tokens - 1}, not {slots}")
