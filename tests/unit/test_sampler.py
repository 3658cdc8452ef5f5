from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.batch import RowSampling
from common.messages import pack_ids
from common.penalties import RowHistory
from common.sampler import FIRST_CANDIDATES, sample, uniform
from tests.unit.test_penalties import extras

# 0.999 quantiles of chi-square, by degrees of freedom. The seeds are fixed: these tests do not vary.
CHI_SQUARE = {2: 13.82, 4: 18.47, 7: 24.32, 15: 37.70}


params = st.builds(
    RowSampling,
    temperature=st.one_of(st.just(0.0), st.floats(0.05, 5)),
    top_p=st.floats(0.01, 1),
    top_k=st.one_of(st.just(-1), st.integers(1, 400)),
    seed=st.integers(-(2**63), 2**64),
)


def random_logits(rows: int, vocab: int, seed: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def draw(logits: torch.Tensor, row: RowSampling, count: int, min_p: float = 0.0) -> np.ndarray:
    """`count` draws at successive positions, from one row of logits."""
    history = RowHistory(extras([], min_p=min_p), logits.shape[1]) if min_p else None
    return sample(logits.expand(count, -1), [row] * count, list(range(count)), [history] * count)


def full_sort(logits: np.ndarray, row: RowSampling, position: int, min_p: float) -> int:
    """The definition: sort everything, cut, invert."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    weights = np.exp((logits[order].astype(np.float64) - logits.max()) / row.temperature)
    if row.top_k > 0:
        weights = weights[: row.top_k]
    running = np.cumsum(weights)
    kept = int(np.searchsorted(running, row.top_p * running[-1])) + 1 if row.top_p < 1 else len(weights)
    weights = weights[:kept]
    weights = weights[weights >= min_p * weights[0]]
    weights = weights / weights.sum()
    index = int(np.searchsorted(np.cumsum(weights), uniform(row.seed, position), side="right"))
    return int(order[min(index, len(weights) - 1)])


def assert_distribution(tokens: np.ndarray, probabilities: np.ndarray) -> None:
    expected = probabilities * len(tokens)
    observed = np.bincount(tokens, minlength=len(probabilities))
    assert observed[probabilities == 0].sum() == 0
    kept = probabilities > 0
    statistic = ((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    assert statistic < CHI_SQUARE[int(kept.sum()) - 1]


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    logits = torch.zeros(3, 5000)
    logits[1, [77, 4000]] = 2.0
    logits[2, 4999] = 1.0
    tokens = sample(logits, [RowSampling(0.0, 1.0, -1, s) for s in range(3)], [0, 1, 2])
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [0, 77, 4999]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_numbers_are_an_error(bad: float) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    logits[1, 20] = bad
    with pytest.raises(FloatingPointError, match="not finite"):
        sample(logits, [RowSampling(1.0, 1.0, -1, 0)] * 3, [1, 2, 3])


def test_no_rows() -> None:
    assert sample(torch.empty(0, 10), [], []).tolist() == []


def test_a_tiny_temperature_is_greedy() -> None:
    logits = random_logits(4, 100, seed=0)
    tokens = sample(logits, [RowSampling(9e-7, 1.0, -1, s) for s in range(4)], [0] * 4)
    assert tokens.tolist() == logits.argmax(-1).tolist()


@given(seed=st.integers(0, 2**20), row=params)
@settings(deadline=None, max_examples=100)
def test_top_k_1_and_tiny_top_p_are_greedy(seed: int, row: RowSampling) -> None:
    logits = random_logits(1, 300, seed)
    best = int(logits.argmax())
    assert sample(logits, [RowSampling(row.temperature, row.top_p, 1, row.seed)], [3])[0] == best
    assert sample(logits, [RowSampling(row.temperature, 1e-9, row.top_k, row.seed)], [3])[0] == best


@given(seed=st.integers(0, 2**20), rows=st.lists(params, min_size=2, max_size=6))
@settings(deadline=None, max_examples=60)
def test_a_row_does_not_depend_on_the_others(seed: int, rows: list[RowSampling]) -> None:
    logits = random_logits(len(rows), 2000, seed)
    positions = list(range(5, 5 + len(rows)))
    together = sample(logits, rows, positions)
    for i, row in enumerate(rows):
        assert sample(logits[i : i + 1], [row], [positions[i]])[0] == together[i]
    backwards = sample(logits.flip(0), rows[::-1], positions[::-1])
    assert backwards[::-1].tolist() == together.tolist()


@given(
    seed=st.integers(0, 2**20),
    row=params,
    spread=st.sampled_from([0.0, 0.5, 3.0]),
    position=st.integers(0, 9999),
    min_p=st.sampled_from([0.0, 0.0, 1e-6, 0.013, 0.31, 1.0]),
)
@settings(deadline=None, max_examples=300)
def test_looking_at_few_candidates_gives_what_a_full_sort_gives(
    seed: int, row: RowSampling, spread: float, position: int, min_p: float
) -> None:
    """Rounded logits, so that there are ties; up to 5,000 tokens, so that the candidates must often be extended."""
    logits = torch.round(random_logits(1, FIRST_CANDIDATES * 80, seed, spread), decimals=1)
    if row.temperature > 0:
        histories = [RowHistory(extras([], min_p=min_p), logits.shape[1])] if min_p else None
        assert sample(logits, [row], [position], histories)[0] == full_sort(logits[0].numpy(), row, position, min_p)


def test_the_same_seed_and_position_give_the_same_token_and_others_do_not() -> None:
    logits = torch.zeros(1, 1000)
    row = RowSampling(1.0, 1.0, -1, 7)
    first = draw(logits, row, 200)
    assert first.tolist() == draw(logits, row, 200).tolist()
    assert len(set(first.tolist())) > 150
    assert first.tolist() != draw(logits, RowSampling(1.0, 1.0, -1, 8), 200).tolist()


def test_distribution_of_the_whole_vocabulary() -> None:
    logits = random_logits(1, 8, seed=1, spread=1.0)
    tokens = draw(logits, RowSampling(0.7, 1.0, -1, 3), 4000)
    assert_distribution(tokens, torch.softmax(logits[0].double() / 0.7, -1).numpy())


def test_distribution_of_top_k() -> None:
    logits = random_logits(1, 100, seed=2, spread=1.0)
    probabilities = torch.softmax(logits[0].double(), -1)
    probabilities[probabilities < probabilities.topk(5).values[-1]] = 0
    tokens = draw(logits, RowSampling(1.0, 1.0, 5, 4), 4000)
    assert_distribution(tokens, (probabilities / probabilities.sum()).numpy())


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
    assert set(draw(logits, RowSampling(1.0, 0.69, -1, 5), 300)) == {1, 3}
    assert set(draw(logits, RowSampling(1.0, 0.71, -1, 5), 300)) == {1, 2, 3}
    equal = torch.zeros(1, 10)  # of equal ones the lower ids are kept
    assert set(draw(equal, RowSampling(1.0, 0.35, -1, 5), 300)) == {0, 1, 2, 3}


def test_top_p_applies_to_what_top_k_left() -> None:
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    assert set(draw(logits, RowSampling(1.0, 0.5, 2, 5), 300)) == {0}  # 0.4 of 0.7 reaches a half


def test_min_p_keeps_what_is_likely_enough_next_to_the_most_likely() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
    warm = RowSampling(1.0, 1.0, -1, 5)
    assert set(draw(logits, warm, 300, min_p=0.24)) == {0, 1, 2, 3}
    assert set(draw(logits, warm, 300, min_p=0.26)) == {1, 2, 3}
    assert set(draw(logits, warm, 300, min_p=0.51)) == {1, 3}
    assert set(draw(logits, warm, 300, min_p=1.0)) == {1}
    assert set(draw(logits, RowSampling(3.0, 1.0, -1, 5), 300, min_p=0.51)) == {0, 1, 2, 3}  # 0.25 ** (1 / 3) is 0.63
    tokens = draw(logits, warm, 4000, min_p=0.26)
    assert_distribution(tokens, np.array([0, 0.4, 0.2, 0.3]) / 0.9)


@given(seed=st.integers(0, 2**20), row=params, others=st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_penalties_come_before_everything_else_and_touch_their_row_alone(
    seed: int, row: RowSampling, others: int
) -> None:
    """As if the penalised logits had been the model's; the rows beside it are plain."""
    logits = random_logits(1 + others, 200, seed)
    ends = list(range(0, 200, 3))
    e = extras([1, 2], output=[5, 5], repetition_penalty=1.7, presence_penalty=0.5, min_new_tokens=9)
    history = RowHistory(msgspec.structs.replace(e, forbidden=pack_ids(ends)), 200)
    rows, positions = [row] * (1 + others), [4] * (1 + others)
    got = sample(logits, rows, positions, [history] + [None] * others)
    changed = torch.from_numpy(history.apply(logits[0].numpy(), 4)).unsqueeze(0)
    assert got[0] == sample(changed, [row], [4])[0]
    assert got[0] not in ends
    assert got[1:].tolist() == sample(logits, rows, positions)[1:].tolist()


def test_successive_positions_and_seeds_are_spread_evenly() -> None:
    for values in ([uniform(9, i) for i in range(8000)], [uniform(i, 9) for i in range(8000)]):
        assert all(0 <= u < 1 for u in values)
        assert_distribution((np.array(values) * 16).astype(int), np.full(16, 1 / 16))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (-1, 5), (2**64 + 3, 1)])
def test_uniform_is_a_function_of_both(seed: int, position: int) -> None:
    assert uniform(seed, position) == uniform(seed, position)
    assert uniform(seed, position) != uniform(seed, position + 1)
    assert uniform(seed, position) != uniform(seed + 1, position)
