"""Lab 3, part 4: a request with an image of 4 MB."""

from __future__ import annotations

import msgspec
import torch

from common.messages import Request


class BytesEncoding:
    """In the place of `ListOfInts` (SGLang 0.2.0 to 0.3.2; see `common/parallel/broadcast.py`).

    1. Typed: what is not an encoded list of Requests is refused with an exception. A pickle is never loaded, as loading
       one runs whatever code it holds.
    2. Of an image of n bytes, `encode` may hold 3 n at once beside the messages themselves, and `decode` 2 n beside the
       tensor.
    """

    def __init__(self) -> None:
        self.encoder = msgspec.msgpack.Encoder()
        self.decoder = msgspec.msgpack.Decoder(list[Request])

    def encode(self, messages: list[Request]) -> torch.Tensor:
        """uint8 [length]"""
        buffer = bytearray()
        self.encoder.encode_into(messages, buffer)
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def decode(self, content: torch.Tensor) -> list[Request]:
        """content: uint8 [length], which may be written over afterwards."""
        return self.decoder.decode(memoryview(content.numpy()))


class KeptBuffer:
    """Memory to receive into that is kept from turn to turn, where `fresh_room` takes new memory for each message.

    It takes new memory only for a message that is larger than all before it, and never more than twice that length.
    """

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)

    def room(self, length: int) -> torch.Tensor:
        """uint8 [length]. The next call may give the same memory again."""
        if length > self.memory.numel():
            self.memory = torch.empty(length, dtype=torch.uint8)
        return self.memory[:length]
