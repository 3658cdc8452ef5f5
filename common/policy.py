"""The order in which waiting requests are considered for admission.

`fcfs`  as they came; retracted requests stand in front.
`lpm`   longest cached prefix first, so that what is in the cache is used before it is evicted; equal prefixes as
        they came. Each look matches every waiting prompt, so above 128 waiting requests lpm falls back to fcfs, as
        SGLang 0.4.0 did; and it is fcfs where no radix cache is kept (since 0.2.0).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from common.radix_cache import RadixCache
from common.request_state import RequestState

POLICIES = ("lpm", "fcfs")
LPM_MOST_WAITING = 128


def order_waiting(waiting: Collection[RequestState], policy: str, tree: RadixCache | None) -> Iterable[RequestState]:
    """`waiting` in the order of `policy`; `waiting` itself is not changed. lpm touches the prefixes that it finds."""
    if policy == "fcfs" or tree is None or len(waiting) > LPM_MOST_WAITING:
        return waiting
    return sorted(waiting, key=lambda state: -len(tree.match_prefix(state.ids)[0]))
