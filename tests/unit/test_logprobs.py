"""Log-probabilities from the runner: right, and the same bits alone, in a batch, in chunks and after a prefix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from common.batch import BatchPlan, PrefillSeq, RowExtras, RowSampling, Sampled
from common.logprobs import token_logprobs
from common.messages import TokenLogprobs, pack_ids, unpack_ids
from common.models import tiny
from common.models.config import load_config
from common.parallel.collectives import SingleRank
from common.runner import LOGIT_TILE, ModelRunner
from tests.helpers.invariance import invariant
from tests.unit.test_penalties import extras

GREEDY = RowSampling(0.0, 1.0, -1, 0)
CONTEXT = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.build(folder)
    return folder


class Driver:
    """Writes plans for a runner: slot = row * CONTEXT + position."""

    def __init__(self, folder: Path) -> None:
        self.config = load_config(folder)
        sizes = {"max_running_requests": 8, "context_length": CONTEXT, "max_total_tokens": 8 * CONTEXT}
        self.runner = ModelRunner(self.config, SingleRank(), keep_logits=True, **sizes)

    def prefill(self, *parts: tuple, extras: list[RowExtras]) -> Sampled:
        """Each part is (row, ids of the whole prompt, start, end); the row's first chunk is the one from `first`."""
        seqs = []
        for row, ids, start, end, first in parts:
            slots = row * CONTEXT + np.arange(end)
            sampling = GREEDY if first else None
            prefix = pack_ids(slots[:start]) if first else b""
            last = end == len(ids)
            seqs.append(
                PrefillSeq(row, start, pack_ids(ids[start:end]), pack_ids(slots[start:]), prefix, sampling, last)
            )
        return self.runner.execute(BatchPlan(1, seqs, extras=extras))

    def decode(self, *rows: int) -> Sampled:
        slots = [row * CONTEXT + int(self.runner.lengths[row]) for row in rows]
        return self.runner.execute(BatchPlan(2, [], pack_ids(rows), pack_ids(slots)))


@pytest.fixture
def driver(folder: Path) -> Driver:
    return Driver(folder)


def prompt(driver: Driver, length: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, driver.config.vocab_size, length)


def wanting(row: int, ids: np.ndarray, start: int = 1, top: int = 3) -> RowExtras:
    return extras(ids, row=row, logprobs=True, logprob_start=start, top_logprobs=top)


def alone(driver: Driver, ids: np.ndarray, steps: int = 2, top: int = 3) -> tuple[TokenLogprobs, TokenLogprobs]:
    """Of the prompt but for its first token, and of 1 + steps tokens."""
    first = driver.prefill((0, ids, 0, len(ids), True), extras=[wanting(0, ids, top=top)])
    later = [driver.decode(0).logprobs.output[0] for _ in range(steps)]
    return first.logprobs.input[0], TokenLogprobs.join([first.logprobs.output[0], *later])


def test_they_are_the_log_softmax_of_the_logits() -> None:
    logits = np.random.RandomState(0).standard_normal((5, 700)).astype(np.float32) * 8
    ids = np.array([0, 699, 5, 5, int(logits[4].argmax())])
    got = token_logprobs(logits, ids, 4)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    np.testing.assert_allclose(np.frombuffer(got.values), expected[np.arange(5), ids], atol=1e-6, rtol=0)
    assert unpack_ids(got.ids).tolist() == ids.tolist()
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :4]
    assert unpack_ids(got.top_ids).reshape(5, 4).tolist() == order.tolist()
    top = np.take_along_axis(expected, order, -1)
    np.testing.assert_allclose(np.frombuffer(got.top_values).reshape(5, 4), top, atol=1e-6, rtol=0)
    assert token_logprobs(logits, ids, 0) == TokenLogprobs(got.ids, got.values)
    for i in range(5):  # a row's bits do not depend on the others
        assert token_logprobs(logits[i : i + 1], ids[i : i + 1], 0).values == got.values[8 * i : 8 * i + 8]


def test_prompt_and_output_come_from_the_logits_before_them(driver: Driver) -> None:
    ids = prompt(driver, LOGIT_TILE + 40)
    of_prompt, of_output = alone(driver, ids)
    assert unpack_ids(of_prompt.ids).tolist() == ids[1:].tolist()
    sequence = np.concatenate([ids, unpack_ids(of_output.ids)])
    values = np.concatenate([np.frombuffer(of_prompt.values), np.frombuffer(of_output.values)])
    for length in (1, 2, LOGIT_TILE, LOGIT_TILE + 1, len(ids) - 1, len(ids), len(ids) + 2):
        driver.prefill((1, sequence[:length], 0, length, True), extras=[])
        expected = torch.log_softmax(driver.runner.last_logits[0].double(), -1)[int(sequence[length])]
        assert values[length - 1] == pytest.approx(float(expected), abs=2e-5)


@invariant
def test_chunks_alone_in_their_turns_keep_theirs(driver: Driver) -> None:
    """No row samples in such a turn, and what predicts the prompt is wanted all the same."""
    ids = prompt(driver, 90)
    expected, _ = alone(driver, ids)
    parts = []
    for start, end in ((0, 40), (40, 64), (64, 90)):
        got = driver.prefill((3, ids, start, end, start == 0), extras=[wanting(3, ids)] if start == 0 else [])
        parts.append(got.logprobs.input[3])
    assert TokenLogprobs.join(parts) == expected


@invariant
@pytest.mark.parametrize("sizes", [[1, 132], [3, 64, 66], [50, 50, 33], [132, 1], [1] * 7 + [126]])
def test_the_same_bits_in_chunks_that_share_their_turns(driver: Driver, sizes: list[int]) -> None:
    ids = prompt(driver, 133)
    expected = alone(driver, ids)
    other = prompt(driver, 20, seed=7)
    of_prompt, start = [], 0
    for size in sizes:
        mine = (3, ids, start, start + size, start == 0)
        plans = [wanting(3, ids)] if start == 0 else []
        got = driver.prefill((2, other, 0, 20, True), mine, extras=plans + [wanting(2, other, start=5)])
        of_prompt += [got.logprobs.input[3]] if 3 in got.logprobs.input else []
        start += size
    of_output = [got.logprobs.output[3]] + [driver.decode(2, 3).logprobs.output[3] for _ in range(2)]
    assert (TokenLogprobs.join(of_prompt), TokenLogprobs.join(of_output)) == expected


@invariant
@pytest.mark.parametrize(("start", "cached"), [(1, 0), (60, 59), (60, 10), (132, 131)])
def test_the_same_bits_from_a_start_on_and_after_a_prefix(driver: Driver, start: int, cached: int) -> None:
    ids = prompt(driver, 133)
    of_prompt, of_output = alone(driver, ids, top=0)
    driver.prefill((4, ids, 0, 133, True), extras=[])  # its KV is there, in the slots of row 4
    got = driver.prefill((4, ids, cached, 133, True), extras=[wanting(4, ids, start, top=0)])
    assert unpack_ids(got.logprobs.input[4].ids).tolist() == ids[start:].tolist()
    assert of_prompt.values.endswith(got.logprobs.input[4].values)
    assert of_output.values.startswith(got.logprobs.output[4].values)


def test_nothing_is_given_for_rows_that_do_not_ask(driver: Driver) -> None:
    ids = prompt(driver, 10)
    assert driver.prefill((0, ids, 0, 10, True), extras=[]).logprobs is None
    penalised = extras(ids, row=1, repetition_penalty=1.5, logprob_start=10)
    assert driver.prefill((1, ids, 0, 10, True), extras=[penalised]).logprobs is None
    only_output = driver.prefill((2, ids, 0, 10, True), extras=[wanting(2, ids, start=10)])
    assert (only_output.logprobs.input, list(only_output.logprobs.output)) == ({}, [2])
    got = driver.decode(0, 1, 2).logprobs
    assert (got.input, list(got.output)) == ({}, [2])
    driver.prefill((2, ids, 0, 10, True), extras=[])  # the row's next request asks for nothing
    assert driver.decode(2).logprobs is None


def test_a_retracted_row_goes_on_as_it_would_have(driver: Driver) -> None:
    """With its penalties: what it had produced travels with its first chunk."""
    ids = prompt(driver, 12)
    change = {
        "repetition_penalty": 1.9,
        "frequency_penalty": 0.7,
        "min_new_tokens": 8,
        "forbidden": pack_ids(range(99)),
    }
    change["logprob_start"] = 12
    tokens = [driver.prefill((0, ids, 0, 12, True), extras=[extras(ids, row=0, **change)]).ids[0]]
    tokens += [driver.decode(0).ids[0] for _ in range(9)]
    plain = [driver.prefill((1, ids, 0, 12, True), extras=[]).ids[0]] + [driver.decode(1).ids[0] for _ in range(9)]
    assert tokens != plain
    assert min(tokens[:8]) >= 99
    for count in (1, 4, 9):
        whole = np.concatenate([ids, tokens[:count]])
        again = extras(ids, tokens[:count], row=2, **change)
        resumed = [driver.prefill((2, whole, 0, len(whole), True), extras=[again]).ids[0]]
        resumed += [driver.decode(2).ids[0] for _ in range(9 - count)]
        assert resumed == tokens[count:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row": 5}, "row 5: extras go with a row's first chunk"),
        ({"repetition_penalty": 2.0, "prompt_ids": pack_ids([1])}, "row 0: 1 of 4 prompt ids are given"),
        ({"logprob_start": 0, "prompt_ids": b""}, "row 0: 0 of 4 prompt ids are given"),
        ({"output_ids": pack_ids([1, -1])}, "row 0: its tokens must lie in 0.."),
        ({"output_ids": pack_ids([10**6])}, "row 0: its tokens must lie in 0.."),
    ],
)
def test_extras_that_do_not_fit_are_refused_before_anything_changes(driver: Driver, change: dict, message: str) -> None:
    ids = prompt(driver, 4)
    with pytest.raises(ValueError, match=message):
        driver.prefill((0, ids, 0, 4, True), extras=[extras(ids, **{"row": 0, "logprob_start": 4, **change})])
    assert not driver.runner.lengths.any()
