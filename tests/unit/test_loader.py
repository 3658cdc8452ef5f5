"""The Llama forward against transformers, on random folders, over one rank and over several (as threads)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from common.models.config import load_config, plan_heads
from common.models.linear import PackedLinear, can_pack, swiglu
from common.models.llama import Llama
from common.models.sources import resolve_model

PROMPT = [5, 17, 3, 99, 42, 42, 7]
CLOSE = 1e-4


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As in a rank's process. With more, OpenMP's waiting threads take the cores from the ranks' threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class ThreadRank:
    """One rank of a group of threads: sums and joins in rank order."""

    def __init__(self, rank: int, slots: list, barrier: threading.Barrier) -> None:
        self.rank = rank
        self.slots = slots
        self.barrier = barrier

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        self.slots[self.rank] = x
        self.barrier.wait()
        parts = list(self.slots)
        self.barrier.wait()
        return parts

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        parts = self._exchange(x)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchange(x), dim=-1)


def run_ranks(tp_size: int, work: Callable[[ThreadRank], object]) -> list:
    """work(rank) on every rank at once; what each returned."""
    slots: list = [None] * tp_size
    barrier = threading.Barrier(tp_size, timeout=60)

    def guarded(rank: int) -> object:
        try:
            return work(ThreadRank(rank, slots, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(tp_size) as pool:
        return [future.result() for future in [pool.submit(guarded, rank) for rank in range(tp_size)]]


class OneSequence:
    """The simplest `attend`: keeps all K and V of one sequence, and attends causally."""

    def __init__(self) -> None:
        self.k: dict[int, torch.Tensor] = {}
        self.v: dict[int, torch.Tensor] = {}

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.k[layer] = torch.cat([self.k[layer], k]) if layer in self.k else k
        self.v[layer] = torch.cat([self.v[layer], v]) if layer in self.v else v.clone()
        group = q.shape[1] // k.shape[1]
        keys = self.k[layer].repeat_interleave(group, 1)
        values = self.v[layer].repeat_interleave(group, 1)
        n, total = len(q), len(keys)
        hidden = torch.arange(total)[None, :] > torch.arange(total - n, total)[:, None]
        scores = torch.einsum("nhd,thd->hnt", q, keys) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("hnt,thd->nhd", weights, values)


def greedy(model: Llama, prompt: list[int], count: int) -> tuple[list[int], torch.Tensor]:
    """`count` tokens, and the logits of every position that was computed: [len(prompt) + count - 1, vocab]."""
    attend = OneSequence()
    logits = model.forward(torch.tensor(prompt), torch.arange(len(prompt)), attend, torch.arange(len(prompt)))
    rows, tokens = [logits], [int(logits[-1].argmax())]
    for position in range(len(prompt), len(prompt) + count - 1):
        logits = model.forward(torch.tensor(tokens[-1:]), torch.tensor([position]), attend, torch.tensor([0]))
        rows.append(logits)
        tokens.append(int(logits[0].argmax()))
    return tokens, torch.cat(rows)


def load(folder: Path, dtype: torch.dtype = torch.float32, packed: bool = True) -> Llama:
    config = load_config(folder)
    work = lambda tp: Llama(config, plan_heads(config, 1), 0, tp, dtype, "cpu", packed)  # noqa: E731
    return run_ranks(1, work)[0]


def check_greedy(folder: Path, reference: LlamaForCausalLM, tp_size: int, count: int = 12) -> float:
    """Greedy tokens as the reference has them, on every rank; the largest difference of a logit."""
    config = load_config(folder)
    layout = plan_heads(config, tp_size)

    def work(tp: ThreadRank) -> tuple[list[int], torch.Tensor]:
        return greedy(Llama(config, layout, tp.rank, tp, torch.float32, "cpu", True), PROMPT, count)

    results = run_ranks(tp_size, work)
    tokens, logits = results[0]
    for other_tokens, other_logits in results[1:]:
        assert other_tokens == tokens
        assert torch.equal(other_logits, logits)
    with torch.no_grad():
        expected = reference(torch.tensor([PROMPT + tokens[:-1]])).logits[0]
    assert logits.shape == expected.shape
    assert logits.dtype == torch.float32
    assert expected[len(PROMPT) - 1 :].argmax(-1).tolist() == tokens
    return (logits - expected).abs().max().item()


def save_random(folder: Path, seed: int = 0, **changes: object) -> LlamaForCausalLM:
    """A random Llama, saved. Norms and biases are random too, and logits have a spread of about 2."""
    settings = {
        "vocab_size": 131,  # a prime: no TP size divides it
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 132,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        **changes,
    }
    settings.setdefault("hidden_size", settings["num_attention_heads"] * 8)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder, max_shard_size=settings.get("shard", "1GB"))
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(12, 1), (4, 2), (9, 3), (10, 5)])
def test_greedy_equals_transformers_at_any_tp(tmp_path: Path, heads: int, kv_heads: int, tied: bool) -> None:
    reference = save_random(tmp_path, num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=tied)
    largest = {tp_size: check_greedy(tmp_path, reference, tp_size) for tp_size in (1, 2, 3, 4)}
    print(f"{heads} heads, {kv_heads} KV heads, tied {tied}: largest logit difference {largest}")
    assert max(largest.values()) < CLOSE


@pytest.mark.parametrize("tp_size", [1, 2])
def test_attention_biases(tmp_path: Path, tp_size: int) -> None:
    reference = save_random(tmp_path, attention_bias=True)
    assert check_greedy(tmp_path, reference, tp_size) < CLOSE


def test_rope_theta_and_eps_are_the_models(tmp_path: Path) -> None:
    rope = {"rope_theta": 100.0, "rope_type": "default"}
    reference = save_random(tmp_path, rope_parameters=rope, rms_norm_eps=0.1)
    assert check_greedy(tmp_path, reference, 1) < CLOSE


def test_sharded_files(tmp_path: Path) -> None:
    reference = save_random(tmp_path, shard="40KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert check_greedy(tmp_path, reference, 2) < CLOSE


def test_tiny_equals_transformers_and_is_not_degenerate() -> None:
    folder = resolve_model("tiny")
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert max(check_greedy(folder, reference, tp_size) for tp_size in (1, 2, 4, 8)) < CLOSE
    model = load(folder)
    for prompt in (PROMPT, [1], list(range(100))):
        tokens, logits = greedy(model, prompt, 64)
        best, second = logits[len(prompt) - 1 :].topk(2).values.unbind(-1)
        assert len(set(tokens)) > 30
        assert (best - second).median() > 0.3


def test_bfloat16_is_near_transformers(tmp_path: Path) -> None:
    reference = save_random(tmp_path).to(torch.bfloat16)
    logits = greedy(load(tmp_path, torch.bfloat16), PROMPT, 1)[1]
    with torch.no_grad():
        expected = reference(torch.tensor([PROMPT])).logits[0].float()
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().max() < 0.05 * expected.abs().max()


# ---------------------------------------------------------------- batch invariance


class ManySequences:
    """An `attend` for rows of different sequences, each with a past of its own: one computation per row."""

    def __init__(self, rows: int, kv_heads: int, head_dim: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.k = [torch.randn(1 + row % 7, kv_heads, head_dim, generator=generator) for row in range(rows)]
        self.v = [torch.randn(1 + row % 7, kv_heads, head_dim, generator=generator) for row in range(rows)]
        self.rows: list[int] = []

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = []
        for i, row in enumerate(self.rows):
            attend = OneSequence()
            attend.k[0], attend.v[0] = self.k[row], self.v[row]
            # Copies, so that a row's place in the batch is not its place in memory.
            out.append(attend(0, q[i : i + 1].clone(), k[i : i + 1].clone(), v[i : i + 1].clone()))
        return torch.cat(out)


def test_a_rows_logits_do_not_depend_on_the_other_rows(tmp_path: Path) -> None:
    save_random(tmp_path, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1531)
    model = load(tmp_path)
    assert isinstance(model.lm_head, PackedLinear)
    most = 70
    ids = torch.randint(131, (most,), generator=torch.Generator().manual_seed(2))
    positions = torch.arange(most) % 11
    attend = ManySequences(most, 3, 16)

    def logits(rows: list[int], wanted: list[int]) -> torch.Tensor:
        attend.rows = rows
        return model.forward(ids[rows], positions[rows], attend, torch.tensor(wanted))

    alone = torch.cat([logits([row], [0]) for row in range(most)])
    for n in range(1, most + 1):
        assert torch.equal(logits(list(range(n)), list(range(n))), alone[:n]), n
    backwards = list(reversed(range(most)))
    assert torch.equal(logits(backwards, [3, 0, 69]), alone[[66, 69, 0]])


def test_swiglu_does_not_depend_on_the_place() -> None:
    gate_up = torch.randn(1, 2 * 4096, generator=torch.Generator().manual_seed(3)) * 4
    gate, up = gate_up.chunk(2, dim=-1)
    whole = swiglu(gate_up)
    torch.testing.assert_close(whole, torch.nn.functional.silu(gate) * up)
    for width in (1, 3, 7, 9, 17, 31):
        for start in range(0, 64):
            part = torch.cat([gate[:, start : start + width], up[:, start : start + width]], dim=1)
            assert torch.equal(swiglu(part), whole[:, start : start + width]), (start, width)


def test_swiglu_does_not_depend_on_the_rows_or_threads() -> None:
    """With 2 threads F.silu gives other bits at 14 of these 70 row counts: a thread's share ends within a row."""
    gate_up = torch.randn(70, 2 * 1531, generator=torch.Generator().manual_seed(4)) * 4
    alone = torch.cat([swiglu(row[None]) for row in gate_up])
    torch.set_num_threads(2)
    try:
        together = [swiglu(gate_up[:n]) for n in range(1, 71)]
    finally:
        torch.set_num_threads(1)
    for n, rows in enumerate(together, start=1):
        assert torch.equal(rows, alone[:n]), n


def test_no_rows_wanted(tmp_path: Path) -> None:
    save_random(tmp_path)
    logits = load(tmp_path).forward(torch.tensor(PROMPT), torch.arange(7), OneSequence(), torch.tensor([], dtype=int))
    assert logits.shape == (0, 131)


def test_plain_linears_agree_with_packed_ones(tmp_path: Path) -> None:
    save_random(tmp_path)
    packed, plain = load(tmp_path), load(tmp_path, packed=False)
    assert type(packed.layers[0].qkv) is not type(plain.layers[0].qkv)
    (tokens, logits), (plain_tokens, plain_logits) = greedy(packed, PROMPT, 12), greedy(plain, PROMPT, 12)
    assert tokens == plain_tokens
    assert (logits - plain_logits).abs().max() < CLOSE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_can_pack_tells_the_truth(dtype: torch.dtype) -> None:
    weight, x = torch.randn(48, 32).to(dtype), torch.randn(3, 32).to(dtype)
    if can_pack(dtype, torch.device("cpu")):
        torch.testing.assert_close(PackedLinear(weight)(x), torch.nn.functional.linear(x, weight))
    else:
        with pytest.raises(RuntimeError):
            PackedLinear(weight)
    assert not can_pack(dtype, torch.device("cuda"))


# ---------------------------------------------------------------- refusals


def test_weights_that_do_not_fit_the_config(tmp_path: Path) -> None:
    save_random(tmp_path)
    text = (tmp_path / "config.json").read_text()
    for old, new, reason in (
        ('"num_hidden_layers": 2', '"num_hidden_layers": 3', r"no model\.layers\.2\.mlp"),
        ('"vocab_size": 131', '"vocab_size": 130', r"embed_tokens|lm_head"),
        ('"head_dim": 16', '"head_dim": 8', r"q_proj\.weight is \[64, 32\], but config\.json makes it \[32, 32\]"),
    ):
        assert old in text
        (tmp_path / "config.json").write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=reason) as error:
            load(tmp_path)
        assert str(tmp_path) in str(error.value)


def test_a_file_that_is_no_safetensors(tmp_path: Path) -> None:
    save_random(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        load(tmp_path)
