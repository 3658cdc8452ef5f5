"""A model runner without a model, for tests of the scheduler: what it samples depends on every token before it.

The "KV" of a token is a hash of the "KV" of the token before it and of the token's id, kept per slot; the next token
is a function of the seed, the position and the last KV. So a slot that is overwritten, lost or mixed up changes what
comes out, and `expected_tokens` says what should.
"""

from __future__ import annotations

import numpy as np

from common.batch import BatchPlan, RowSampling
from common.messages import GenerateRequest, TokenChunk, unpack_ids
from common.scheduler import Scheduler

VOCAB = 50
EOS = 7
MASK = (1 << 61) - 1


def kv_of(before: int, token: int) -> int:
    return (before * 6364136223846793005 + token * 1442695040888963407 + 97) & MASK


def sample(seed: int, position: int, kv: int) -> int:
    return (kv_of(kv ^ seed, position) >> 23) % VOCAB


def expected_tokens(request: GenerateRequest, max_new: int) -> list[int]:
    """What the request produces when it runs alone, from prompt tokens to its stop or its length."""
    kv = 0
    tokens = unpack_ids(request.input_ids).tolist()
    for token in tokens:
        kv = kv_of(kv, token)
    stop_ids = set(request.sampling.stop_token_ids) | (set() if request.sampling.ignore_eos else {EOS})
    output: list[int] = []
    while len(output) < max_new and not (output and output[-1] in stop_ids):
        output.append(sample(request.sampling.seed, len(tokens) + len(output), kv))
        kv = kv_of(kv, output[-1])
    return output


class Row:
    def __init__(self, slots: list[int], kvs: list[int], sampling: RowSampling) -> None:
        self.slots = slots
        self.kvs = kvs  # the KV that was in slots[i] when it was written or taken over
        self.sampling = sampling
        self.last = 0

    def feed(self, pool: dict[int, int], token: int, slot: int) -> None:
        self.kvs.append(kv_of(self.kvs[-1] if self.kvs else 0, token))
        self.slots.append(slot)
        pool[slot] = self.kvs[-1]

    def next_token(self) -> int:
        self.last = sample(self.sampling.seed, len(self.slots), self.kvs[-1])
        return self.last


class FakeExecutor:
    def __init__(self) -> None:
        self.pool: dict[int, int] = {}
        self.rows: dict[int, Row] = {}

    def execute(self, plan: BatchPlan) -> np.ndarray:
        tokens = []
        for seq in plan.prefill:
            if seq.sampling is not None:
                prefix = unpack_ids(seq.prefix_slots).tolist()
                assert len(prefix) == seq.start
                self.rows[seq.row] = Row(prefix, [self.pool[slot] for slot in prefix], seq.sampling)
            row = self.rows[seq.row]
            ids, slots = unpack_ids(seq.input_ids).tolist(), unpack_ids(seq.new_slots).tolist()
            assert len(row.slots) == seq.start
            assert len(ids) == len(slots) > 0
            for token, slot in zip(ids, slots, strict=True):
                row.feed(self.pool, token, slot)
            if seq.sample:
                tokens.append(row.next_token())
        rows, slots = unpack_ids(plan.decode_rows).tolist(), unpack_ids(plan.decode_slots).tolist()
        assert len(set(rows)) == len(rows) == len(slots)
        for r, slot in zip(rows, slots, strict=True):
            self.rows[r].feed(self.pool, self.rows[r].last, slot)
            tokens.append(self.rows[r].next_token())
        self._check_rows(rows + [seq.row for seq in plan.prefill])
        return np.array(tokens, dtype=np.int32)

    def _check_rows(self, rows: list[int]) -> None:
        """Nobody has written into a slot that these rows read."""
        for r in rows:
            row = self.rows[r]
            assert [self.pool[slot] for slot in row.slots] == row.kvs


def admitted(scheduler: Scheduler) -> list:
    return [state for state in scheduler._states.values() if state.row is not None]


def tree_nodes(scheduler: Scheduler) -> list:
    nodes, todo = [], list(scheduler.kv.tree.root.children.values()) if scheduler.kv.tree else []
    while todo:
        nodes.append(todo.pop())
        todo += nodes[-1].children.values()
    return nodes


def check_accounts(scheduler: Scheduler) -> None:
    """Each slot is free, the tree's, one request's own, or late, and exactly one of these; locks are what requests
    hold."""
    pool, tree = scheduler.kv.pool, scheduler.kv.tree
    states = admitted(scheduler)
    owned = [state.slots[state.tree_len : state.kv_len] for state in states]
    nodes = tree_nodes(scheduler)
    late = np.array(scheduler.kv._late, dtype=np.int32)
    everything = np.concatenate([pool._stack[: pool.available], late, *owned, *(node.slots for node in nodes)])
    assert sorted(everything.tolist()) == list(range(pool.size))
    rows = [state.row for state in states] + list(scheduler._free_rows)
    assert sorted(rows) == list(range(scheduler.config.max_running_requests))
    if tree is None:
        return
    assert pool.available + tree.total + sum(map(len, owned)) + len(late) == pool.size
    assert all(node.lock_ref >= sum(child.lock_ref for child in node.children.values()) >= 0 for node in nodes)
    assert tree.protected_size == sum(len(node.slots) for node in nodes if node.lock_ref)
    assert sum(node.lock_ref for node in tree.root.children.values()) == sum(state.tree_len > 0 for state in states)
    for state in states:
        known, _ = tree.match_prefix(state.ids_with_kv()[: 4 * state.tree_len])
        assert known.tolist() == state.slots[: state.tree_len].tolist()


def take_turn(scheduler: Scheduler, executor: FakeExecutor) -> BatchPlan | None:
    plan = scheduler.plan()
    if plan is not None:
        scheduler.commit(plan, executor.execute(plan))
    return plan


def run_dry(scheduler: Scheduler, executor: FakeExecutor, most_turns: int = 20000) -> list[BatchPlan]:
    """Turns until there is nothing to do."""
    plans: list[BatchPlan] = []
    while plan := take_turn(scheduler, executor):
        plans.append(plan)
        assert len(plans) < most_turns, "the scheduler makes no progress"
    return plans


class Collected:
    """The chunks of many requests, checked on the way in: one finish each, nothing after it."""

    def __init__(self) -> None:
        self.ids: dict[str, list[int]] = {}
        self.chunks: dict[str, list[TokenChunk]] = {}

    def take(self, scheduler: Scheduler) -> None:
        for chunk in scheduler.take_chunks():
            chunks = self.chunks.setdefault(chunk.rid, [])
            assert not chunks or chunks[-1].finish is None, "a chunk after the finish"
            chunks.append(chunk)
            self.ids.setdefault(chunk.rid, []).extend(chunk.new_ids)

    def finish(self, rid: str):
        return self.chunks[rid][-1].finish
