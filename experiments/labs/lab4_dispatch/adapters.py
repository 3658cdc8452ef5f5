"""What the tests, and `stage.py`, call. Everything here comes from your `solution.py`."""

from __future__ import annotations

from collections.abc import Callable

from common.messages import Request

from . import solution
from .fleet import Rule
from .messages import Finished


def backlog_counts(requests: int, per_step: int, replicas: int) -> list[int]:
    return solution.backlog_counts(requests, per_step, replicas)


def rotating_backlog(replicas: int, backlogs: Callable[[], list[int]]) -> Rule:
    return solution.RotatingBacklog(replicas, backlogs)


def outstanding_tokens(replicas: int) -> Rule:
    return solution.OutstandingTokens(replicas)


def outstanding_of(rule: Rule) -> list[int]:
    """Tokens that each replica has been given and has not finished."""
    return list(rule.outstanding)


def controller_turn(
    dispatcher: Rule,
    reports: list[Finished],
    messages: list[Request],
    send: Callable[[int, Request], None],
    alive: list[int],
) -> bool:
    return solution.controller_turn(dispatcher, reports, messages, send, alive)


def prefix_aware(replicas: int, capacity: int, imbalance: int) -> Rule:
    return solution.PrefixAware(replicas, capacity, imbalance)


def known_tokens(rule: Rule) -> list[int]:
    """Tokens that the rule believes to be in each replica's cache."""
    return list(rule.known_tokens)


def make_rule(name: str, replicas: int, pool: int) -> Rule:
    """For the real controller."""
    if name == "outstanding":
        return outstanding_tokens(replicas)
    return prefix_aware(replicas, capacity=pool, imbalance=pool // 4)
