"""Lab 5: your overlap loop. The handout is README.md; the tests call this through adapters.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from common.batch import BatchPlan, Sampled
from common.messages import Request, TurnOutput
from common.worker import Worker
from evolution.peer_schedulers.scheduler import PeerScheduler

from .harness import Executor
from .launch import Launch


class TokenMap:
    """Tokens by placeholder. A placeholder is a negative int32, so that it can stand where a token id would; ids begin
    at 0. Only the newest `size` placeholders count: an older one may be given again."""

    def __init__(self, size: int) -> None:
        raise NotImplementedError("lab5 task 5a: make room for `size` tokens")

    def reserve(self, n: int) -> np.ndarray:
        """n placeholders, int32 [n], all different from each other and from the last `size` - n that were given."""
        raise NotImplementedError("lab5 task 5a: give placeholders")

    def store(self, names: np.ndarray, tokens: np.ndarray) -> None:
        """The tokens (int32 [n]) that these placeholders (int32 [n]) stand for."""
        raise NotImplementedError("lab5 task 5a: keep tokens by their placeholders")

    def resolve(self, ids: np.ndarray) -> np.ndarray:
        """ids (int32 [n]) with the tokens in the placeholders' places; an array of its own."""
        raise NotImplementedError("lab5 task 5a: put tokens in the place of placeholders")


class InputNames:
    """On the scheduling thread: what the last token of each row is called, its id if that is known, else its
    placeholder."""

    def __init__(self, rows: int, token_map: TokenMap) -> None:
        raise NotImplementedError("lab5 task 5b: remember a name for each row")

    def launch(self, plan: BatchPlan) -> Launch:
        """Name what the plan's decode rows are fed, then give placeholders to what it samples."""
        raise NotImplementedError("lab5 task 5b: name the input ids of a plan")

    def commit(self, launch: Launch, ids: np.ndarray) -> None:
        """The tokens of that launch (int32, as it samples them) are known now. Up to one later launch has been named
        already. Afterwards no row is named by a placeholder of this launch: its place in the map will be given away."""
        raise NotImplementedError("lab5 task 5b: replace placeholders by ids that are known")


class ForwardThread:
    """Executes launches on a thread of its own, in the order in which they came."""

    def __init__(self, execute: Callable[[BatchPlan, np.ndarray], Sampled], token_map: TokenMap) -> None:
        """execute(plan, input_ids): one forward; input_ids must be known ids by then. Starts the thread."""
        raise NotImplementedError("lab5 task 5c: start a thread")

    def launch(self, launch: Launch) -> None:
        """Never blocks."""
        raise NotImplementedError("lab5 task 5c: hand a launch to the thread")

    def result(self) -> Sampled:
        """Of the oldest launch whose result was not taken yet; blocks until it is there. If its forward raised, this
        raises the same."""
        raise NotImplementedError("lab5 task 5c: wait for a result")

    def stop(self) -> None:
        """Returns when all that was launched is executed and the thread has ended."""
        raise NotImplementedError("lab5 task 5c: end the thread")


def overlap_loop(
    worker: Worker,
    names: InputNames,
    forward: ForwardThread,
    recv: Callable[[], list[Request]],
    send: Callable[[TurnOutput], None],
) -> list[str]:
    """5d: plan, launch, and process the turn before, until an output says stop.

    A turn of the loop calls recv() once, and send(worker.output()) once. recv() gives what has arrived; while the
    worker is not busy it may block. worker.plan_ahead(messages) plans the next turn while one before it may be open;
    with any message in it but GenerateRequests, no turn may be open: the open one is committed first. It returns None
    when there is nothing to run, or nothing before the open turn is committed. worker.commit(plan, sampled) takes in
    what a forward gave, in the order of the turns. At most one turn is open when plan_ahead is called.

    5g: returns the ids of the requests that were computed one step too far, in the order in which they ended (of one
    turn: in the order of the rows of the step too far). `harness.rows_of(worker)` says who has which row.
    """
    raise NotImplementedError("lab5 task 5d: plan the next turn while this one runs")


def overlapped(events: list[tuple[str, int]]) -> tuple[int, int]:
    """From what `harness.Watched` wrote down: of how many forwards the next turn was planned before they ended, and how
    many forwards there were. Turns are numbered from 1, without gaps."""
    raise NotImplementedError("lab5 task 5e: count what was overlapped")


def event_loop(scheduler: PeerScheduler, executor: Executor) -> None:
    """The loop of one rank of the peer stage, in place of `event_loop_normal`: put your parts together around
    scheduler.worker, scheduler.recv_requests and scheduler.send. Every rank runs it; only rank 0 has sockets, so only
    rank 0 sends. Rows: scheduler.worker.scheduler.config.max_running_requests. Nothing is left running at its end."""
    raise NotImplementedError("lab5 task 5f: run your loop in a rank of the peer stage")


def decode_rows_computed(lengths: list[int], overlap: bool) -> int:
    """A prediction: requests whose max_new_tokens are `lengths` (0 is allowed) arrive together, are prefilled in one
    turn, and are ended by their length alone. How many rows do all decode steps compute, together, in the normal loop
    and in the overlap loop?"""
    raise NotImplementedError("lab5 task 5g: predict how many rows are computed")
