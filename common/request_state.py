"""RequestState: what the scheduler knows of one request, and when a request ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from common.batch import RowSampling
from common.messages import FinishReason, GenerateRequest, SamplingParams, TokenChunk, pack_ids
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

    @classmethod
    def of(cls, request: GenerateRequest, max_new: int, eos_token_ids: tuple[int, ...]) -> RequestState:
        sampling = request.sampling
        stop_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else set(eos_token_ids))
        longest = max((len(stop.encode()) for stop in sampling.stop), default=0)
        return cls(
            rid=request.rid,
            prompt_len=len(request.input_ids) // 4,
            ids=request.input_ids,
            max_new=max_new,
            stream=request.stream,
            sampling=sampling,
            stop_ids=stop_ids,
            # A token of text has at least one byte. One token more, as some decoders strip the first space. (Special
            # tokens without text, which ignore_eos lets through, shorten the reach.)
            stop_window=longest + 1,
        )

    @property
    def remaining(self) -> int:
        """Tokens that it may still produce."""
        return self.max_new - len(self.output)

    @property
    def to_prefill(self) -> int:
        """Tokens of `ids` that have no KV yet."""
        return len(self.ids) // 4 - self.kv_len

    def row_sampling(self) -> RowSampling:
        s = self.sampling
        return RowSampling(s.temperature, s.top_p, s.top_k, s.seed)

    def absorb_output(self) -> None:
        """After a retraction: what was produced is prefilled with the prompt next time."""
        self.ids = self.ids[: 4 * self.prompt_len] + pack_ids(self.output)

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
        self.chunked = True
        self.sent = len(self.output)
        return chunk


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
