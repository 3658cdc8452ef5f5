"""`bench engine`: output tokens/s end to end against transformers' generate, and TP 2 against TP 1.

Prompts of 128 random token ids, 64 greedy tokens each, end of sequence ignored. Arms, per dtype and number of prompts:

    transformers   generate with SDPA, on as many threads as TP 1 has, in a process of its own
    tp1            the whole engine (stage peer, TP 1): from Engine.generate to the last token's arrival
    tp1 padded     the same on a copy of the model whose KV groups are padded with zeros, as TP 2 pads them
    tp2            the whole engine at TP 2, which shares out the same cores
    bare tp2       its two ranks without the engine around them (`bare_ranks`)

Two dtypes and two numbers of prompts at 7 repeats take about 23 minutes, since the lengths are those that the aims are
stated for. `--dtypes` and `--prompts` choose less.

A repeat measures all arms in turn on prompts that no repeat before it had, so no prefix is ever cached. The processes
of a dtype start once and stay: an idle peer stage blocks and an idle transformers does nothing; `idle_cpu_seconds`
says what they all burned together while another arm was measured. The bare ranks start anew for each repeat.

What TP 2 loses against TP 1 falls into factors that multiply: padding (tp1 padded / tp1), sharding (bare tp2 / tp1
padded, with the collectives' share of its time: `own` work, and `wait` for the other rank), and the engine around the
ranks, which shares their cores (tp2 / bare tp2).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from common.memory import DTYPE_BYTES
from common.models.config import ModelConfig, plan_heads
from common.ranks import rank_env
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.environment import environment
from experiments.bench.bare_ranks import run_bare_ranks
from experiments.bench.engines import children_of, finish, start
from experiments.bench.option_lists import check_once, check_repeats, numbers
from experiments.bench.rounds import median
from experiments.bench.transformers_arm import TransformersArm
from experiments.bench.verdicts import combined, in_words
from experiments.intervals import pairwise_ratio, remark, shown, verdict

INPUT_LEN, OUTPUT_LEN = 128, 64
TARGETS = {("bfloat16", 8): 1.7, ("bfloat16", 1): 1.5, ("float32", 8): 1.4, ("float32", 1): 1.4}
TP2_TARGET = 0.8
READ_BYTES = 512 << 20
SAMPLING = {"temperature": 0, "max_new_tokens": OUTPUT_LEN, "ignore_eos": True}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model-path", default="smollm2", help="as of `run` (default: smollm2)")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="default: float32,bfloat16")
    parser.add_argument("--prompts", default="8,1", help="prompts at once (default: 8,1)")
    parser.add_argument("--repeats", type=int, default=7, help="times each arm is measured (default: 7)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    dtypes = options.dtypes.split(",")
    counts = numbers("--prompts", options.prompts, 1, "give numbers of prompts separated by commas, like 8,1")
    check_repeats(options.repeats)
    check_once("--dtypes", dtypes)
    args, config = resolve_args(_args(options.model_path, dtypes[0], 1, max(counts)))
    for dtype in dtypes:
        resolve_args(_args(options.model_path, dtype, 2, max(counts)))
    print(f"{len(dtypes)} dtypes, {options.repeats} repeats: about {len(dtypes) * (1 + 1.5 * options.repeats):.0f} min")
    result: dict[str, Any] = {"bench": "engine", "unit": "output tokens/s", "samples": {}}
    with tempfile.TemporaryDirectory() as scratch:
        groups = plan_heads(config, 2).padded_groups
        padded = pad_groups(Path(args.model_path), config, groups, Path(scratch) / "padded")
        for dtype in dtypes:
            folders = {"plain": args.model_path, "padded": str(padded)}
            result["samples"][dtype] = measure(folders, config, dtype, counts, options.repeats)
    result |= judge(result["samples"])
    result["environment"] = environment(args) | {
        "transformers": metadata.version("transformers"),
        "rank_environment": rank_env(args),
        "rank_environment_tp2": rank_env(_args(args.model_path, dtypes[0], 2, max(counts))),
    }
    return result


def _args(model_path: str, dtype: str, tp_size: int, prompts: int) -> EngineArgs:
    # Room for two repeats' prompts: the older one's leave the cache.
    tokens = 2 * prompts * (INPUT_LEN + OUTPUT_LEN)
    return EngineArgs(model_path=model_path, dtype=dtype, tp_size=tp_size, max_total_tokens=tokens)


def pad_groups(source: Path, config: ModelConfig, groups: int, target: Path) -> Path:
    """A copy of a model folder with zero KV groups up to `groups`; `source` itself if it has as many."""
    from safetensors.numpy import load_file, save_file

    if groups == config.num_kv_heads:
        return source
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    group_size = config.num_heads // config.num_kv_heads
    rows = {"q": groups * group_size * config.head_dim, "k": groups * config.head_dim, "v": groups * config.head_dim}
    weights = {name: array for file in source.glob("*.safetensors") for name, array in load_file(file).items()}
    for name, array in weights.items():
        module, _, what = name.rpartition(".")
        kind = module.rpartition(".")[2]
        if kind in ("q_proj", "k_proj", "v_proj"):
            more = rows[kind[0]] - len(array)
            weights[name] = np.pad(array, ((0, more), (0, 0)) if what == "weight" else (0, more))
        elif kind == "o_proj" and what == "weight":
            weights[name] = np.pad(array, ((0, 0), (0, rows["q"] - array.shape[1])))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    changed = json.loads((source / "config.json").read_text())
    changed |= {"num_attention_heads": groups * group_size, "num_key_value_heads": groups, "head_dim": config.head_dim}
    (target / "config.json").write_text(json.dumps(changed))
    return target


def measure(
    folders: dict[str, str], config: ModelConfig, dtype: str, counts: list[int], repeats: int
) -> dict[str, Any]:
    """`prompts[count][arm]`: samples, one per repeat; `read_gb_per_s` and the weights' bytes for the floor."""
    arms_args = {
        "tp1": _args(folders["plain"], dtype, 1, max(counts)),
        "tp1 padded": _args(folders["padded"], dtype, 1, max(counts)),
        "tp2": _args(folders["plain"], dtype, 2, max(counts)),
    }
    bare_args, _ = resolve_args(arms_args["tp2"])
    samples: dict[int, dict[str, list[Any]]] = {count: {} for count in counts}
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(TransformersArm(folders["plain"], dtype, rank_env(arms_args["tp1"])))
        engines = {name: stack.enter_context(start(args)) for name, args in arms_args.items()}
        pids = {name: children_of(engine) for name, engine in engines.items()}
        pids["transformers"] = [other.pid]
        reads = [_read_rate(other)]
        for repeat in range(-1, repeats):  # the first one warms up
            batches = [_prompts(config.vocab_size, count, repeat) for count in counts]
            for count, prompts in zip(counts, batches, strict=True):
                taken = {}
                for name in ("transformers", *engines):
                    before = {key: _cpu_seconds(of) for key, of in pids.items()}
                    taken[name] = _sample(other if name == "transformers" else engines[name], prompts.tolist())
                    burned = {key: _cpu_seconds(of) - before[key] for key, of in pids.items()}
                    taken[name]["cpu_seconds"] = burned.pop(name)
                    taken[name]["idle_cpu_seconds"] = sum(burned.values())
                if repeat >= 0:
                    for name, sample in taken.items():
                        samples[count].setdefault(name, []).append(sample)
            if repeat >= 0:
                for count, sample in zip(counts, run_bare_ranks(bare_args, batches, OUTPUT_LEN), strict=True):
                    samples[count].setdefault("bare tp2", []).append(sample)
        reads.append(_read_rate(other))
    return {"prompts": samples, "read_gb_per_s": reads, "weight_bytes": _bytes_per_step(config, dtype)}


def _prompts(vocab: int, count: int, repeat: int) -> np.ndarray:
    return np.random.default_rng((count, repeat + 1)).integers(0, vocab, (count, INPUT_LEN))


def _sample(arm: TransformersArm | Engine, prompts: list[list[int]]) -> dict[str, Any]:
    if isinstance(arm, TransformersArm):
        answer = arm.ask(prompts=prompts, new_tokens=OUTPUT_LEN)
        return {"seconds": answer["seconds"], "output_ids": answer["output_ids"]}
    began = time.perf_counter()
    streams = finish(arm, arm.make_requests(None, SAMPLING, prompts)[1])
    output_ids = [stream.result()["output_ids"] for stream in streams]
    return {"seconds": time.perf_counter() - began, "output_ids": output_ids}


def _read_rate(arm: TransformersArm) -> float:
    return READ_BYTES / arm.ask(read_bytes=READ_BYTES)["seconds"] / 1e9


def _cpu_seconds(pids: list[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(t.user + t.system for t in times)


def _bytes_per_step(config: ModelConfig, dtype: str) -> int:
    """Of the weights that a decode step at TP 1 reads, each once: the layers and lm_head."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    per_layer = config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size)
    return (config.num_layers * per_layer + config.vocab_size * config.hidden_size) * DTYPE_BYTES[dtype]


def judge(samples: dict[str, Any]) -> dict[str, Any]:
    """Rates, ratios, the split of TP 2's loss, tokens that agree; and what the targets say together."""
    rows, verdicts = [], {}
    for dtype, measured in samples.items():
        floor = measured["weight_bytes"] / max(measured["read_gb_per_s"]) / 1e9
        for count, arms in measured["prompts"].items():
            seconds = {name: [one["seconds"] for one in taken] for name, taken in arms.items()}
            tokens = count * OUTPUT_LEN
            row = {
                "dtype": dtype,
                "prompts": count,
                "tokens_per_s": {name: tokens / median(s) for name, s in seconds.items()},
                "cpu_seconds": {
                    name: median([one["cpu_seconds"] for one in taken])
                    for name, taken in arms.items()
                    if name != "bare tp2"
                },
                "idle_cpu_seconds": max(
                    one["idle_cpu_seconds"] for name, taken in arms.items() if name != "bare tp2" for one in taken
                ),
                "to_transformers": pairwise_ratio(seconds["transformers"], seconds["tp1"]),
                "tp2_to_tp1": pairwise_ratio(seconds["tp1"], seconds["tp2"]),
                "padding": pairwise_ratio(seconds["tp1"], seconds["tp1 padded"]),
                "sharding": pairwise_ratio(seconds["tp1 padded"], seconds["bare tp2"]),
                "engine": pairwise_ratio(seconds["bare tp2"], seconds["tp2"]),
                "collectives_own": median([one["own"] / one["seconds"] for one in arms["bare tp2"]]),
                "collectives_wait": median([one["wait"] / one["seconds"] for one in arms["bare tp2"]]),
                "floor_tokens_per_s": count / floor,
                "same_tokens": {name: _agreement(arms["transformers"], arms[name]) for name in ("tp1", "tp2")},
                "outputs": count * len(seconds["tp1"]),
            }
            rows.append(row)
            target = TARGETS.get((dtype, count))
            if target:
                verdicts[f"{dtype}, {count}: to transformers"] = verdict(row["to_transformers"], at_least=target)
            verdicts[f"{dtype}, {count}: TP 2 to TP 1"] = verdict(row["tp2_to_tp1"], at_least=TP2_TARGET)
    return {"rows": rows, "verdicts": verdicts, "verdict": combined(verdicts.values())}


def _agreement(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> int:
    """Outputs that are the same in both, token by token."""
    return sum(
        a == b
        for left, right in zip(one, other, strict=True)
        for a, b in zip(left["output_ids"], right["output_ids"], strict=True)
    )


def show(result: dict[str, Any]) -> None:
    console = Console()
    speed = Table(title=f"output tokens/s end to end, {INPUT_LEN} in / {OUTPUT_LEN} out; medians and ratios of pairs")
    for column in ("", "transformers", "TP 1", "ratio", "target", "", "same tokens", "floor"):
        speed.add_column(column, justify="right")
    split = Table(title="TP 2, one thread per rank, against TP 1 with two: factors of its throughput")
    for column in ("", "TP 2", "ratio", "target", "", "padding", "sharding", "engine", "collectives own, wait"):
        split.add_column(column, justify="right")
    for row in result["rows"]:
        name, rate = f"{row['dtype']}, {row['prompts']}", row["tokens_per_s"]
        target = TARGETS.get((row["dtype"], row["prompts"]))
        speed.add_row(
            name,
            f"{rate['transformers']:.1f}",
            f"{rate['tp1']:.1f}",
            shown(row["to_transformers"]),
            f">= {target:g}" if target else "",
            result["verdicts"].get(f"{name}: to transformers", "") or remark(row["to_transformers"]),
            f"{row['same_tokens']['tp1']} of {row['outputs']}",
            f"{row['floor_tokens_per_s']:.0f}",
        )
        split.add_row(
            name,
            f"{rate['tp2']:.1f}",
            shown(row["tp2_to_tp1"]),
            f">= {TP2_TARGET:g}",
            result["verdicts"][f"{name}: TP 2 to TP 1"],
            *(shown(row[part]) for part in ("padding", "sharding", "engine")),
            f"{row['collectives_own']:.0%}, {row['collectives_wait']:.0%}",
        )
    console.print(speed)
    console.print("floor: all weights read once per decode step at the plain read rate, no prefill", soft_wrap=True)
    for dtype, measured in result["samples"].items():
        rate = max(measured["read_gb_per_s"])
        console.print(f"{dtype}: {measured['weight_bytes'] / 1e6:.0f} MB per step, read at {rate:.1f} GB/s")
    console.print(split)
    console.print("targets: " + in_words(result["verdicts"].values()))
