"""Bad input ends in one clear line and exit code 2, before any process starts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from common.models.sources import resolve_model
from evolution.cli import main
from tests.conftest import descendants, names_left_on_disk

CASES = {
    "unknown stage": (
        ["--stage", "rpc"],
        "unknown stage 'rpc': choose rpyc, broadcast, peer, or package.module:launch",
    ),
    "stage module missing": (["--stage", "nowhere.to:launch"], "No module named 'nowhere'"),
    "stage function missing": (["--stage", "json:launch"], "json has no function 'launch'"),
    "tp 7 on tiny": (["--tp-size", "7"], "1, 2, 4, 8"),
    "tp 3 on tiny": (["--tp-size", "3"], "1, 2, 4, 8"),
    "tp 0": (["--tp-size", "0"], "--tp-size must be a whole number of at least 1"),
    "dp -1": (["--dp-size", "-1"], "--dp-size must be a whole number of at least 1"),
    "tp word": (["--tp-size", "two"], "invalid int value: 'two'"),
    "not a folder": (["--model-path", "/no/such/model"], "/no/such/model"),
    "folder that is no model": (["--model-path", "/usr"], "/usr"),
    "long prompt": (["--prompt", "x" * 3000], "3000"),
    "long prompt for a small pool": (["--max-total-tokens", "64", "--prompt", "x" * 70], "64"),
    "empty prompt": (["--prompt", ""], "a prompt must be a non-empty string"),
    "empty prompt among others": (["--prompt", "a", ""], "a prompt must be a non-empty string"),
    "token id too large": (["--input-ids", "1,2,99999"], "99999"),
    "token id negative": (["--input-ids=-1,2"], "-1"),
    "token ids are words": (["--input-ids", "1,two"], "1,two"),
    "two workloads": (["--prompt", "a", "--input-ids", "1"], "give one of"),
    "temperature below 0": (["--temperature", "-0.5"], "temperature"),
    "temperature nan": (["--temperature", "nan"], "temperature"),
    "temperature inf": (["--temperature", "inf"], "temperature"),
    "top_p 0": (["--top-p", "0"], "top_p"),
    "top_p 1.1": (["--top-p", "1.1"], "top_p"),
    "top_k 0": (["--top-k", "0"], "top_k"),
    "max_new_tokens -1": (["--max-new-tokens", "-1"], "max_new_tokens"),
    "request rate 0": (["--request-rate", "0"], "--request-rate must be above 0"),
    "num prompts 0": (["--num-prompts", "0"], "--num-prompts must be at least 1"),
    "more memory than there is": (["--max-total-tokens", "2000000000"], "GiB"),
    "overlap in another stage": (["--stage", "rpyc", "--overlap"], "has no overlap loop: use --stage peer"),
    "overlap from rank 0": (["--overlap", "--scheduling", "rank0"], "--overlap: every rank plans ahead for itself"),
    "chunk 0": (["--chunked-prefill-size", "0"], "--chunked-prefill-size must be at least 1"),
    "context longer than the model's": (["--context-length", "100000"], "longer than the model's 2048"),
    "no gpu": (["--device", "cuda"], "no NVIDIA GPU is visible"),
    "profile without sim": (["--sim-profile", "h100-llama3-8b"], "--sim-profile goes with --device sim, not with cpu"),
    "launch cost without sim": (["--sim-launch-us", "5"], "--sim-launch-us goes with --device sim, not with cpu"),
    "no such profile": (["--device", "sim", "--sim-profile", "h999"], "choose h100-llama3-8b, "),
    "no such profile file": (["--device", "sim", "--sim-profile", "/no/such.json"], "No such file or directory"),
    "launch cost below 0": (["--device", "sim", "--sim-launch-us", "-1"], "must be a finite number from 0, not -1.0"),
    "gloo on sim": (["--device", "sim", "--collectives", "gloo"], "--collectives gloo goes with --device cpu"),
    "tp 3 on the profile's model": (
        ["--device", "sim", "--sim-profile", "h100-llama3-8b", "--tp-size", "3"],
        "Llama-3-8B cannot run at TP 3",
    ),
    "a pool larger than the profile's": (["--device", "sim", "--max-total-tokens", "9999999"], "would fit"),
    "log level": (["--log-level", "loud"], "loud"),
    "json into nowhere": (["--json", "/no/such/folder/x.json"], "No such file or directory"),
    "json is a folder": (["--json", "/tmp"], "Is a directory"),
    "a million replicas": (["--dp-size", "1000000"], "at most 1024 ranks"),
    "random seed": (["--random-seed", str(2**80)], "--random-seed must fit 64 bits"),
    "stage of another kind": (["--stage", "os:system"], "launch(args, endpoints, supervisor)"),
    "a name that no file can have": (["--model-path", "x" * 300], "File name too long"),
    "choice": (["--schedule-policy", "best"], "invalid choice: 'best'"),
    "conservativeness 0": (["--schedule-conservativeness", "0"], "--schedule-conservativeness must be a finite number"),
    "conservativeness nan": (["--schedule-conservativeness", "nan"], "above 0, not nan"),
    "conservativeness word": (["--schedule-conservativeness", "much"], "invalid float value: 'much'"),
}


@pytest.fixture(autouse=True)
def sigterm_handler():
    """`main` installs one, in this process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_exit_code_2(case, capsys):
    arguments, expected = CASES[case]
    one_line_that_says(["--model-path", "tiny", *arguments], expected, capsys)


def test_a_folder_with_another_architecture(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"], "model_type": "bert"}))
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--model-path", str(tmp_path)])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert "BertModel" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", "64"), ("vocab_size", None), ("num_hidden_layers", 0), ("num_attention_heads", 0)],
)
def test_a_folder_with_a_broken_config(tmp_path, capsys, key, value):
    config = json.loads((resolve_model("tiny") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "head_dim": None, key: value}))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--model-path", str(tmp_path)])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert "config.json" in error


@pytest.mark.parametrize("shards", [1, 2])
def test_a_folder_with_truncated_weights(tmp_path, capsys, shards):
    for file in resolve_model("tiny").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = tmp_path / "model.safetensors"
    name = "model.safetensors" if shards == 1 else "model-00001-of-00002.safetensors"
    (tmp_path / name).write_bytes(whole.read_bytes()[:5000])
    if shards == 2:
        whole.unlink()
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    one_line_that_says(["--model-path", str(tmp_path)], f"{name} is not a readable safetensors file", capsys)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "not a whole GGUF file"), (b"GGUF\3\0\0\0", "truncated or damaged"), (None, "there is no model")],
)
def test_a_gguf_file_that_is_none(tmp_path, monkeypatch, capsys, content, reason):
    monkeypatch.setenv("EVOLUTION_CACHE", str(tmp_path / "cache"))
    if content is not None:
        (tmp_path / "x.gguf").write_bytes(content)
    one_line_that_says(["--model-path", str(tmp_path / "x.gguf")], reason, capsys)


def one_line_that_says(arguments, expected, capsys):
    before = descendants(), names_left_on_disk()
    with pytest.raises(SystemExit) as exit_:
        main(["run", *arguments])
    captured = capsys.readouterr()
    assert exit_.value.code == 2
    assert expected in captured.err
    assert captured.err.count("\n") == 1, captured.err
    assert captured.out == ""
    assert (descendants(), names_left_on_disk()) == before


def test_the_main_process_never_imports_torch():
    code = (
        "import sys\n"
        "sys.argv = ['evolution', 'run', '--model-path', 'tiny', '--temperature', '-1']\n"
        "from evolution.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    import evolution.run, evolution.engine\n"
        "    print([name for name in ('torch', 'transformers') if name in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
