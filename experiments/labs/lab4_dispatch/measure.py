"""The rules against each other, in virtual time: `python -m experiments.labs.lab4_dispatch.measure`. Half a minute.

Shares of the requests, then the 95th percentile of the virtual ms per output token, then (for the prompts that repeat)
how much of them was in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from . import adapters, fleet

REPLICAS, POOL = 4, 8192
WORKLOADS = {
    "1 in 8 is long, 5/s": lambda: fleet.one_in_eight_is_long(seed=1, count=100, per_second=5),
    "1 in 8 is long, 20/s": lambda: fleet.one_in_eight_is_long(seed=1, count=100, per_second=20),
    "1 in 8 is long, 100/s": lambda: fleet.one_in_eight_is_long(seed=1, count=100, per_second=100),
    "24 conversations": lambda: fleet.conversations(seed=1, count=24, rounds=8, per_second=40),
    "one hot prompt": lambda: fleet.one_hot_prompt(seed=1, count=160, per_second=60),
}
RULES: dict[str, Callable[[fleet.Fleet], fleet.Rule]] = {
    "round_robin": lambda one: fleet.RoundRobin(REPLICAS),
    "shortest_queue of 2024": lambda one: fleet.Backlog(REPLICAS, one.backlogs),
    "4b rotating": lambda one: adapters.rotating_backlog(REPLICAS, one.backlogs),
    "4c outstanding": lambda one: adapters.outstanding_tokens(REPLICAS),
    "4f prefix-aware": lambda one: adapters.prefix_aware(REPLICAS, POOL, POOL // 4),
    "4e with no bound": lambda one: adapters.prefix_aware(REPLICAS, POOL, 10**9),
}


def main() -> None:
    table = Table()
    for column in ("requests", "rule", "shares, %", "ms per token, 95%", "cached, %"):
        table.add_column(column)
    for name, make_arrivals in WORKLOADS.items():
        for rule, make_rule in RULES.items():
            one = fleet.Fleet(REPLICAS, POOL)
            try:
                taken = one.run(make_rule(one), make_arrivals())
            except NotImplementedError as error:
                table.add_row(name, rule, f"not written yet: {error}")
                continue
            shares = " ".join(f"{share * 100:.0f}" for share in taken.shares)
            table.add_row(name, rule, shares, f"{taken.p95:.0f}", f"{taken.cached * 100:.0f}")
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
