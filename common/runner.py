"""ModelRunner: the executor of one rank. Given a batch plan: one forward, one sample.

It knows no requests. Per row of its slot table it keeps which KV slots hold the row's tokens, how many there are, the
token sampled last, and how to sample (with its history, where that matters); a plan and the rank's own sampled ids are
all that changes them. So the runners of all ranks agree as long as they execute the same plans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from common.attention import PagedAttention
from common.batch import BatchPlan, PrefillSeq, RowExtras, RowSampling, Sampled, TurnLogprobs
from common.cuda_graphs import DecodeGraphs
from common.gpu_attention import GpuAttention
from common.logprobs import token_logprobs
from common.messages import TokenLogprobs, unpack_ids
from common.models.config import ModelConfig, plan_heads
from common.models.llama import Llama
from common.parallel.collectives import Collectives
from common.penalties import RowHistory
from common.sampler import sample
from common.tracing import NO_TRACE, NoTrace, Trace

# In `last_token`: the row has not sampled since its latest prefill.
NO_TOKEN = -1
# Rows of logits in memory at once when a prompt's log-probabilities are wanted: 64 of 49,152 float32 are 13 MB.
LOGIT_TILE = 64


class _PromptSpan(NamedTuple):
    """Tokens [first, first + n) of the batch predict prompt tokens `ids` (int32 [n]) of a row."""

    row: int
    first: int
    ids: np.ndarray
    top: int


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
        graphs: bool = True,
        keep_logits: bool = False,
        trace: Trace | NoTrace = NO_TRACE,
        loaded_layer: Callable[[], None] = lambda: None,
    ) -> None:
        """Load the shard of rank tp.rank and lay out its KV pool of max_total_tokens slots.

        context_length: the most tokens a row may hold. graphs: on cuda, decode with CUDA graphs where the collectives
        allow it. keep_logits: leave each turn's logits, float32 [M, vocab], in
        `last_logits`. loaded_layer: called after each layer. On cuda it uses the GPU that is current when it is made.
        """
        self.device = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)
        self.context_length = context_length
        self.max_total_tokens = max_total_tokens
        layout = plan_heads(config, tp.size)
        torch_dtype = getattr(torch, dtype)
        self.model = Llama(config, layout, tp.rank, tp, torch_dtype, self.device, packed, context_length, loaded_layer)
        pool = (config.num_layers, max_total_tokens, layout.num_kv_heads)
        self.attention: PagedAttention | GpuAttention
        self.graphs: DecodeGraphs | None = None
        if self.device.type == "cuda":
            self.attention = GpuAttention(*pool, config.head_dim, torch_dtype, self.device)
            if graphs and tp.capturable:
                self.graphs = DecodeGraphs(self._decode_logits, self.attention)
        else:
            group = layout.num_q_heads // layout.num_kv_heads
            self.attention = PagedAttention(*pool, group, config.head_dim, torch_dtype)
        self.slot_table = np.zeros((max_running_requests, context_length + 1), dtype=np.int32)
        self.lengths = np.zeros(max_running_requests, dtype=np.int64)  # tokens with KV
        self.last_token = np.full(max_running_requests, NO_TOKEN, dtype=np.int32)
        self.sampling: list[RowSampling | None] = [None] * max_running_requests
        self.histories: dict[int, RowHistory] = {}  # by row, for those that ask for more than plain sampling
        self._keep_logits = keep_logits
        self.trace = trace  # of the thread that executes
        self.last_logits: torch.Tensor | None = None

    def execute(self, plan: BatchPlan) -> Sampled:
        """Run one turn: int32 token ids, one per prefill sequence with `sample`, in order, or one per decode row.
        And the log-probabilities that the plan's rows want.

        ValueError names the row of a plan that does not fit what the rows hold; nothing has changed then. Collective:
        every rank executes the same plan. May be called from any thread, from one at a time.
        """
        self.trace.part("prepare")
        # Grad mode and the current GPU belong to the thread, and this may not be the one that made the runner.
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        with torch.inference_mode():
            if plan.prefill:
                return self._prefill(plan.prefill, plan.extras)
            return self._decode(unpack_ids(plan.decode_rows), unpack_ids(plan.decode_slots))

    def counts(self) -> dict[str, int]:
        return {"cuda_graphs": self.graphs.count} if self.graphs else {}

    def _prefill(self, seqs: list[PrefillSeq], extras: list[RowExtras]) -> Sampled:
        rows = np.array([seq.row for seq in seqs])
        self._check_rows(rows)
        for seq in seqs:
            self._check_prefill(seq)
        self._check_extras(seqs, extras)
        for seq in seqs:
            self._extend(seq)
        for row_extras in extras:
            self.histories[row_extras.row] = RowHistory(row_extras, self.model.config.vocab_size)
        tables = [self.slot_table[seq.row, : self.lengths[seq.row]] for seq in seqs]
        starts = [seq.start for seq in seqs]
        self.attention.prepare_prefill(tables, starts)
        input_ids = np.concatenate([unpack_ids(seq.input_ids) for seq in seqs])
        positions = np.concatenate([np.arange(start, len(table)) for start, table in zip(starts, tables, strict=True)])
        last = np.cumsum([len(seq.input_ids) // 4 for seq in seqs]) - 1
        sampled = np.array([seq.sample for seq in seqs])
        self.trace.part("forward")
        hidden = self.model.hidden(self._tensor(input_ids), self._tensor(positions), self.attention.attend)
        prompt_logprobs = {span.row: self._span_logprobs(hidden, span) for span in self._prompt_spans(seqs)}
        logits = self.model.logits(hidden[self._tensor(last[sampled])])
        return self._sample(logits, rows[sampled], prompt_logprobs)

    def _decode(self, rows: np.ndarray, slots: np.ndarray) -> Sampled:
        self._check_rows(rows)
        self._check_decode(rows, slots)
        positions = self.lengths[rows]
        self.slot_table[rows, positions] = slots
        self.lengths[rows] += 1
        if self.graphs and self.graphs.worth_it(positions):
            self.trace.part("forward")
            return self._sample(self.graphs.run(self.last_token[rows], positions, self.slot_table, rows), rows)
        self.attention.prepare_decode(self.slot_table, rows, self.lengths[rows])
        self.trace.part("forward")
        logits = self._decode_logits(self._tensor(self.last_token[rows]), self._tensor(positions))
        return self._sample(logits, rows)

    def _decode_logits(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Of every row of the prepared decode batch, float32 [N, vocab]."""
        return self.model.logits(self.model.hidden(input_ids, positions, self.attention.attend))

    def _sample(
        self, logits: torch.Tensor, table_rows: np.ndarray, prompt_logprobs: dict[int, TokenLogprobs] | None = None
    ) -> Sampled:
        """logits float32 [M, vocab], for rows table_rows [M] of the slot table."""
        self.trace.part("sample")
        if self._keep_logits:
            self.last_logits = logits.clone()
        rows = table_rows.tolist()
        plain = not prompt_logprobs and self.histories.keys().isdisjoint(rows)
        histories = None if plain else [self.histories.get(row) for row in rows]
        # The token being sampled has as many tokens before it as the row holds.
        tokens = sample(logits, [self.sampling[row] for row in rows], self.lengths[table_rows].tolist(), histories)
        self.last_token[table_rows] = tokens
        if histories is None:
            return Sampled(tokens)
        return self._with_logprobs(tokens, logits, rows, histories, prompt_logprobs or {})

    def _with_logprobs(
        self,
        tokens: np.ndarray,
        logits: torch.Tensor,
        rows: list[int],
        histories: list[RowHistory | None],
        prompt_logprobs: dict[int, TokenLogprobs],
    ) -> Sampled:
        """The sampled tokens, added to the histories, and the log-probabilities of those whose row wants them."""
        sampled_logprobs = {}
        for i, (row, history) in enumerate(zip(rows, histories, strict=True)):
            if history is None:
                continue
            history.add(tokens[i])
            if history.extras.logprobs:
                row_logits = logits[i : i + 1].cpu().numpy()
                sampled_logprobs[row] = token_logprobs(row_logits, tokens[i : i + 1], history.extras.top_logprobs)
        if not prompt_logprobs and not sampled_logprobs:
            return Sampled(tokens)
        return Sampled(tokens, TurnLogprobs(prompt_logprobs, sampled_logprobs))

    def _prompt_spans(self, seqs: list[PrefillSeq]) -> list[_PromptSpan]:
        """Where the batch holds what predicts prompt tokens whose log-probability is wanted."""
        spans = []
        first = 0  # of the sequence's tokens in the batch
        for seq in seqs:
            end = seq.start + len(seq.input_ids) // 4
            history = self.histories.get(seq.row)
            if history is not None:
                extras = history.extras
                # The token at a position is predicted by the one before it; the prompt's first one by none.
                begin = max(seq.start, extras.logprob_start - 1)
                ids = history.prompt[begin + 1 : end + 1] if extras.logprob_start < extras.prompt_len else ()
                if len(ids):
                    spans.append(_PromptSpan(seq.row, first + begin - seq.start, ids, extras.top_logprobs))
            first += end - seq.start
        return spans

    def _span_logprobs(self, hidden: torch.Tensor, span: _PromptSpan) -> TokenLogprobs:
        parts = []
        for begin in range(0, len(span.ids), LOGIT_TILE):
            ids = span.ids[begin : begin + LOGIT_TILE]
            rows = hidden[span.first + begin : span.first + begin + len(ids)]
            parts.append(token_logprobs(self.model.logits(rows).cpu().numpy(), ids, span.top))
        return TokenLogprobs.join(parts)

    def _extend(self, seq: PrefillSeq) -> None:
        table = self.slot_table[seq.row]
        new_slots = unpack_ids(seq.new_slots)
        if seq.sampling is not None:
            table[: seq.start] = unpack_ids(seq.prefix_slots)
            self.sampling[seq.row] = seq.sampling
            self.histories.pop(seq.row, None)
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

    def _check_extras(self, seqs: list[PrefillSeq], extras: list[RowExtras]) -> None:
        first_chunks = [seq.row for seq in seqs if seq.sampling is not None]
        for e in extras:
            if e.row not in first_chunks:
                raise ValueError(f"row {e.row}: extras go with a row's first chunk, and this turn has none of it")
            needs_prompt = e.repetition_penalty != 1 or e.logprob_start < e.prompt_len
            if needs_prompt and len(e.prompt_ids) != 4 * e.prompt_len:
                raise ValueError(f"row {e.row}: {len(e.prompt_ids) // 4} of {e.prompt_len} prompt ids are given")
            ids, vocab = unpack_ids(e.prompt_ids + e.output_ids), self.model.config.vocab_size
            if np.any((ids < 0) | (ids >= vocab)):
                raise ValueError(f"row {e.row}: its tokens must lie in 0..{vocab - 1}")

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
