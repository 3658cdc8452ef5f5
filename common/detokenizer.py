"""From token batches to text batches, incrementally: the work per token does not grow with the output.

A token's text depends on its neighbours: one character may be spread over up to four tokens, and a metaspace
tokenizer (Llama 2) drops the space before the first token it is given. So a token is decoded behind a short context,
the tokens whose text went out last, and what the context alone decodes to is taken off (SGLang's surrounding and
read offsets, since 0.2.0):

```
 window:   | context: sent        | pending: not sent, or in part |
 decode:   | base                 | fresh                         |
```

Guarantees, for any way of cutting an output into chunks:
1. The chunks' text joined is the decode of the whole output, up to the stop string.
2. Nothing that was sent is taken back or sent twice.
3. A U+FFFD that only means "this character is not complete yet" is never sent before the finish.
4. No character of a matched stop string, and nothing behind it, is sent.

One decoder cannot keep 1: byte fallback turns a whole run of byte tokens into U+FFFD once a later byte is invalid.
Characters that were complete before that byte stay as they were sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from common.messages import TextBatch, TextChunk, TokenBatch, TokenChunk
from common.stop import held_back

Decode = Callable[[list[int], bool], str]

REPLACEMENT = "\ufffd"
# An incomplete character has at most 3 of its 4 bytes. Byte-level decoding shows it as one U+FFFD, byte fallback as
# one per byte.
INCOMPLETE = 3
# Pending tokens kept when a run of invalid bytes is cut. One U+FFFD stands for at most 3 bytes, so 16 tokens decode to
# more of them than an incomplete character has, and what the border cuts is settled.
KEPT = 16
REMEMBERED = 4096


def certain_length(text: str) -> int:
    """The characters that later tokens cannot change: all but a tail that may be an incomplete character."""
    tail = text[-INCOMPLETE:]
    return len(text) - len(tail) + len(tail.rstrip(REPLACEMENT))


class TokenText:
    """The text of one growing token sequence. `decode` takes token ids."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self.decode = decode
        self.context: list[int] = []
        self.pending: list[int] = []
        self.base = ""
        self.fresh = ""
        self.sent = 0  # characters of `fresh`

    def push(self, token: int) -> str:
        """The text that became certain with this token."""
        self.pending.append(token)
        before, self.fresh = len(self.fresh), self._fresh_text()
        # Less text than before: byte fallback has put bytes together, and be it to a U+FFFD that the model spelt out.
        completed = len(self.fresh) < before
        certain = len(self.fresh) if completed else certain_length(self.fresh)
        new = self.fresh[self.sent : certain]
        self.sent = max(self.sent, certain)
        if certain == len(self.fresh):
            self._start_behind(self.pending)
        elif len(self.pending) >= 2 * KEPT:
            self._cut_pending()
        return new

    def rest(self) -> str:
        """What is left when no token follows: an incomplete or invalid tail, as decode gives it."""
        return self.fresh[self.sent :]

    def _fresh_text(self) -> str:
        text = self.decode(self.context + self.pending)
        fresh = text[len(self.base) :]
        # Byte fallback shows a run of bytes as U+FFFD, the context's too, as long as its last character is incomplete.
        if not text.startswith(self.base) or not fresh.strip(REPLACEMENT):
            return self.decode(self.pending)
        return fresh

    def _start_behind(self, context: list[int]) -> None:
        self.context, self.pending = context, []
        self.base, self.fresh, self.sent = self.decode(context), "", 0

    def _cut_pending(self) -> None:
        """Move a long run of invalid bytes into the context, up to a border that no character crosses.

        Both sides of it decode alone to what they are together. Where they do not, the next token moves the border on.
        """
        context, pending = self.pending[:-KEPT], self.pending[-KEPT:]
        base, fresh = self.decode(context), self.decode(pending)
        if self.fresh.endswith(base + fresh):
            unsent = len(self.fresh) - self.sent
            self.context, self.pending = context, pending
            self.base, self.fresh, self.sent = base, fresh, len(fresh) - unsent


@dataclass
class RequestState:
    text: TokenText
    stop: tuple[str, ...]
    skip_special_tokens: bool
    held: str = ""  # certain, but may be the start of a stop string


@dataclass
class IncrementalDetokenizer:
    """`process` is the whole interface. `decode(ids, skip_special_tokens)` is the tokenizer's.

    State is kept per request id, from its first chunk to its finish.
    """

    decode: Decode
    states: dict[str, RequestState] = field(default_factory=dict)
    finished: dict[str, None] = field(default_factory=dict)  # the last REMEMBERED request ids, oldest first
    silent: dict[tuple[int, bool], bool] = field(default_factory=dict)

    def process(self, batch: TokenBatch) -> TextBatch:
        """One text chunk per token chunk, in order.

        Raises ValueError for a chunk of a request that has finished: request ids are not used twice.
        """
        return TextBatch(batch.replica, [self._process_chunk(chunk) for chunk in batch.chunks])

    def _process_chunk(self, chunk: TokenChunk) -> TextChunk:
        state = self.states.get(chunk.rid) or self._first_chunk(chunk)
        finish = chunk.finish
        ids = chunk.new_ids
        if finish is not None and isinstance(finish.matched, int):
            ids = ids[:-1]  # an eos or stop token belongs to the ids, not to the text (as in SGLang)
        text = state.held + "".join(
            state.text.push(token) for token in ids if not self._is_silent(token, state.skip_special_tokens)
        )
        if finish is None:
            border = len(text) - held_back(text, state.stop)
            text, state.held = text[:border], text[border:]
        else:
            self._forget(chunk.rid)
            if finish.type != "abort":
                text += state.text.rest()
            if isinstance(finish.matched, str):
                text = text.partition(finish.matched)[0]
        return TextChunk(
            chunk.rid,
            text,
            chunk.new_ids,
            finish,
            chunk.prompt_tokens,
            chunk.cached_tokens,
            chunk.input_logprobs,
            chunk.output_logprobs,
        )

    def _first_chunk(self, chunk: TokenChunk) -> RequestState:
        if chunk.rid in self.finished:
            raise ValueError(
                f"request {chunk.rid} has finished, yet the scheduler sent {len(chunk.new_ids)} more tokens"
            )
        skip = chunk.skip_special_tokens
        state = RequestState(TokenText(lambda ids: self.decode(ids, skip)), chunk.stop, skip)
        self.states[chunk.rid] = state
        return state

    def _forget(self, rid: str) -> None:
        del self.states[rid]
        self.finished[rid] = None
        if len(self.finished) > REMEMBERED:
            del self.finished[next(iter(self.finished))]

    def _is_silent(self, token: int, skip_special_tokens: bool) -> bool:
        """Whether a token adds no text wherever it stands, as a skipped special token does.

        Such tokens stay out of the window, which a model that repeats its eos token would fill. Decoded twice in a
        row, since a metaspace tokenizer drops the space that its first token is.
        """
        key = (token, skip_special_tokens)
        if key not in self.silent:
            self.silent[key] = self.decode([token, token], skip_special_tokens) == ""
        return self.silent[key]
