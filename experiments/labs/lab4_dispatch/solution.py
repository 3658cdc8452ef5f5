"""Lab 4: your dispatchers. The handout is README.md; the tests call this through adapters.py.

All three classes have the same interface (`fleet.Rule`): `pick(request)` says which replica gets a request,
`finished(replica, rids)` that requests ended there, `lose(replica)` that a replica is no more.
"""

from __future__ import annotations

from collections.abc import Callable

from common.messages import GenerateRequest, Request

from .fleet import Rule
from .messages import Finished

# ---------------------------------------------------------------------- 1: the tie bug


def backlog_counts(requests: int, per_step: int, replicas: int) -> list[int]:
    """How many of `requests` each replica gets from the queue rule of 2024 (`common.dispatch.BacklogDispatcher`,
    "shortest_queue"), if all replicas drain their queues after every `per_step` requests.

    A prediction: count, do not simulate.
    """
    raise NotImplementedError("lab4 task 4a: predict what the queue rule gives each replica")


class RotatingBacklog:
    """The rule of 2024 with its ties settled in rotation."""

    def __init__(self, replicas: int, backlogs: Callable[[], list[int]]) -> None:
        """backlogs(): requests that each replica has been sent and has not taken in yet."""
        self._replicas = replicas
        self._backlogs = backlogs

    def pick(self, request: GenerateRequest) -> int:
        """Of the replicas that are left, one with the least backlog; of equal ones the first in rotation, which begins
        behind the replica that was picked last (at first with 0)."""
        raise NotImplementedError("lab4 task 4b: settle ties in rotation")

    def finished(self, replica: int, rids: list[str]) -> None:
        """What has ended is not looked at."""

    def lose(self, replica: int) -> None:
        """It is no more, and is not picked again."""
        raise NotImplementedError("lab4 task 4b: do not pick a lost replica again")


# ---------------------------------------------------------------------- 2: outstanding work


class OutstandingTokens:
    """The replica with the fewest outstanding tokens; ties in rotation, as above.

    A request counts as its prompt tokens and its max_new_tokens, from when it is dispatched until it ends.
    `outstanding` is a list of the sums, one per replica.
    """

    def __init__(self, replicas: int) -> None:
        self.outstanding = [0] * replicas

    def pick(self, request: GenerateRequest) -> int:
        raise NotImplementedError("lab4 task 4c: dispatch by outstanding tokens")

    def finished(self, replica: int, rids: list[str]) -> None:
        """Reports of a replica that was lost may still come."""
        raise NotImplementedError("lab4 task 4c: take off what has ended")

    def lose(self, replica: int) -> None:
        raise NotImplementedError("lab4 task 4c: do not pick a lost replica again")


def controller_turn(
    dispatcher: Rule,
    reports: list[Finished],
    messages: list[Request],
    send: Callable[[int, Request], None],
    alive: list[int],
) -> bool:
    """One turn of the data-parallel controller (`evolution/peer_schedulers/data_parallel_controller.py` has another).

    reports: what ended since the last turn; messages: what the main process sent since then; either may be empty.
    send(replica, message) puts a message into the socket of one replica; alive: the replicas that are left.

    A request goes to the one replica that the dispatcher picks, any other message to every replica that is left, all in
    the order in which they came. The dispatcher must know of what has ended before it picks. Returns whether the loop
    goes on: not after a StopRequest, and nothing is sent behind that. It never waits.
    """
    raise NotImplementedError("lab4 task 4d: one turn of the controller")


# ---------------------------------------------------------------------- 3: prefix-aware


class PrefixAware:
    """A request goes where the longest prefix of it is believed to be cached, unless that replica has too much to do.

    For each replica the dispatcher keeps a mirror of its radix cache: a `RadixCache` of its own, of the prompts that it
    sent there. The mirror holds token ids; its slots mean nothing.
    """

    def __init__(self, replicas: int, capacity: int, imbalance: int) -> None:
        """capacity: most tokens in a mirror, as many as a replica's KV pool. imbalance: in tokens."""
        raise NotImplementedError("lab4 task 4e: keep a mirror of each replica's cache")

    @property
    def known_tokens(self) -> list[int]:
        """Tokens in the mirror of each replica."""
        raise NotImplementedError("lab4 task 4f: keep the mirrors within their capacity")

    def pick(self, request: GenerateRequest) -> int:
        """4e. Of the replicas that are left, those whose mirror holds the longest prefix of the prompt; of these the
        one with the fewest outstanding tokens; ties in rotation. A prefix shorter than half of the prompt counts as
        none, and then all that are left are looked at. Either way the prompt is in that replica's mirror from now on.

        4f. If the most and the fewest outstanding tokens (of the replicas that are left, without this request) differ
        by more than `imbalance`, the mirrors are not asked. And a mirror never keeps more than `capacity` tokens: the
        least recently used go first.
        """
        raise NotImplementedError("lab4 task 4e: send a request where its prefix is")

    def finished(self, replica: int, rids: list[str]) -> None:
        raise NotImplementedError("lab4 task 4e: take off what has ended")

    def lose(self, replica: int) -> None:
        raise NotImplementedError("lab4 task 4e: do not pick a lost replica again")
