"""Environment of a rank's process, fixed before it imports torch: OpenMP reads it once, when it is loaded."""

from __future__ import annotations

import os

from common.args import EngineArgs


def threads_per_rank(args: EngineArgs) -> int:
    """The cores this process may use, shared out over all ranks; at least one."""
    return max(1, len(os.sched_getaffinity(0)) // (args.tp_size * args.dp_size))


def rank_env(args: EngineArgs) -> dict[str, str]:
    """OMP thread count (every OpenMP thread spins between two parallel regions, so too many starve the others)."""
    threads = str(threads_per_rank(args))
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": "lo"}


def rank_name(role: str, args: EngineArgs, replica: int, rank: int) -> str:
    """`evo-peer TP1`, or `evo-peer DP0 TP1` with data parallelism."""
    return f"evo-{role} {rank_label(args, replica, rank)}"


def rank_label(args: EngineArgs, replica: int, rank: int) -> str:
    return f"DP{replica} TP{rank}" if args.dp_size > 1 else f"TP{rank}"
