"""A broadcast of bytes over a gloo group: the length first, then the content; a single 0 when there is nothing.

So since 0.2.0. The receiver of `dist.broadcast` must hold a tensor of the right size, so it has to be told the length
before the content. gloo's broadcast is lock-step: nobody runs ahead of the slowest.

What changed is the encoding of the content. Until 0.3.2 the pickle became a Python list of ints, one for each byte, and
that a tensor; from 0.3.3 it is read as a buffer: 325 ms became 4.7 for 4 MiB at T=2. Here it is msgpack, in one buffer.
"""

from __future__ import annotations

import pickle
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from common.processes import PeerLost
from common.tracing import NO_TRACE, NoTrace, Trace


class Encoding(Protocol):
    pickles: int  # that encoding a message makes
    copies: int  # of the whole content, on the sender's side, beside the encoder's own output

    def encode(self, message: Any) -> torch.Tensor:
        """uint8 [length]"""

    def decode(self, content: torch.Tensor) -> Any: ...


class Msgpack:
    """Typed, and not copied: the tensor shares the encoder's buffer."""

    pickles = copies = 0

    def __init__(self, message_type: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(message_type)

    def encode(self, message: Any) -> torch.Tensor:
        content = bytearray()
        self._encoder.encode_into(message, content)
        return torch.frombuffer(content, dtype=torch.uint8)

    def decode(self, content: torch.Tensor) -> Any:
        return self._decoder.decode(content.numpy())


class ListOfInts:
    """0.2.0 to 0.3.2: each byte of the pickle becomes a Python int and back, on every rank."""

    pickles, copies = 1, 2

    def encode(self, message: Any) -> torch.Tensor:
        return torch.ByteTensor(list(pickle.dumps(message)))

    def decode(self, content: torch.Tensor) -> Any:
        return pickle.loads(bytes(content.tolist()))


class NumpyBuffer:
    """0.3.3 to 0.4.0: the pickle seen as an array."""

    pickles = copies = 1

    def encode(self, message: Any) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(pickle.dumps(message), dtype=np.uint8).copy())

    def decode(self, content: torch.Tensor) -> Any:
        return pickle.loads(content.numpy().tobytes())


def make_encoding(name: str, message_type: Any) -> Encoding:
    if name == "list of ints":
        return ListOfInts()
    return NumpyBuffer() if name == "numpy buffer" else Msgpack(message_type)


class MessageBroadcast:
    """Rank 0 sends, the others receive, messages of one type. All ranks call it each turn.

    It counts in `counts`: "broadcasts" (collectives), and those of them that were "empty_broadcasts" (a single 0).
    """

    def __init__(
        self, group: dist.ProcessGroup, encoding: Encoding, counts: dict[str, int], trace: Trace | NoTrace = NO_TRACE
    ) -> None:
        self._group = group
        self._encoding = encoding
        self._counts = counts
        self._trace = trace
        self._receivers = dist.get_world_size(group) - 1
        counts |= {"broadcasts": 0, "empty_broadcasts": 0}

    def send(self, message: Any) -> None:
        """Rank 0. An empty list costs one broadcast of a single 0; anything else two."""
        if message == []:
            self._trace.part("transport")
            self._counts["empty_broadcasts"] += 1
            self._send(torch.tensor([0]))
            return
        self._trace.part("encode")
        content = self._encoding.encode(message)
        self._trace.count("copies", self._encoding.copies)
        self._trace.part("transport")
        self._send(torch.tensor([len(content)]))
        self._send(content, self._encoding.pickles)

    def _send(self, tensor: torch.Tensor, pickles: int = 0) -> None:
        """Counted here, at the sending end, for every rank that receives it."""
        self._trace.sent(self._receivers, self._receivers * tensor.nbytes, pickles)
        self._trace.count("collectives", 1)
        self._broadcast(tensor)

    def receive(self, idle: bool = False) -> Any:
        """The other ranks; blocks until rank 0 sends. The single 0 is an empty list. idle: there is nothing to do
        until then, so that the wait is not the broadcast's."""
        self._trace.part("idle" if idle else "transport")
        length = torch.empty(1, dtype=torch.int64)
        self._broadcast(length)
        if not length.item():
            return []
        content = torch.empty(length.item(), dtype=torch.uint8)
        self._trace.part("transport")
        self._broadcast(content)
        self._trace.part("decode")
        return self._encoding.decode(content)

    def _broadcast(self, tensor: torch.Tensor) -> None:
        self._counts["broadcasts"] += 1
        try:
            dist.broadcast(tensor, src=0, group=self._group)
        except RuntimeError as error:  # gloo has no type of its own for a connection that broke
            raise PeerLost(f"the broadcast failed: {error}") from error
