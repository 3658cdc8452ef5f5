"""PlanDigest: one number for all the plans of a rank so far, so that ranks can tell whether they still agree."""

from __future__ import annotations

import hashlib

import msgspec

from common.batch import BatchPlan


class PlanDigest:
    """A running hash over every field of every plan. Equal plans give equal values in any process: it reads the
    msgpack bytes of a plan, which delimit themselves, and not Python's seeded `hash`."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._encoder = msgspec.msgpack.Encoder()

    def update(self, plan: BatchPlan) -> None:
        self._hash.update(self._encoder.encode(plan))

    @property
    def value(self) -> int:
        """The digest of the plans so far, 0 <= value < 2 ** 64."""
        return int.from_bytes(self._hash.copy().digest(), "big")
