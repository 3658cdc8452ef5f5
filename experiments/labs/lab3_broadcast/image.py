"""Lab 3, part 4: a request with an image of 4 MB."""

from __future__ import annotations

import torch

from common.messages import Request


class BytesEncoding:
    """In the place of the list of ints of SGLang 0.2.0 to 0.3.2, see the handout.

    1. Typed: what is not an encoded list of Requests is refused with an exception. A pickle is never loaded, as loading
       one runs whatever code it holds.
    2. Of an image of n bytes, `encode` may hold 3 n at once beside the messages themselves, and `decode` 2 n beside the
       tensor.
    """

    def encode(self, messages: list[Request]) -> torch.Tensor:
        """uint8 [length]"""
        raise NotImplementedError("lab3 task 3f: messages to bytes")

    def decode(self, content: torch.Tensor) -> list[Request]:
        """content: uint8 [length], which may be written over afterwards."""
        raise NotImplementedError("lab3 task 3f: bytes to messages")


class KeptBuffer:
    """Memory to receive into that is kept from turn to turn, where `fresh_room` takes new memory for each message.

    It takes new memory only for a message that is larger than all before it, and never more than twice that length.
    """

    def __init__(self) -> None:
        pass

    def room(self, length: int) -> torch.Tensor:
        """uint8 [length]. The next call may give the same memory again."""
        raise NotImplementedError("lab3 task 3g: memory that is kept")
