"""RequestState: what the scheduler knows of one request, and when a request ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from common.batch import RowExtras, RowSampling, TurnLogprobs
from common.messages import (
    FinishReason,
    GenerateRequest,
    LogprobParams,
    SamplingParams,
    TokenChunk,
    TokenLogprobs,
    pack_ids,
)
from common.penalties import has_penalty
from common.radix_cache import NO_SLOTS, RadixNode
from common.stop import find_stop


@dataclass(slots=True, eq=False)
class RequestState:
    """One request from `add` to its finish chunk.

    `ids` are the tokens to prefill: the prompt, and after a retraction the prompt and what had been produced.
    While admitted (`row` is not None), token i has its KV in slots[i] for i < kv_len (once the planned turn has
    run). slots[:tree_len] are the radix tree's, protected by a lock on `node`; slots[tree_len:kv_len] are its own.
    """

    rid: str
    prompt_len: int
    ids: bytes  # int32 [>= prompt_len]
    max_new: int  # tokens, as clipped by the scheduler
    stream: bool
    sampling: SamplingParams
    stop_ids: frozenset[int]
    stop_window: int  # output tokens to decode when looking for a stop string
    output: list[int] = field(default_factory=list)
    sent: int = 0  # tokens of `output` that are in chunks already
    chunked: bool = False  # a first chunk was made
    cached: int | None = None  # prefix found at the first admission, in tokens
    row: int | None = None
    slots: np.ndarray = field(default_factory=lambda: NO_SLOTS)  # int32 [prompt_len + max_new]
    kv_len: int = 0
    tree_len: int = 0
    node: RadixNode | None = None
    forbidden: bytes = b""  # int32, ids that min_new_tokens keeps away
    logprobs: LogprobParams | None = None  # `start` is the prompt's length once the prompt's part is there
    input_parts: list[TokenLogprobs] = field(default_factory=list)  # not in chunks yet
    output_parts: list[TokenLogprobs] = field(default_factory=list)

    @classmethod
    def of(cls, request: GenerateRequest, limit: int, eos_token_ids: tuple[int, ...]) -> RequestState:
        """limit: most tokens of prompt and output. ValueError for a prompt that is empty or longer than that."""
        sampling = request.sampling
        prompt_len = len(request.input_ids) // 4
        if not 1 <= prompt_len <= limit:
            raise ValueError(f"request {request.rid}: the prompt must have 1 to {limit} tokens, it has {prompt_len}")
        stop_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else set(eos_token_ids))
        never_first = set(sampling.stop_token_ids) | set(eos_token_ids) if sampling.min_new_tokens else ()
        longest = max((len(stop.encode()) for stop in sampling.stop), default=0)
        state = cls(
            rid=request.rid,
            prompt_len=prompt_len,
            ids=request.input_ids,
            max_new=min(sampling.max_new_tokens, limit - prompt_len),
            stream=request.stream,
            sampling=sampling,
            stop_ids=stop_ids,
            # A token of text has at least one byte. One token more, as some decoders strip the first space. (Special
            # tokens without text, which ignore_eos lets through, shorten the reach.)
            stop_window=longest + 1,
            forbidden=pack_ids(sorted(never_first)),
            logprobs=request.logprobs,
        )
        if request.logprobs and request.logprobs.start == 0:
            state.input_parts.append(_first_token(request.input_ids, request.logprobs.top))
        return state

    @property
    def remaining(self) -> int:
        """Tokens that it may still produce."""
        return self.max_new - len(self.output)

    @property
    def to_prefill(self) -> int:
        """Tokens of `ids` that have no KV yet."""
        return len(self.ids) // 4 - self.kv_len

    @property
    def is_ahead(self) -> bool:
        """Whether a decode step is open that feeds the token it produced last."""
        return bool(self.output) and self.kv_len == self.prompt_len + len(self.output)

    def row_sampling(self) -> RowSampling:
        s = self.sampling
        return RowSampling(s.temperature, s.top_p, s.top_k, s.seed)

    def row_extras(self) -> RowExtras | None:
        """What the executor must know beyond `row_sampling`; None for a request that asks for nothing more."""
        s = self.sampling
        penalty = has_penalty(s)
        if not (penalty or s.min_p > 0 or s.min_new_tokens or self.logprobs):
            return None
        start, top = (self.logprobs.start, self.logprobs.top) if self.logprobs else (self.prompt_len, 0)
        looks_at_prompt = s.repetition_penalty != 1 or start < self.prompt_len
        return RowExtras(
            row=self.row,
            min_p=s.min_p,
            repetition_penalty=s.repetition_penalty,
            frequency_penalty=s.frequency_penalty,
            presence_penalty=s.presence_penalty,
            min_new_tokens=s.min_new_tokens,
            forbidden=self.forbidden,
            prompt_len=self.prompt_len,
            prompt_ids=self.ids[: 4 * self.prompt_len] if looks_at_prompt else b"",
            output_ids=pack_ids(self.output) if penalty else b"",
            logprobs=self.logprobs is not None,
            logprob_start=start,
            top_logprobs=top,
        )

    def reusable_ids(self) -> bytes:
        """The tokens of `ids` whose KV may come from the cache. The last is always computed again: its logits are
        wanted; and so are those from the token before the first prompt token whose log-probability is."""
        if self.logprobs and self.logprobs.start < self.prompt_len:
            return self.ids[: 4 * max(self.logprobs.start - 1, 0)]
        return self.ids[:-4]

    def take_logprobs(self, logprobs: TurnLogprobs) -> None:
        """Keep what a turn gave for this request's row until its next chunk."""
        if self.row in logprobs.input:
            self.input_parts.append(logprobs.input[self.row])
        if self.row in logprobs.output:
            self.output_parts.append(logprobs.output[self.row])

    def absorb_output(self) -> None:
        """After a retraction: what was produced is prefilled with the prompt next time. The log-probabilities of the
        prompt are there, as it had been computed to its end."""
        self.ids = self.ids[: 4 * self.prompt_len] + pack_ids(self.output)
        if self.logprobs:
            self.logprobs = LogprobParams(self.prompt_len, self.logprobs.top)

    def ids_with_kv(self) -> bytes:
        """int32 [kv_len]. The token sampled last has no KV before it is fed in the next turn."""
        ids = self.ids if 4 * self.kv_len <= len(self.ids) else self.ids[: 4 * self.prompt_len] + pack_ids(self.output)
        return ids[: 4 * self.kv_len]

    def chunk(self, finish: FinishReason | None = None) -> TokenChunk:
        """The tokens since the last chunk."""
        chunk = TokenChunk(self.rid, self.output[self.sent :], finish, self.prompt_len, self.cached or 0)
        if not self.chunked:
            chunk.stop = self.sampling.stop
            chunk.skip_special_tokens = self.sampling.skip_special_tokens
        if self.logprobs:
            chunk.output_logprobs = TokenLogprobs.join(self.output_parts)
            chunk.input_logprobs = TokenLogprobs.join(self.input_parts) if self.input_parts else None
            self.output_parts, self.input_parts = [], []
        self.chunked = True
        self.sent = len(self.output)
        return chunk


def _first_token(ids: bytes, top: int) -> TokenLogprobs:
    """Of a prompt's first token, which nothing predicts."""
    return TokenLogprobs(ids[:4], np.full(1, np.nan).tobytes(), pack_ids([0] * top), np.full(top, np.nan).tobytes())


def finish_reason(state: RequestState, decode_text: Callable[[list[int], bool], str] | None) -> FinishReason | None:
    """Whether the token appended last ends the request. A stop goes before the length, as in OpenAI's API: that the
    last token allowed is also an end of text is news, that it is the last is not."""
    token = state.output[-1]
    if token in state.stop_ids:
        return FinishReason("stop", token)
    if state.sampling.stop:
        tail = decode_text(state.output[-state.stop_window :], state.sampling.skip_special_tokens)
        found = find_stop(tail, state.sampling.stop)
        if found is not None:
            return FinishReason("stop", found[1])
    if state.remaining == 0:
        return FinishReason("length")
    return None
