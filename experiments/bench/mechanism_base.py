"""What every mechanism of `bench mechanisms` has in common: a driver's end and a receiver's end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from common.channels import Channel
from common.messages import Request
from common.processes import ChildContext
from experiments.bench.mechanism_payloads import make_messages

Took = Callable[[list[Any]], None]  # tells the clock that this rank has the list


@dataclass(frozen=True)
class Place:
    """Where a mechanism is opened: `number` differs each time it is, so names below `folder` are never taken.

    codec: of mechanisms that leave it open, "msgpack" or "pickle"; steps: how many lists will be sent.
    """

    folder: str
    number: int
    ranks: int
    codec: str
    steps: int

    def path(self, name: object) -> str:
        return f"{self.folder}/{self.number}-{name}"

    def encoder(self) -> Callable[[Any], bytes]:
        return Channel("", codec=self.codec).encoder()

    def decoder(self) -> Callable[[bytes], list[Any]]:
        return Channel("", codec=self.codec).decoder(list[Request])


class Mechanism:
    """Made in the process that starts the others, and handed to the driver and to each receiver.

    Receivers are numbered from 0. Where receivers answer, they are all T ranks and the driver is a process beside
    them; elsewhere the driver is rank 0 and the receivers are the T-1 others.
    """

    name: ClassVar[str]
    what: ClassVar[str]
    answers: ClassVar[bool] = False
    carries_lists: ClassVar[bool] = True  # messages that are no Request can travel, pickled
    seconds_per_mib: ClassVar[float] = 0.003  # to a receiver, for the announcement only

    def __init__(self, most_receivers: int) -> None:
        pass

    @classmethod
    def receivers(cls, ranks: int) -> int:
        return ranks if cls.answers else ranks - 1

    # ------------------------------------------------------------------ a receiver's process

    def brings(self, index: int, payload: str) -> list[Any]:
        """What receiver `index` must have after a step with this payload."""
        return make_messages(payload)

    def listen(self, context: ChildContext, place: Place, index: int, took: Took) -> Any:
        """Before the driver connects; what is returned reaches it as one of `addresses`."""

    def serve(self) -> None:
        """Take `place.steps` lists, calling `took` with each, and close."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the driver's process

    async def connect(self, place: Place, addresses: list[Any]) -> None:
        raise NotImplementedError

    async def send(self, messages: list[Any]) -> None:
        """To every receiver; where they answer, until the answer is back."""
        raise NotImplementedError

    def close(self) -> None:
        pass
