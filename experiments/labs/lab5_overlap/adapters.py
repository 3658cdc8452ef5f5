"""What the tests, and `stage.py`, call. Everything here comes from your `solution.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.messages import Request, TurnOutput
from common.worker import Worker
from evolution.peer_schedulers.scheduler import PeerScheduler

from . import solution
from .harness import Executor


def token_map(size: int) -> Any:
    return solution.TokenMap(size)


def input_names(rows: int, token_map: Any) -> Any:
    return solution.InputNames(rows, token_map)


def forward_thread(execute: Callable, token_map: Any) -> Any:
    return solution.ForwardThread(execute, token_map)


def overlap_loop(
    worker: Worker,
    executor: Executor,
    recv: Callable[[], list[Request]],
    send: Callable[[TurnOutput], None],
) -> list[str]:
    """All four parts together, with a map as small as it may be. Who was computed one step too far."""
    rows = worker.scheduler.config.max_running_requests
    tokens = solution.TokenMap(2 * rows)
    forward = solution.ForwardThread(executor.execute, tokens)
    try:
        return solution.overlap_loop(worker, solution.InputNames(rows, tokens), forward, recv, send)
    finally:
        forward.stop()


def overlapped(events: list[tuple[str, int]]) -> tuple[int, int]:
    return solution.overlapped(events)


def event_loop(scheduler: PeerScheduler, executor: Executor) -> None:
    solution.event_loop(scheduler, executor)


def decode_rows_computed(lengths: list[int], overlap: bool) -> int:
    return solution.decode_rows_computed(lengths, overlap)
