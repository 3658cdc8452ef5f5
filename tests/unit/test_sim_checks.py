"""How the settings of sim are filled in, and which are refused."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest

from common.args import EngineArgs
from common.sim.profiles import PROFILES, kv_tokens
from evolution import sim_checks
from evolution.checks import resolve_args


def test_what_is_filled_in():
    args, config = resolve_args(EngineArgs(device="sim", tp_size=2))
    assert args.sim_profile == "h100-qwen3-0.6b"
    assert args.dtype == "bfloat16"
    assert args.sim_launch_us == 0
    assert args.max_total_tokens == kv_tokens(PROFILES["h100-qwen3-0.6b"], 2)
    # Of the default model, tiny: what the requests are checked against.
    assert (config.vocab_size, args.context_length) == (258, 2048)
    assert resolve_args(args) == (args, config), "filling in twice changes something"


def test_tp_is_checked_against_the_profiles_model():
    assert resolve_args(EngineArgs(device="sim", tp_size=3))  # Qwen3-0.6B pads to nine KV heads; tiny could not
    with pytest.raises(ValueError, match="Llama-3-8B cannot run at TP 3"):
        resolve_args(EngineArgs(device="sim", tp_size=3, sim_profile="h100-llama3-8b"))


def test_a_profile_file_and_its_dtype(tmp_path, monkeypatch):
    values = {**msgspec.to_builtins(PROFILES["h100-qwen3-0.6b"]), "dtype": "float32"}
    (tmp_path / "mine.json").write_text(json.dumps(values))
    monkeypatch.chdir(tmp_path)
    args, _ = resolve_args(EngineArgs(device="sim", sim_profile="mine.json"))
    assert args.sim_profile == str(tmp_path / "mine.json"), "ranks may start in another folder"
    assert args.dtype == "float32"
    with pytest.raises(ValueError, match="--dtype bfloat16: profile mine.json is of float32"):
        resolve_args(EngineArgs(device="sim", sim_profile="mine.json", dtype="bfloat16"))


def test_more_kv_tokens_or_weights_than_the_accelerator_holds(tmp_path):
    fits = kv_tokens(PROFILES["a100-llama3-8b"], 1)
    args = EngineArgs(device="sim", sim_profile="a100-llama3-8b", max_total_tokens=fits + 1)
    with pytest.raises(ValueError, match=f"room for {fits} KV tokens.*--max-total-tokens {fits} would fit"):
        resolve_args(args)
    assert resolve_args(dataclasses.replace(args, max_total_tokens=fits))
    small = {**msgspec.to_builtins(PROFILES["a100-llama3-8b"]), "memory_bytes": 16e9}
    (tmp_path / "small.json").write_text(json.dumps(small))
    with pytest.raises(ValueError, match="room for 0 KV tokens.*use a larger --tp-size"):
        resolve_args(EngineArgs(device="sim", sim_profile=str(tmp_path / "small.json")))


def test_more_processes_than_this_machine_can_hold(monkeypatch):
    monkeypatch.setattr(sim_checks, "available_bytes", lambda: 1 << 30)
    assert resolve_args(EngineArgs(device="sim", tp_size=4))
    with pytest.raises(ValueError, match="8 ranks need 200 MiB each, and there is memory for 4"):
        resolve_args(EngineArgs(device="sim", tp_size=4, dp_size=2))
