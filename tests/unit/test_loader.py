"""The forward against transformers, on random folders, over one rank and over several (as threads)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, PreTrainedModel

from common.models.config import load_config, plan_heads
from common.models.linear import PackedGate, PackedLinear, can_pack, rms_norm, swiglu
from common.models.llama import Llama
from common.models.loader import ShardLoader
from common.models.sources import resolve_model
from common.models.weights import check_weights
from experiments import transformers_reference as hf

PROMPT = [5, 17, 3, 99, 42, 42, 7]
CLOSE = 1e-4


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


def check_greedy(folder: Path, reference: PreTrainedModel, tp_size: int, count: int = 12) -> float:
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


def save_random(
    folder: Path, seed: int = 0, family: str = "llama", shard: str = "1GB", **changes: object
) -> PreTrainedModel:
    """A random model of a family, saved. Its logits have a spread of about 2."""
    settings = {
        "vocab_size": 131,  # a prime: no TP size divides it
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 132,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        **changes,
    }
    settings.setdefault("hidden_size", settings["num_attention_heads"] * 8)
    model = hf.random_model(family, seed, **settings)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(12, 1), (4, 2), (9, 3), (10, 5)])
@pytest.mark.parametrize("family", hf.FAMILIES)
def test_greedy_equals_transformers_at_any_tp(
    tmp_path: Path, family: str, heads: int, kv_heads: int, tied: bool
) -> None:
    reference = save_random(
        tmp_path, family=family, num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=tied
    )
    largest = {tp_size: check_greedy(tmp_path, reference, tp_size) for tp_size in (1, 2, 3, 4)}
    print(f"{family}, {heads} heads, {kv_heads} KV heads, tied {tied}: largest logit difference {largest}")
    assert max(largest.values()) < CLOSE


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_attention_biases(tmp_path: Path, family: str, tp_size: int) -> None:
    reference = save_random(tmp_path, family=family, attention_bias=True)
    assert check_greedy(tmp_path, reference, tp_size) < CLOSE


@pytest.mark.parametrize("family", hf.FAMILIES)
def test_what_padding_and_replication_hold(tmp_path: Path, family: str) -> None:
    """5 KV groups over 2 ranks: the last of rank 1 is zeros. 1 KV head: both ranks hold it. The norms are whole."""
    extra = {} if family == "qwen2" else {"attention_bias": True}
    for kv_heads in (5, 1):
        folder = tmp_path / str(kv_heads)
        save_random(folder, family=family, num_attention_heads=10, num_key_value_heads=kv_heads, **extra)
        config, whole = load_config(folder), load_file(folder / "model.safetensors")
        layers = []
        for rank in range(2):
            with ShardLoader(config, plan_heads(config, 2), rank, torch.float32, torch.device("cpu")) as loader:
                layers.append(loader.layer(1))
        bias = {x: whole[f"model.layers.1.self_attn.{x}_proj.bias"] for x in "qkv"}
        if kv_heads == 5:
            q, k, v = layers[1].qkv_bias.split([96, 48, 48])
            for part, of_model, real in ((q, bias["q"][96:], 64), (k, bias["k"][48:], 32), (v, bias["v"][48:], 32)):
                assert torch.equal(part[:real], of_model)
                assert not part[real:].any()
            assert not layers[1].o[:, 64:].any()
        else:
            for rank, layer in enumerate(layers):
                expected = [bias["q"][rank * 80 : rank * 80 + 80], bias["k"], bias["v"]]
                assert torch.equal(layer.qkv_bias, torch.cat(expected))
        assert (layers[0].o_bias is None) == (family == "qwen2")
        assert layers[1].o_bias is None
        for layer in layers:
            if family == "qwen3":
                assert torch.equal(layer.q_norm, whole["model.layers.1.self_attn.q_norm.weight"])
                assert torch.equal(layer.k_norm, whole["model.layers.1.self_attn.k_norm.weight"])
            else:
                assert layer.q_norm is layer.k_norm is None


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
def test_llama3_rope(tmp_path: Path, spelling: str) -> None:
    reference = save_random(tmp_path, rope_parameters=hf.SHORT_LLAMA3_ROPE, tie_word_embeddings=True)
    if spelling == "rope_scaling":
        values = json.loads((tmp_path / "config.json").read_text())
        values["rope_scaling"] = values.pop("rope_parameters")
        values["rope_theta"] = values["rope_scaling"].pop("rope_theta")
        (tmp_path / "config.json").write_text(json.dumps(values))
    assert check_greedy(tmp_path, reference, 1, count=100) < CLOSE
    frequencies = reference.model.rotary_emb.inv_freq
    plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    scaling = load_config(tmp_path).rope_scaling
    divisors = torch.tensor([scaling.divisor(frequency) for frequency in plain.tolist()])
    torch.testing.assert_close(plain / divisors, frequencies)
    assert divisors[0] == 1
    assert divisors[-1] == 8
    assert ((divisors > 1) & (divisors < 8)).any()


def test_rope_theta_and_eps_are_the_models(tmp_path: Path) -> None:
    rope = {"rope_theta": 100.0, "rope_type": "default"}
    reference = save_random(tmp_path, rope_parameters=rope, rms_norm_eps=0.1)
    assert check_greedy(tmp_path, reference, 1) < CLOSE


def test_sharded_files(tmp_path: Path) -> None:
    reference = save_random(tmp_path, family="qwen3", shard="40KB")
    assert not (tmp_path / "model.safetensors").exists()
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    weight_map = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    name = next(name for name, shard in weight_map.items() if shard == shards[1].name and "norm" in name)
    check_weights(load_config(tmp_path))
    assert check_greedy(tmp_path, reference, 2) < CLOSE
    # It is really read from the second shard: change it there, and the logits change.
    second = load_file(shards[1])
    second[name] += 1
    save_file(second, shards[1], metadata={"format": "pt"})
    before = reference(torch.tensor([PROMPT])).logits[0]
    assert (greedy(load(tmp_path), PROMPT, 1)[1] - before).abs().max() > 100 * CLOSE


@pytest.mark.parametrize("saved", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", hf.FAMILIES)
def test_half_precision_folders(tmp_path: Path, family: str, saved: torch.dtype) -> None:
    save_random(tmp_path, family=family).to(saved).save_pretrained(tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {saved}
    check_weights(load_config(tmp_path))
    reference = hf.load(tmp_path)
    assert check_greedy(tmp_path, reference, 2) < CLOSE
    logits = greedy(load(tmp_path, torch.bfloat16), PROMPT, 1)[1]
    with torch.no_grad():
        expected = reference(torch.tensor([PROMPT])).logits[0]
    assert (logits - expected).abs().max() < 0.1 * expected.abs().max()


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [64, 576, 1024, 1025, 4096])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_packed_linears_rows_do_not_depend_on_their_number(dtype: torch.dtype, inner: int, threads: int) -> None:
    if not can_pack(dtype, torch.device("cpu")):
        pytest.skip(f"oneDNN does not pack {dtype} on this CPU")
    generator = torch.Generator().manual_seed(7)
    linear = PackedLinear((torch.randn(200, inner, generator=generator) / inner**0.5).to(dtype))
    x = torch.randn(130, inner, generator=generator).to(dtype)
    torch.set_num_threads(threads)
    together = linear(x)
    for n in (*range(1, 20), 31, 64, 65, 128, 129):
        assert torch.equal(linear(x[:n]), together[:n]), n


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_packed_gate_is_swiglu_and_its_rows_do_not_depend_on_their_number(dtype: torch.dtype, threads: int) -> None:
    if not can_pack(dtype, torch.device("cpu")):
        pytest.skip(f"oneDNN does not pack {dtype} on this CPU")
    generator = torch.Generator().manual_seed(8)
    weight = (torch.randn(2 * 301, 577, generator=generator) / 10).to(dtype)
    x = torch.randn(130, 577, generator=generator).to(dtype)
    torch.set_num_threads(threads)
    gate, plain = PackedGate(weight), swiglu(torch.nn.functional.linear(x, weight))
    together = gate(x)
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(together, plain, rtol=tolerance, atol=tolerance)
    for n in (*range(1, 20), 31, 64, 65, 129):
        assert torch.equal(gate(x[:n]), together[:n]), n
        assert torch.equal(gate(x[-n:]), together[-n:]), n


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
    together = [swiglu(gate_up[:n]) for n in range(1, 71)]
    for n, rows in enumerate(together, start=1):
        assert torch.equal(rows, alone[:n]), n


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 16), (3, 64), (16, 128), (5, 20)])
def test_a_heads_norm_does_not_depend_on_the_rows_or_threads(heads: int, head_dim: int, threads: int) -> None:
    """As in the forward: a strided view of some heads of each row."""
    fused = torch.randn(1100, heads + 2, head_dim, generator=torch.Generator().manual_seed(5))
    weight = torch.randn(head_dim, generator=torch.Generator().manual_seed(6))
    norm = lambda rows: rms_norm(rows.split([1, heads, 1], dim=1)[1], weight, 1e-6)  # noqa: E731
    alone = torch.cat([norm(fused[row : row + 1].clone()) for row in range(len(fused))])
    torch.set_num_threads(threads)
    for n in (*range(1, 70), 128, 513, 1100):
        assert torch.equal(norm(fused[:n].clone()), alone[:n]), n
        assert torch.equal(norm(fused[-n:].clone()), alone[-n:]), n


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


def refused(folder: Path) -> str:
    """What check_weights says, without torch, and a rank too."""
    with pytest.raises(ValueError) as error:
        check_weights(load_config(folder))
    with pytest.raises(ValueError) as again:
        load(folder)
    message = str(error.value)
    assert str(again.value) == message
    assert str(folder) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("content", ["nothing", "nonsense", "half", "one byte less"])
def test_a_file_that_is_no_safetensors(tmp_path: Path, content: str) -> None:
    save_random(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    contents = {"nothing": b"", "nonsense": b"nonsense", "half": whole[: len(whole) // 2], "one byte less": whole[:-1]}
    path.write_bytes(contents[content])
    assert "model.safetensors is not a readable safetensors file" in refused(tmp_path)


def test_shards_that_are_not_what_the_index_says(tmp_path: Path) -> None:
    save_random(tmp_path, shard="40KB")
    first, second, *_ = sorted(tmp_path.glob("*.safetensors"))
    index = tmp_path / "model.safetensors.index.json"
    whole, values = second.read_bytes(), json.loads(index.read_text())
    second.write_bytes(whole[: len(whole) // 2])
    assert f"{second.name} is not a readable safetensors file" in refused(tmp_path)
    second.unlink()
    with pytest.raises(ValueError, match=f"missing shards: {second.name}"):
        load_config(tmp_path)
    second.write_bytes(whole)
    name = next(name for name, shard in values["weight_map"].items() if shard == second.name)
    index.write_text(json.dumps({"weight_map": {**values["weight_map"], name: first.name}}))
    assert f"says that {name} is in {first.name}, and it is not" in refused(tmp_path)
    index.write_text(json.dumps({"weight_map": {n: s for n, s in values["weight_map"].items() if n != name}}))
    assert f"the weights have no {name}" in refused(tmp_path)
    for broken in ({}, {"weight_map": [first.name]}, {"weight_map": {name: 1}}):
        index.write_text(json.dumps(broken))
        with pytest.raises(ValueError, match="no weight_map from tensor names to names of files"):
            load_config(tmp_path)


def test_weights_of_integers(tmp_path: Path) -> None:
    save_random(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "model.norm.weight is of type I8; F32, F16, BF16 work" in refused(tmp_path)


def test_the_check_needs_no_torch() -> None:
    code = (
        "import sys; from common.models.config import load_config; from common.models.sources import resolve_model;"
        "from common.models.weights import check_weights; check_weights(load_config(resolve_model('tiny')));"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
