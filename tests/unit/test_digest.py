import msgspec
import pytest

from common.batch import BatchPlan, PrefillSeq, RowSampling
from common.digest import PlanDigest
from common.messages import pack_ids

SAMPLING = RowSampling(0.5, 0.9, 20, 42)
SEQ = PrefillSeq(1, 2, pack_ids([5, 6]), pack_ids([7, 8]), pack_ids([3, 4]), SAMPLING, True)
PREFILL = BatchPlan(1, [SEQ])
DECODE = BatchPlan(1, [], pack_ids([0, 1]), pack_ids([9, 8]))


def digest(*plans: BatchPlan) -> int:
    d = PlanDigest()
    for plan in plans:
        d.update(plan)
    return d.value


def test_equal_plans_give_equal_digests_and_any_order_counts():
    assert digest(PREFILL, DECODE) == digest(msgspec.structs.replace(PREFILL), DECODE)
    assert digest(PREFILL, DECODE) != digest(DECODE, PREFILL)
    assert 0 <= digest(PREFILL) < 2**64


def test_the_value_is_known_forever():
    """A change of hash or encoding makes old and new ranks disagree: it must be meant."""
    assert digest() == int.from_bytes(bytes.fromhex("e4a6a0577479b2b4"), "big")


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(PREFILL, prefill=[msgspec.structs.replace(SEQ, **change)])
        for change in (
            {"row": 2},
            {"start": 1},
            {"input_ids": pack_ids([5, 7])},
            {"new_slots": pack_ids([7, 9])},
            {"prefix_slots": b""},
            {"sampling": None},
            {"sampling": RowSampling(0.5, 0.9, 20, 43)},
            {"sample": False},
        )
    ]
    + [
        msgspec.structs.replace(PREFILL, turn=2),
        msgspec.structs.replace(PREFILL, decode_rows=pack_ids([0])),
        msgspec.structs.replace(PREFILL, decode_slots=pack_ids([0])),
        msgspec.structs.replace(PREFILL, prefill=[SEQ, SEQ]),
    ],
)
def test_every_field_counts(other):
    assert digest(other) != digest(PREFILL)
