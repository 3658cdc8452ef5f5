"""EngineArgs: every setting of the engine, each default stated once. The command line is derived from it.

Names, spellings and defaults are SGLang's where they mean the same. The log level is not: `run` prints tables, and
log lines would run through them.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, field
from typing import Any


def arg(default: Any, help: str, *, aliases: tuple[str, ...] = (), choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": help, "aliases": aliases, "choices": choices})


@dataclass(frozen=True)
class EngineArgs:
    stage: str = arg("peer", "process model: rpyc, broadcast, peer, all three (all), or package.module:launch")
    model_path: str | None = arg(
        None,
        "smollm2 (the default), tiny, a Hugging Face folder, or a GGUF file; sim (default: tiny) takes only its"
        " tokenizer, vocabulary and context length",
        aliases=("--model",),
    )
    tp_size: int = arg(1, "tensor-parallel ranks per replica", aliases=("--tensor-parallel-size", "--tp"))
    dp_size: int = arg(1, "data-parallel replicas", aliases=("--data-parallel-size", "--dp"))
    scheduling: str | None = arg(
        None,
        "who plans a turn; default: rank0 for rpyc with level constants, else replicated",
        choices=("rank0", "replicated"),
    )
    overlap: bool = arg(
        False, "peer only: plan the next turn while the forward of this one runs, on a thread of its own"
    )
    constants: str = arg(
        "level",
        "level: only the process model differs; era: with the sleeps, bursts, encodings and spinning of its version",
        choices=("level", "era"),
    )
    idle: str | None = arg(
        None,
        "with nothing to do: block until a message comes, or spin; default: block, era: spin",
        choices=("block", "spin"),
    )
    device: str = arg(
        "cpu",
        "where the forward runs; sim: no model, a forward is a wait of the predicted length, and tokens are hashes",
        choices=("cpu", "cuda", "sim"),
    )
    sim_profile: str | None = arg(
        None,
        "the GPU and model that sim predicts: h100-qwen3-0.6b (the default), h100-llama3-8b, a100-qwen3-0.6b,"
        " a100-llama3-8b, or a .json file",
    )
    sim_launch_us: float | None = arg(
        None, "on sim, CPU time in us that launching a forward burns on each rank (default: 0)"
    )
    dtype: str = arg(
        "float32",
        "weights and KV cache, and activations where a CPU can; on sim the profile's",
        choices=("float32", "bfloat16"),
    )
    collectives: str = arg("shm", "tensor-parallel collectives of the forward on cpu", choices=("shm", "gloo"))
    load_balance_method: str = arg(
        "round_robin", "how replicas get their requests", choices=("round_robin", "shortest_queue")
    )
    schedule_policy: str = arg("lpm", "order of the waiting queue", choices=("lpm", "random", "fcfs", "dfs-weight"))
    schedule_conservativeness: float = arg(
        1.0, "above 1 fewer requests run at once, below 1 more, at the risk of retractions"
    )
    disable_radix_cache: bool = arg(False, "never share a prefix between requests")
    chunked_prefill_size: int = arg(2048, "longest prefill of one turn, in tokens; -1 for no limit")
    max_prefill_tokens: int = arg(16384, "most prompt tokens admitted in one turn")
    max_total_tokens: int | None = arg(None, "KV pool of a replica, in tokens; default: from free memory")
    max_running_requests: int | None = arg(None, "most requests in a batch of one replica; default: 256")
    context_length: int | None = arg(None, "longest prompt + output; default: the model's")
    random_seed: int = arg(42, "base of the seeds of requests that bring none, and of --schedule-policy random")
    stream_interval: int | None = arg(
        None, "tokens between two streamed chunks of a request; default: 1, era: the version's"
    )
    disable_packed_linear: bool = arg(False, "plain F.linear in place of packed weights")
    disable_cuda_graph: bool = arg(False, "on cuda, launch the kernels of a decode step one by one")
    check_divergence: int = arg(0, "compare the ranks' plan digests every N turns; 0 for never")
    watchdog_timeout: float = arg(
        60.0, "seconds without a finished turn, while work is outstanding, after which the engine fails; 0 for never"
    )
    startup_timeout: float = arg(30.0, "seconds without progress of any process after which a start fails; 0 for never")
    on_replica_failure: str = arg(
        "exit",
        "with --dp-size above 1, when a replica fails: the whole engine fails; or degrade: the others go on",
        choices=("exit", "degrade"),
    )
    supervision: str = arg(
        "full",
        "full: every failure is noticed at once; era: only what the stage's own version noticed",
        choices=("full", "era"),
    )
    era_hang_limit: float = arg(
        60.0, "with --supervision era, seconds without a finished turn after which the engine fails all the same"
    )
    fault: str | None = arg(None, 'make a process misbehave: "DP0 TP1: die at turn 7"; kinds in common/faults.py')
    trace_dir: str | None = arg(None, "write what every process did when into this folder")
    log_level: str = arg("warning", "python logging level; info, SGLang's default, shows every prefill")


def add_engine_args(parser: argparse.ArgumentParser) -> None:
    """One flag per field of EngineArgs; argparse also takes any unambiguous prefix, as it does in SGLang."""
    for f in dataclasses.fields(EngineArgs):
        flags = ["--" + f.name.replace("_", "-"), *f.metadata["aliases"]]
        if isinstance(f.default, bool):
            parser.add_argument(*flags, dest=f.name, action="store_true", help=f.metadata["help"])
            continue
        kind = next(kind for kind in (int, float, str) if kind.__name__ in str(f.type))
        shown = "" if f.default is None else f" (default: {f.default})"
        parser.add_argument(
            *flags,
            dest=f.name,
            type=kind,
            default=f.default,
            choices=f.metadata["choices"],
            help=f.metadata["help"] + shown,
        )


def engine_args_from(namespace: argparse.Namespace, **override: Any) -> EngineArgs:
    values = {f.name: getattr(namespace, f.name) for f in dataclasses.fields(EngineArgs) if hasattr(namespace, f.name)}
    return EngineArgs(**{**values, **override})
