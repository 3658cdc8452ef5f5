"""The runner on small models with random weights: plans, rows, and logits that do not depend on the batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from common.batch import BatchPlan, PrefillSeq, RowSampling
from common.messages import pack_ids, unpack_ids
from common.models import tiny
from common.models.config import load_config
from common.models.linear import HalfLinear
from common.parallel.collectives import SingleRank
from common.runner import ModelRunner
from common.sampler import sample
from experiments import transformers_reference as hf
from tests.helpers.invariance import PACKS_FLOAT32, bfloat16_invariant, invariant

GREEDY = RowSampling(0.0, 1.0, -1, 0)
CONTEXT = 512
POOL = 6000
# 5 KV heads of 3 query heads each, and a head_dim unlike hidden / heads.
QWEN = {
    "vocab_size": 1000,
    "hidden_size": 480,
    "num_hidden_layers": 2,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "head_dim": 64,
    "intermediate_size": 1000,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module", params=["tiny", "smollm2-shaped", "qwen2", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "tiny":
        tiny.build(folder)
    elif request.param == "smollm2-shaped":
        build_smollm2_shaped(folder)
    else:
        hf.random_model(request.param, initializer_range=0.06, **QWEN).save_pretrained(folder)
    return folder


def build_smollm2_shaped(folder: Path) -> None:
    """Two layers of SmolLM2-135M's width, with 9 query and 3 KV heads."""
    hidden, heads, kv_heads, dim, mlp, vocab = 576, 9, 3, 64, 1536, 1000
    rng = np.random.RandomState(1)
    weights = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(2):
        name = f"model.layers.{i}."
        weights |= {
            name + "self_attn.q_proj.weight": (heads * dim, hidden),
            name + "self_attn.k_proj.weight": (kv_heads * dim, hidden),
            name + "self_attn.v_proj.weight": (kv_heads * dim, hidden),
            name + "self_attn.o_proj.weight": (hidden, heads * dim),
            name + "mlp.gate_proj.weight": (mlp, hidden),
            name + "mlp.up_proj.weight": (mlp, hidden),
            name + "mlp.down_proj.weight": (hidden, mlp),
            name + "input_layernorm.weight": (hidden,),
            name + "post_attention_layernorm.weight": (hidden,),
        }
    scaled = {k: (rng.standard_normal(s) / s[-1] ** 0.5).astype(np.float32) for k, s in weights.items() if len(s) == 2}
    ones = {k: np.ones(s, dtype=np.float32) for k, s in weights.items() if len(s) == 1}
    save_file(scaled | ones, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))


class Driver:
    """Writes plans for a runner, as a scheduler would: fresh slots in a shuffled order, one row per request."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        self.config = load_config(folder)
        self.runner = ModelRunner(
            self.config,
            SingleRank(),
            max_running_requests=20,
            context_length=CONTEXT,
            max_total_tokens=POOL,
            dtype=dtype,
            keep_logits=True,
        )
        self.reset()

    def reset(self) -> None:
        self.free = list(np.random.RandomState(2).permutation(POOL))
        self.turn = 0

    def slots(self, n: int) -> bytes:
        taken, self.free = self.free[:n], self.free[n:]
        return pack_ids(taken)

    def seq(
        self,
        row: int,
        ids: np.ndarray,
        *,
        start: int = 0,
        prefix: bytes = b"",
        sampling: RowSampling | None = GREEDY,
        sample: bool = True,
    ) -> PrefillSeq:
        return PrefillSeq(row, start, pack_ids(ids), self.slots(len(ids)), prefix, sampling, sample)

    def prefill(self, *seqs: PrefillSeq) -> np.ndarray:
        self.turn += 1
        return self.runner.execute(BatchPlan(self.turn, list(seqs))).ids

    def decode(self, *rows: int) -> np.ndarray:
        self.turn += 1
        return self.runner.execute(BatchPlan(self.turn, [], pack_ids(rows), self.slots(len(rows)))).ids

    @property
    def logits(self) -> torch.Tensor:
        return self.runner.last_logits


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Driver:
    return Driver(folder)


@pytest.fixture
def driver(loaded: Driver) -> Driver:
    loaded.reset()
    return loaded


def prompt(driver: Driver, length: int, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, driver.config.vocab_size, length)


def run_alone(driver: Driver, ids: np.ndarray, steps: int) -> tuple[torch.Tensor, list[int]]:
    """Logits [1 + steps, vocab] and tokens of one request in row 0, prefilled in one piece."""
    tokens = [int(driver.prefill(driver.seq(0, ids))[0])]
    logits = [driver.logits]
    for _ in range(steps):
        tokens.append(int(driver.decode(0)[0]))
        logits.append(driver.logits)
    return torch.cat(logits), tokens


@invariant
@pytest.mark.parametrize("size", [2, 8, 16])
def test_logits_are_the_same_alone_and_in_a_batch(driver: Driver, size: int) -> None:
    check_alone_and_in_a_batch(driver, size)


@bfloat16_invariant
def test_bfloat16_logits_are_the_same_alone_and_in_a_batch(folder: Path) -> None:
    driver = Driver(folder, "bfloat16")
    for size in (2, 3, 8, 16):
        driver.reset()
        check_alone_and_in_a_batch(driver, size)


def test_bfloat16_logits_are_near_those_of_float32(folder: Path, driver: Driver) -> None:
    half = Driver(folder, "bfloat16")
    for one in (half, driver):
        one.prefill(one.seq(0, prompt(one, 40, seed=3)))
    scale = driver.logits.abs().max()
    assert (half.logits - driver.logits).abs().max() < 0.05 * scale


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="HalfLinear needs FBGEMM")
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 31, 32, 64, 121, 128, 500])
def test_half_linear_is_exact_but_for_the_sum_and_the_same_for_any_rows(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(200, 576, generator=generator) * 0.05).bfloat16()
    weight[0, :3] = torch.tensor([3.0, 1e-7, -2e-9]).bfloat16()  # float16 alone has no 2e-9
    x = torch.randn(600, 576, generator=generator)
    bias = torch.randn(200, generator=generator)
    linear = HalfLinear(weight, bias)
    out = linear(x)
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(linear(x[17 : 17 + rows]), out[17 : 17 + rows])


def check_alone_and_in_a_batch(driver: Driver, size: int) -> None:
    ids = prompt(driver, 133, seed=0)
    alone, alone_tokens = run_alone(driver, ids, steps=5)
    lengths = np.random.RandomState(size).randint(1, 200, size)
    place = size // 2
    seqs = [driver.seq(row, prompt(driver, n, row + 1)) for row, n in enumerate(lengths) if row != place]
    seqs.insert(place, driver.seq(place, ids))
    tokens = [driver.prefill(*seqs)[place]]
    logits = [driver.logits[place : place + 1]]
    for _ in range(5):
        tokens.append(driver.decode(*range(size))[place])
        logits.append(driver.logits[place : place + 1])
    assert torch.equal(torch.cat(logits), alone)
    assert tokens == alone_tokens


@invariant
@pytest.mark.parametrize("sizes", [[1, 132], [3, 64, 66], [127, 5, 1], [50, 50, 33], [1] * 7 + [126]])
def test_logits_are_the_same_in_chunks(driver: Driver, sizes: list[int]) -> None:
    ids = prompt(driver, 133, seed=0)
    alone, _ = run_alone(driver, ids, steps=3)
    start = 0
    for size in sizes:
        last = start + size == len(ids)
        seq = driver.seq(4, ids[start : start + size], start=start, sampling=None if start else GREEDY, sample=last)
        other = driver.seq(5, prompt(driver, 17, start))  # the chunks share their turns with other requests
        assert len(driver.prefill(seq, other)) == 1 + last
        start += size
    logits = [driver.logits[:1]]
    for _ in range(3):
        driver.decode(5, 4)
        logits.append(driver.logits[1:])
    assert torch.equal(torch.cat(logits), alone)


@invariant
@pytest.mark.parametrize("cached", [1, 64, 100, 132])
def test_logits_are_the_same_after_a_cached_prefix(driver: Driver, cached: int) -> None:
    ids = prompt(driver, 133, seed=0)
    alone, _ = run_alone(driver, ids, steps=3)
    first = driver.seq(7, np.concatenate([ids[:cached], prompt(driver, 30, seed=9)]))
    driver.prefill(first)
    prefix = pack_ids(unpack_ids(first.new_slots)[:cached])
    driver.prefill(driver.seq(8, ids[cached:], start=cached, prefix=prefix))
    logits = [driver.logits]
    for _ in range(3):
        driver.decode(8, 7)
        logits.append(driver.logits[:1])
    assert torch.equal(torch.cat(logits), alone)


def test_a_decode_step_agrees_with_a_prefill_of_the_same_tokens(driver: Driver) -> None:
    ids = prompt(driver, 40, seed=3)
    logits, tokens = run_alone(driver, ids, steps=6)
    driver.prefill(driver.seq(1, np.concatenate([ids, tokens[:6]])))
    torch.testing.assert_close(driver.logits[0], logits[6], rtol=1e-4, atol=1e-4)


def test_a_chunk_that_samples_nothing_yields_nothing(driver: Driver) -> None:
    tokens = driver.prefill(driver.seq(0, prompt(driver, 20, 0), sample=False))
    assert tokens.dtype == np.int32
    assert len(tokens) == 0


def test_sampling_is_a_function_of_seed_and_position(driver: Driver) -> None:
    """So a request that was retracted after three tokens goes on as it would have."""
    warm = RowSampling(1.5, 0.9, 50, 11)
    ids = prompt(driver, 25, seed=4)
    want = [driver.prefill(driver.seq(0, ids, sampling=warm))[0]] + [driver.decode(0)[0] for _ in range(6)]
    again = [driver.prefill(driver.seq(3, np.concatenate([ids, want[:3]]), sampling=warm))[0]]
    again += [driver.decode(3)[0] for _ in range(3)]
    if PACKS_FLOAT32:
        assert again == want[3:]
    other = RowSampling(1.5, 0.9, 50, 12)
    assert [driver.prefill(driver.seq(0, ids, sampling=other))[0]] + [driver.decode(0)[0] for _ in range(6)] != want


def test_the_sampled_position_is_the_number_of_tokens_before_it(driver: Driver) -> None:
    warm = RowSampling(5.0, 1.0, -1, 21)
    got = [driver.prefill(driver.seq(0, prompt(driver, 25, seed=4), sampling=warm))[0]]
    want = [sample(driver.logits, [warm], [25])[0]]
    for position in range(26, 32):
        got.append(driver.decode(0)[0])
        want.append(sample(driver.logits, [warm], [position])[0])
    assert got == want


def test_a_row_can_be_used_again(driver: Driver) -> None:
    ids = prompt(driver, 30, seed=5)
    alone, _ = run_alone(driver, ids, steps=2)
    run_alone(driver, prompt(driver, 60, seed=6), steps=3)
    again, _ = run_alone(driver, ids, steps=2)
    assert torch.equal(again, alone)


def test_bfloat16_runs(folder: Path) -> None:
    runner = ModelRunner(
        load_config(folder),
        SingleRank(),
        max_running_requests=1,
        context_length=64,
        max_total_tokens=64,
        dtype="bfloat16",
    )
    seq = PrefillSeq(0, 0, pack_ids([1, 2, 3]), pack_ids([5, 6, 7]), b"", GREEDY, True)
    assert runner.execute(BatchPlan(1, [seq])).ids.shape == (1,)
    assert runner.execute(BatchPlan(2, [], pack_ids([0]), pack_ids([8]))).ids.shape == (1,)


class TestRefusals:
    """A plan that does not fit the rows is refused before anything changes."""

    @pytest.fixture(autouse=True)
    def row_0_holds_ten_tokens(self, driver: Driver) -> None:
        driver.prefill(driver.seq(0, prompt(driver, 10, 0)))
        driver.prefill(driver.seq(1, prompt(driver, 10, 0), sample=False))

    def refused(self, driver: Driver, plan: BatchPlan, message: str) -> None:
        lengths = driver.runner.lengths.copy()
        with pytest.raises(ValueError, match=message):
            driver.runner.execute(plan)
        assert np.array_equal(driver.runner.lengths, lengths)

    @pytest.mark.parametrize("row", [-1, 20])
    def test_no_such_row(self, driver: Driver, row: int) -> None:
        self.refused(driver, BatchPlan(1, [driver.seq(row, [1])]), f"row {row}: the slot table has rows 0..19")
        self.refused(driver, BatchPlan(1, [], pack_ids([row]), pack_ids([1])), f"row {row}: the slot table")

    def test_a_row_twice(self, driver: Driver) -> None:
        self.refused(driver, BatchPlan(1, [driver.seq(3, [1]), driver.seq(3, [1])]), "row 3 is planned twice")
        self.refused(driver, BatchPlan(1, [], pack_ids([0, 0]), pack_ids([1, 2])), "row 0 is planned twice")

    def test_a_later_chunk_that_does_not_continue(self, driver: Driver) -> None:
        for seq in (
            driver.seq(1, [1], start=9, sampling=None),
            driver.seq(1, [1], start=10, prefix=pack_ids(range(10)), sampling=None),
            driver.seq(15, [1], start=1, sampling=None),
        ):
            self.refused(driver, BatchPlan(1, [seq]), f"row {seq.row}: a later chunk starts at token {seq.start}")

    def test_a_prefix_of_the_wrong_length(self, driver: Driver) -> None:
        seq = driver.seq(2, [1], start=5, prefix=pack_ids([1, 2]))
        self.refused(driver, BatchPlan(1, [seq]), "row 2: starts at token 5 with 2 prefix slots")

    def test_counts_that_disagree(self, driver: Driver) -> None:
        seq = PrefillSeq(2, 0, pack_ids([1, 2]), pack_ids([1]), b"", GREEDY, True)
        self.refused(driver, BatchPlan(1, [seq]), "row 2: 2 tokens to compute and 1 slots")
        self.refused(driver, BatchPlan(1, [driver.seq(2, [])]), "row 2: 0 tokens to compute")
        self.refused(driver, BatchPlan(1, [], pack_ids([0]), b""), "a decode turn of 1 rows and 0 slots")
        self.refused(driver, BatchPlan(1, []), "a decode turn of 0 rows")

    def test_slots_outside_the_pool(self, driver: Driver) -> None:
        for slot in (-1, POOL):
            seq = PrefillSeq(2, 0, pack_ids([1]), pack_ids([slot]), b"", GREEDY, True)
            self.refused(driver, BatchPlan(1, [seq]), f"row 2: its KV slots must lie in 0..{POOL - 1}")
            self.refused(driver, BatchPlan(1, [], pack_ids([0]), pack_ids([slot])), "row 0: its KV slots")

    def test_more_than_the_context(self, driver: Driver) -> None:
        seq = driver.seq(2, [1] * (CONTEXT + 1))
        self.refused(driver, BatchPlan(1, [seq]), f"row 2: {CONTEXT + 1} tokens, and the context is {CONTEXT}")
        driver.prefill(driver.seq(2, [1] * CONTEXT))
        self.refused(driver, BatchPlan(1, [], pack_ids([2]), pack_ids([1])), "row 2: it holds 512 tokens")

    def test_decode_before_a_sample(self, driver: Driver) -> None:
        self.refused(driver, BatchPlan(1, [], pack_ids([0, 1]), pack_ids([1, 2])), "row 1 decodes and has sampled no")
