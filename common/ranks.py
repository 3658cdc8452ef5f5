"""What all stages agree on about a rank's process: its name, its environment, and the group it joins."""

from __future__ import annotations

import os
from pathlib import Path

from common.args import EngineArgs
from common.parallel.group import GroupSpec


def threads_per_rank(args: EngineArgs) -> int:
    """The cores this process may use, shared out over all ranks; at least one."""
    return max(1, len(os.sched_getaffinity(0)) // (args.tp_size * args.dp_size))


def rank_env(args: EngineArgs) -> dict[str, str]:
    """Fixed before the process starts, since libraries read it once, when they are loaded.

    OpenMP's threads spin between two parallel regions, by default for milliseconds: on busy cores that starves the
    other ranks. Too short a spin has a futex woken for each matrix. Output tokens/s of SmolLM2 in float32 with two
    threads of a Zen 4, nothing else running / one core busy with something else: 23 / 14.6 at 1000 (tens of
    microseconds), 28 / 9.8 at 3000, 28 / 8 by default.
    """
    threads = str(threads_per_rank(args))
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "GOMP_SPINCOUNT": "3000", **memory_env()}


def memory_env() -> dict[str, str]:
    """Of every process that large messages go through, too: glibc asks for huge pages for what it maps. A step of
    SmolLM2 takes 6% (float32) to 11% (bfloat16, 8 prompts) less, and rpyc brings an image of 4 MiB to two ranks in
    a third of the time: most of it went into page faults.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc.hugetlb" not in tunables:
        tunables = ":".join(filter(None, (tunables, "glibc.malloc.hugetlb=1")))
    return {"GLIBC_TUNABLES": tunables}


def rank_name(role: str, args: EngineArgs, replica: int, rank: int) -> str:
    """`evo-peer TP1`, or `evo-peer DP0 TP1` with data parallelism."""
    return f"evo-{role} {rank_label(args, replica, rank)}"


def rank_label(args: EngineArgs, replica: int, rank: int) -> str:
    return f"DP{replica} TP{rank}" if args.dp_size > 1 else f"TP{rank}"


def replica_group(args: EngineArgs, folder: str, replica: int) -> GroupSpec:
    """Made by the process that starts the ranks of this replica, and handed to each of them."""
    return GroupSpec.create(
        args.tp_size,
        args.collectives,
        args.device,
        Path(folder),
        f"replica{replica}",
        first_rank=replica * args.tp_size,
        ranks_on_host=args.dp_size * args.tp_size,
    )
