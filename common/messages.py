"""What crosses a process boundary: one small class per edge of the process graph.

```
 main --Request--> [ the stage ] --TokenBatch--> detokenizer --TextBatch--> main
                        |
                        `--ControlReply, LoadReport--> main        (edge "control"; also Dispatched, ReplicaLost)
                        `--FinishedCount--> dispatcher             (only with data parallelism)
```

The classes are msgspec structs: typed when decoded, and free to be pickled where a stage's history asks for
pickle. How they are encoded is a property of the channel (`common.channels`), not of the message.

Token ids travel as `bytes` holding int32 in the machine's own order (`pack_ids`, `unpack_ids`): 16 requests of
512 ids encode in 2 us that way and in 104 us as pickled Python lists.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Union

import msgspec

if TYPE_CHECKING:
    import numpy as np


def pack_ids(ids) -> bytes:
    """Token ids or KV slots (any sequence of ints) as int32 bytes. OverflowError if one does not fit."""
    return array("i", ids).tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """The int32 array behind `pack_ids`; read-only, shares the memory of `data`."""
    import numpy as np  # here: main and the detokenizer start sooner without it, and never unpack

    return np.frombuffer(data, dtype=np.int32)


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one request is sampled; checked once, in the main process (`common.sampling_params`).

    temperature 0 is greedy; top_k -1 means the whole vocabulary; `seed` is resolved, never absent. min_new_tokens
    forbids the eos and stop token ids until so many tokens were produced; a stop string still ends the request before.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 42
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_new_tokens: int = 0


class LogprobParams(msgspec.Struct, frozen=True):
    """Which log-probabilities a request wants: those of its output tokens, and of its prompt tokens from `start` on
    (the prompt's length for none); with each the `top` most likely tokens."""

    start: int
    top: int


class ImageData(msgspec.Struct, frozen=True):
    """Opaque bytes that ride along with a request, and their hash: the engine never looks inside.

    They exist so that the cost of a large request can be studied (a 4 MB image took 325 ms to broadcast in 0.2.0).
    """

    data: bytes
    sha256: str


# ---------------------------------------------------------------- main -> stage


class GenerateRequest(msgspec.Struct, tag="generate", omit_defaults=True):
    rid: str
    input_ids: bytes
    sampling: SamplingParams
    stream: bool = False
    image: ImageData | None = None
    logprobs: LogprobParams | None = None


class AbortRequest(msgspec.Struct, tag="abort"):
    id: int
    rid: str


class FlushRequest(msgspec.Struct, tag="flush"):
    """Empty the radix cache; refused by a replica that has requests waiting or running."""

    id: int


class StatsRequest(msgspec.Struct, tag="stats"):
    id: int


class StopRequest(msgspec.Struct, tag="stop"):
    """Leave the loop. It travels in the same list as the requests, so all ranks leave at the same turn."""

    id: int


Request = Union[GenerateRequest, AbortRequest, FlushRequest, StatsRequest, StopRequest]


# ------------------------------------------------------ stage -> detokenizer -> main


class FinishReason(msgspec.Struct, frozen=True):
    """type: "length" (matched is None), "stop" (matched: the token id or the stop string) or "abort"."""

    type: str
    matched: Union[int, str, None] = None
    message: str = ""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of n successive tokens of a request, and of the k most likely tokens in each one's place.

    ids     int32 bytes [n]       values      float64 bytes [n], NaN for a prompt's first token
    top_ids int32 bytes [n * k]   top_values  float64 bytes [n * k], the most likely first
    """

    ids: bytes
    values: bytes
    top_ids: bytes = b""
    top_values: bytes = b""

    @classmethod
    def join(cls, parts: list[TokenLogprobs]) -> TokenLogprobs:
        """The parts in their order as one; there may be none."""
        return cls(*(b"".join(getattr(part, name) for part in parts) for name in cls.__struct_fields__))


class TokenChunk(msgspec.Struct, omit_defaults=True):
    """New tokens of one request. `finish` is set exactly once, in the last chunk of the request.

    `stop` and `skip_special_tokens` repeat what the request said, for the detokenizer, in its first chunk only.
    The log-probabilities are None unless asked for: those of new_ids, and of prompt tokens that were not sent before.
    """

    rid: str
    new_ids: list[int]
    finish: FinishReason | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    input_logprobs: TokenLogprobs | None = None
    output_logprobs: TokenLogprobs | None = None


class TokenBatch(msgspec.Struct):
    """`last`: this replica has left its loop and sends nothing more."""

    replica: int
    chunks: list[TokenChunk]
    last: bool = False


class TextChunk(msgspec.Struct, omit_defaults=True):
    """The text that became certain with these tokens. Joined over a request, `text` is the text of the whole."""

    rid: str
    text: str
    new_ids: list[int]
    finish: FinishReason | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    input_logprobs: TokenLogprobs | None = None
    output_logprobs: TokenLogprobs | None = None


class TextBatch(msgspec.Struct):
    replica: int
    chunks: list[TextChunk]
    last: bool = False


# ----------------------------------------------------------------- control edge


class ControlReply(msgspec.Struct, tag="reply"):
    """Exactly one per control message and replica, from that replica's rank 0."""

    id: int
    replica: int
    ok: bool
    detail: dict[str, Union[int, float, str]] = {}


class LoadReport(msgspec.Struct, tag="load"):
    """Load and cache figures of one replica, at most every 100 ms. Token counts are KV slots."""

    replica: int
    waiting: int
    running: int
    free_tokens: int
    evictable_tokens: int


class Dispatched(msgspec.Struct, tag="dispatched"):
    """With `--on-replica-failure degrade`, from the dispatcher: these requests went to this replica."""

    replica: int
    rids: list[str]


class ReplicaLost(msgspec.Struct, tag="lost"):
    """With `--on-replica-failure degrade`, from the dispatcher, after every Dispatched of that replica: it is no more,
    and gets no further request. cause: the process that failed first, and why."""

    replica: int
    cause: str


ControlOut = Union[ControlReply, LoadReport, Dispatched, ReplicaLost]


class FinishedCount(msgspec.Struct):
    """Replica -> dispatcher: so many requests ended since the last one, so that outstanding work can be counted."""

    replica: int
    count: int


# ------------------------------------------------------------ worker -> its loop (rpyc: rank 0 -> router)


class TurnOutput(msgspec.Struct, tag="output"):
    """What a turn gave, for rank 0 to send: `tokens` to the detokenizer, `control` to main.

    finished: requests that ended since the last output; busy: requests still wait or run; stop: leave the loop.
    """

    tokens: TokenBatch | None
    control: list[ControlOut]
    finished: int
    busy: bool
    stop: bool
