"""GGUF files of the three families: the model that comes out is the one that was written, or one line says why not."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from common.models.config import load_config
from common.models.sources import resolve_model
from common.tokenizer import Tokenizer
from experiments import transformers_reference as hf
from tests.helpers import gguf_files
from tests.unit.test_loader import CLOSE, check_greedy

F32, F16, BF16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16
Q8_0, Q4_0 = GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVOLUTION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, family: str = "qwen3", kind: GGMLQuantizationType = F32, tied: bool = True, **settings: object):
    """A file, and the transformers model that it holds. `settings` of the model, or with "__" of the file."""
    metadata = {key: settings.pop(key) for key in list(settings) if "__" in key}
    sizes = {"vocab_size": gguf_files.VOCAB, "hidden_size": 64, "bos_token_id": 258, "eos_token_id": 259}
    settings = {**sizes, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, **settings}
    model = hf.small_model(family, 2, tied, **settings)
    return gguf_files.write_gguf(model, path, kind, **metadata), model


@pytest.mark.parametrize(("kind", "tied"), [(F32, True), (F32, False), (F16, False), (BF16, True), (Q8_0, False)])
@pytest.mark.parametrize("family", hf.FAMILIES)
def test_greedy_equals_the_model_that_was_written(
    tmp_path: Path, family: str, kind: GGMLQuantizationType, tied: bool
) -> None:
    # Llama 3's head_dim is hidden / heads, Qwen3's is not.
    path, model = write(tmp_path / "model.gguf", family, kind, tied, head_dim=32 if family == "qwen3" else 16)
    folder = resolve_model(path)
    for tp_size in (1, 2, 4):
        assert check_greedy(folder, model, tp_size) < CLOSE
    config = load_config(folder)
    assert (config.eos_token_ids, config.tie_word_embeddings) == ((259,), tied)
    # transformers reads the folder as the same model.
    values = json.loads((folder / "config.json").read_text())
    assert {key: values[key] for key in ("hidden_size", "head_dim", "vocab_size", "bos_token_id")} == {
        key: getattr(model.config, key) for key in ("hidden_size", "head_dim", "vocab_size", "bos_token_id")
    }
    prompt = list(range(20))
    assert hf.greedy(hf.load(folder), prompt, 16) == hf.greedy(model, prompt, 16)


def test_the_weights_are_written_as_safetensors_writes_them(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "model.gguf", kind=Q4_0, tied=False)
    written = resolve_model(path) / "model.safetensors"
    save_file(load_file(written), tmp_path / "again.safetensors", metadata={"format": "pt"})
    assert written.read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_a_type_that_cannot_be_dequantised(tmp_path: Path, cache: Path) -> None:
    path, _ = write(tmp_path / "model.gguf", kind=Q4_0)
    # Q8_1 is what llama.cpp turns activations into: no file holds it, but one can say so.
    reader = GGUFReader(path, "r+")
    field = next(tensor.field for tensor in reader.tensors if tensor.name == "token_embd.weight")
    field.parts[4][0] = GGMLQuantizationType.Q8_1
    reader.data.flush()
    assert "token_embd.weight is of type Q8_1, which the gguf package cannot dequantise" in refused(path, cache)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_attention_biases(tmp_path: Path, family: str) -> None:
    path, model = write(tmp_path / "model.gguf", family, attention_bias=True)
    assert check_greedy(resolve_model(path), model, 2) < CLOSE


def test_llama3_rope(tmp_path: Path) -> None:
    path, model = write(tmp_path / "model.gguf", "llama", rope_parameters=gguf_files.LLAMA3_ROPE)
    folder = resolve_model(path)
    assert check_greedy(folder, model, 1, count=200) < CLOSE
    assert load_config(folder).rope_scaling.factor == 8
    rope = {**gguf_files.LLAMA3_ROPE, "high_freq_factor": 2.0}
    path, _ = write(tmp_path / "other.gguf", "llama", rope_parameters=rope)
    with pytest.raises(ValueError, match=r"rope_freqs\.weight is no llama3 scaling with low_freq_factor 1, high_freq"):
        resolve_model(path)


def test_an_end_of_turn_ends_a_request_too(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "model.gguf", tokenizer__ggml__eot_token_id=7)
    assert load_config(resolve_model(path)).eos_token_ids == (259, 7)


@pytest.mark.parametrize("family", hf.FAMILIES)
def test_tokenizer(tmp_path: Path, family: str) -> None:
    path, _ = write(tmp_path / "model.gguf", family)
    # What lies beside the file is not read: here the tokenizer of another model.
    shutil.copy(resolve_model("tiny") / "tokenizer.json", tmp_path)
    ours = Tokenizer(resolve_model(path))
    (tmp_path / "tokenizer.json").unlink()
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in ("the theory", " the 2026 heads\n\nélan", "a<|eos|>b", "12345"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
    assert ours.encode("he<|eos|>") == [*([258] if family == "llama" else []), 256, 259]
    assert ours.apply_chat_template([{"role": "user", "content": "x"}]) == "x<|eos|>"


# ---------------------------------------------------------------- the cache


def test_a_file_is_converted_once_and_again_when_it_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = write(tmp_path / "a model.gguf")
    folder = resolve_model(path)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    (tmp_path / "link.gguf").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("a model.gguf") == resolve_model(tmp_path / "link.gguf") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert folder.parent == cache
    assert folder.name.startswith("a model-")

    path, model = write(tmp_path / "a model.gguf", kind=F16)
    other = resolve_model(path)
    assert other != folder
    assert check_greedy(other, model, 1) < CLOSE
    os.utime(path, ns=(0, 1))
    assert resolve_model(path) not in (folder, other)
    shutil.copy(path, tmp_path / "long name.gguf".rjust(255, "x"))
    assert load_config(resolve_model(tmp_path / "long name.gguf".rjust(255, "x"))).num_layers == 2


def test_two_first_starts_at_once(tmp_path: Path, cache: Path) -> None:
    path, model = write(tmp_path / "model.gguf")
    code = f"from common.models.sources import resolve_model; print(resolve_model({str(path)!r}))"
    starts = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {start.communicate()[0].strip() for start in starts}
    assert [start.returncode for start in starts] == [0, 0]
    assert len(folders) == 1
    folder = Path(folders.pop())
    assert sorted(file.name for file in cache.iterdir()) == [folder.name, f"{folder.name}.lock"]
    assert check_greedy(folder, model, 1) < CLOSE


# ---------------------------------------------------------------- refusals


def refused(path: Path, cache: Path) -> str:
    with pytest.raises(ValueError) as error:
        resolve_model(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    # Nothing is left of it that a later start could take for a model.
    assert not cache.exists() or all(file.name.endswith(".lock") for file in cache.iterdir())
    return str(error.value)


def test_files_that_are_not_whole(tmp_path: Path, cache: Path) -> None:
    path, _ = write(tmp_path / "model.gguf")
    whole = path.read_bytes()
    for size in (0, 3, 4, 20, 100, 1000, 5000, len(whole) // 2, len(whole) - 33):
        path.write_bytes(whole[:size])
        assert "is not a whole GGUF file: it is truncated or damaged" in refused(path, cache)
    path.write_bytes(b"nothing like it" * 100)
    assert "is not a whole GGUF file" in refused(path, cache)
    path.write_bytes(whole[:4] + struct.pack("<I", 1) + whole[8:])
    assert "version 1" in refused(path, cache)


def test_a_file_that_is_not_there(tmp_path: Path, cache: Path) -> None:
    message = refused(tmp_path / "none.gguf", cache)
    assert message.endswith("give smollm2, tiny, a Hugging Face folder or a GGUF file")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"split__count": 3}, "one of 3 parts"),
        ({"qwen3__rope__scaling__type": "yarn"}, "rope scaling of type yarn is not supported"),
        ({"qwen3__expert_count": 8}, "8 experts"),
        ({"qwen3__attention__sliding_window": 128}, "slides over 128 tokens"),
        ({"qwen3__rope__dimension_count": 8}, r"sizes [16, 16, 8]"),
        ({"qwen3__attention__head_count": 0}, "0 for num_heads"),
        ({"tokenizer__ggml__merges": ["x y"]}, "transformers cannot make a tokenizer of it"),
    ],
)
def test_models_that_cannot_run(tmp_path: Path, cache: Path, settings: dict, reason: str) -> None:
    path, _ = write(tmp_path / "model.gguf", **settings)
    assert reason in refused(path, cache)


def test_another_architecture(tmp_path: Path, cache: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "gemma3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    message = refused(tmp_path / "model.gguf", cache)
    assert "the architecture is gemma3; llama, qwen2, qwen3 work" in message


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("qwen3.block_count", "the file has no block_count"),
        ("token_embd.weight", "the file has no token_embd.weight"),
        ("blk.1.ffn_up", "it has a tensor blk.1.ffn_u?.weight"),
        ("blk.1.ffn_up.weight", "the weights have no model.layers.1.mlp.up_proj.weight"),
        ("tokenizer.ggml.tokens", "transformers cannot make a tokenizer of it"),
    ],
)
def test_metadata_or_a_tensor_of_another_name(tmp_path: Path, cache: Path, name: str, reason: str) -> None:
    path, _ = write(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes().replace(name.encode(), name.encode()[:-1] + b"?"))
    assert reason in refused(path, cache)
