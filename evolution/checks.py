"""Everything that can be refused is refused here, in one line, before any process starts."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import platform
import sys

from common.args import EngineArgs
from common.faults import check_faults
from common.memory import check_memory, default_max_total_tokens
from common.models.config import ModelConfig, load_config, plan_heads
from common.models.sources import resolve_model
from common.models.weights import check_weights
from common.sampling_params import INT64_MAX, INT64_MIN
from common.sim.profiles import load_profile
from evolution.sim_checks import fill_in_sim, sim_total_tokens
from evolution.stages import fill_in, find_stage, known_processes, supports

DEFAULT_MAX_RUNNING_REQUESTS = 256
MOST_RANKS = 1024
SEEDS_OF_A_CALL = 1 << 32  # requests count up from --random-seed


def check_platform() -> None:
    """Raises ValueError elsewhere than on Linux x86-64 or arm64 with Python 3.11 or 3.12."""
    here = f"{platform.system()} {platform.machine()}, Python {sys.version_info.major}.{sys.version_info.minor}"
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise ValueError(f"this runs on Linux on x86-64 or arm64, not on {here}")
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        raise ValueError(f"this runs on Python 3.11 and 3.12, not on {here}")


def resolve_args(args: EngineArgs, measure_memory: bool = True) -> tuple[EngineArgs, ModelConfig]:
    """The same settings with everything filled in (scheduling, model folder, KV pool, context length), and the
    model's config. Without `measure_memory` the default pool is not sized: nothing is going to be started.

    Raises ValueError of one line for whatever cannot work.
    """
    check_platform()
    _check_types(args)
    find_stage(args.stage)
    _check_ranges(args)
    _check_choices(args)
    args = fill_in_sim(fill_in(args))
    if args.dp_size > 1 and "dp" not in supports(args.stage):
        raise ValueError(f"stage {args.stage!r} has no data parallelism: use --dp-size 1")
    if args.scheduling == "rank0" and "rank0" not in supports(args.stage):
        raise ValueError(f"stage {args.stage!r} cannot plan on rank 0 alone: use --scheduling replicated")
    if args.overlap and "overlap" not in supports(args.stage):
        raise ValueError(f"stage {args.stage!r} has no overlap loop: use --stage peer, or go without --overlap")
    if args.overlap and args.scheduling != "replicated":
        raise ValueError("--overlap: every rank plans ahead for itself, so it goes with --scheduling replicated only")

    if args.on_replica_failure == "degrade" and (args.dp_size == 1 or args.supervision == "era"):
        raise ValueError("--on-replica-failure degrade goes with --dp-size above 1 and with --supervision full only")
    if args.fault:
        check_faults(args, known_processes(args))

    folder = resolve_model(args.model_path)
    config = load_config(folder)
    profile = load_profile(args.sim_profile) if args.device == "sim" else None
    plan_heads(profile.model.config if profile else config, args.tp_size)
    if not profile:
        check_weights(config)
    context_length = args.context_length or config.max_position_embeddings
    if context_length > config.max_position_embeddings:
        raise ValueError(
            f"--context-length {context_length} is longer than the model's {config.max_position_embeddings}"
        )
    total = args.max_total_tokens
    if measure_memory and profile:
        total = sim_total_tokens(args, profile)
    elif measure_memory:
        if args.device == "cuda" and not _cuda_devices():
            raise ValueError("--device cuda: no NVIDIA GPU is visible; --device cpu works here")
        shape = (config, args.tp_size, args.dp_size, args.dtype, args.device)
        total = total or default_max_total_tokens(*shape, context_length)
        check_memory(*shape, total)
    total = total or context_length
    filled = dataclasses.replace(
        args,
        model_path=str(folder),
        context_length=min(context_length, total),
        max_total_tokens=total,
        # A request holds at least one KV slot, so more rows than slots could never be used.
        max_running_requests=min(args.max_running_requests or DEFAULT_MAX_RUNNING_REQUESTS, total),
    )
    return filled, config


def _check_types(args: EngineArgs) -> None:
    """The command line cannot get these wrong; `Engine(...)` can."""
    kinds = {"int": int, "str": str, "bool": bool, "float": (int, float)}
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        kind = kinds[field.type.removesuffix(" | None")]
        if value is None and field.type.endswith("| None"):
            continue
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"--{field.name.replace('_', '-')} must be of type {field.type}, not {value!r}")


def _check_ranges(args: EngineArgs) -> None:
    at_least_one = ("tp_size", "dp_size", "max_prefill_tokens")
    optional = ("max_total_tokens", "max_running_requests", "context_length", "stream_interval")
    for name in (*at_least_one, *optional):
        value = getattr(args, name)
        if name in optional and value is None:
            continue
        if value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be a whole number of at least 1, not {value!r}")
    if args.tp_size * args.dp_size > MOST_RANKS:
        raise ValueError(f"--tp-size {args.tp_size} x --dp-size {args.dp_size}: at most {MOST_RANKS} ranks on one host")
    if args.chunked_prefill_size != -1 and args.chunked_prefill_size < 1:
        raise ValueError(f"--chunked-prefill-size must be at least 1, or -1 for none, not {args.chunked_prefill_size}")
    if not 0 < args.schedule_conservativeness < float("inf"):
        raise ValueError(
            f"--schedule-conservativeness must be a finite number above 0, not {args.schedule_conservativeness}"
        )
    if not INT64_MIN <= args.random_seed <= INT64_MAX - SEEDS_OF_A_CALL:
        raise ValueError(f"--random-seed must fit 64 bits, not {args.random_seed}")
    for name in ("watchdog_timeout", "startup_timeout", "era_hang_limit"):
        if not 0 <= getattr(args, name) < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} must be 0 or more seconds, not {getattr(args, name)}")
    if not args.era_hang_limit:
        raise ValueError("--era-hang-limit must be above 0: where nobody notices a failure, it alone ends the engine")
    if args.check_divergence < 0:
        raise ValueError(f"--check-divergence must be 0 or more, not {args.check_divergence}")


def _check_choices(args: EngineArgs) -> None:
    """argparse checks these for the command line; `Engine(...)` comes here directly."""
    for field in dataclasses.fields(args):
        value, choices = getattr(args, field.name), field.metadata["choices"]
        if choices and value is not None and value not in choices:
            raise ValueError(f"--{field.name.replace('_', '-')} {value!r}: choose from {', '.join(choices)}")
    if not isinstance(logging.getLevelName(args.log_level.upper()), int):
        raise ValueError(f"--log-level {args.log_level!r}: choose from debug, info, warning, error")
    if args.trace_dir is not None and not os.access(args.trace_dir, os.W_OK | os.X_OK):
        raise ValueError(f"--trace-dir {args.trace_dir}: not a folder that can be written to")


def _cuda_devices() -> int:
    """GPUs that the driver shows; asked without importing torch, which the main process never does."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
