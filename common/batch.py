"""The batch plan: all that a rank needs in order to execute one turn, and nothing else.

The scheduler (planner) writes it, the model runner (executor) reads it. With `--scheduling replicated` each rank
plans and executes its own copy; with `--scheduling rank0` rank 0's plan travels to the other ranks, who never see
a request. That is why a plan holds no request ids, no text and no stop conditions: only rows, token ids and KV
slots. It is also why it is small: a decode turn of 16 requests is 128 bytes of rows and slots.

A *row* is a line of the executor's slot table (which KV slot holds token i of this request). A request keeps its
row from its first prefill chunk until it finishes, is aborted, or is retracted; then the row may be reused.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from common.messages import TokenLogprobs


class RowSampling(msgspec.Struct, array_like=True, frozen=True):
    """What the sampler needs of a request's parameters. temperature 0 is greedy, top_k -1 the whole vocabulary."""

    temperature: float
    top_p: float
    top_k: int
    seed: int


class RowExtras(msgspec.Struct, array_like=True, frozen=True):
    """What a row needs beyond RowSampling: penalties, a minimum length, log-probabilities.

    row           line of the slot table
    min_p         share of the most likely token's probability below which a token is not sampled
    repetition_penalty, frequency_penalty, presence_penalty   see `common.penalties`
    forbidden     int32 bytes, ids that are not sampled before min_new_tokens tokens were produced
    prompt_len    tokens
    prompt_ids    int32 bytes, the prompt where its tokens are looked at, else empty
    output_ids    int32 bytes, what was produced before a retraction where that is looked at, else empty
    logprobs      whether the log-probabilities of sampled tokens are wanted
    logprob_start first prompt token whose log-probability is wanted; prompt_len for none
    top_logprobs  how many of the most likely tokens go with each of these
    """

    row: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    min_new_tokens: int
    forbidden: bytes
    prompt_len: int
    prompt_ids: bytes
    output_ids: bytes
    logprobs: bool
    logprob_start: int
    top_logprobs: int


class PrefillSeq(msgspec.Struct, array_like=True):
    """One request's share of a prefill turn: compute tokens [start, start + n), where n = len(new_slots) / 4.

    row           line of the slot table
    start         tokens of this request whose KV is already in the pool (radix cache, or an earlier chunk)
    input_ids     int32 bytes, the n token ids to compute
    new_slots     int32 bytes, the n KV slots that receive their K and V
    prefix_slots  int32 bytes, the slots of tokens [0, start); given with a row's first chunk, empty after it
    sampling      given with a row's first chunk, None after it
    sample        whether the next token is sampled (the last chunk of a request that wants at least one token)
    """

    row: int
    start: int
    input_ids: bytes
    new_slots: bytes
    prefix_slots: bytes
    sampling: RowSampling | None
    sample: bool


class BatchPlan(msgspec.Struct, omit_defaults=True, tag="plan"):
    """One turn: a prefill batch or a decode batch, never both (as in SGLang without mixed chunks).

    Decode: row `decode_rows[i]` (int32 bytes) feeds the token it sampled last, at position = the row's length;
    its K and V go to KV slot `decode_slots[i]` (int32 bytes).

    Executing a plan yields one token id per prefill sequence with `sample`, in order, or one per decode row.

    `extras` go with the first chunk of a row, for a request that asks for more than plain sampling, and hold until the
    row's next first chunk. They are encoded only where there are any.
    """

    turn: int
    prefill: list[PrefillSeq]
    decode_rows: bytes = b""
    decode_slots: bytes = b""
    extras: list[RowExtras] = []

    def sampled_count(self) -> int:
        if self.prefill:
            return sum(seq.sample for seq in self.prefill)
        return len(self.decode_rows) // 4


class TurnLogprobs(NamedTuple):
    """Log-probabilities by row: of prompt tokens whose chunk was computed, and of the token sampled."""

    input: dict[int, TokenLogprobs]
    output: dict[int, TokenLogprobs]


class Sampled(NamedTuple):
    """What executing a plan gives, in this process: int32 ids [plan.sampled_count()], and log-probabilities unless no
    row of the plan wants any."""

    ids: np.ndarray
    logprobs: TurnLogprobs | None = None


class Turn(msgspec.Struct, omit_defaults=True):
    """What rank 0 sends the other ranks with `--scheduling rank0`, in place of the requests.

    plan: what to execute, or None when this turn has nothing to run; stop: leave the loop; waited: rank 0 had nothing
    to do before this turn. A rank that holds no scheduler learns from it that what it waited for was not the broadcast.
    Not before: rank 0 itself does not know that its last request ends before it has executed the plan it sent.
    """

    plan: BatchPlan | None
    stop: bool
    waited: bool = False
