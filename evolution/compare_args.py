"""The options of `compare`, apart from it: the other commands need not import what it measures with."""

from __future__ import annotations

import argparse

from common.args import EngineArgs

# Workloads that fill a decode batch and end within seconds: requests, prompt, output, rounds.
DEFAULT_WORKLOAD = {"sim": (16, 128, 256, 12), "cpu": (16, 128, 32, 1), "cuda": (16, 128, 256, 12)}
DEFAULT_REPEATS = 9
# Settings that every arm shares.
SETTINGS = (
    "device", "model_path", "sim_profile", "sim_launch_us", "dtype", "random_seed", "load_balance_method", "idle",
)  # fmt: skip


def add_compare_args(parser: argparse.ArgumentParser) -> None:
    arms = parser.add_argument_group("arms", "every combination of these is one")
    arms.add_argument("--stages", default="rpyc,broadcast,peer", help="default: rpyc,broadcast,peer")
    arms.add_argument("--tp-size", default="1", metavar="T,..", help="default: 1")
    arms.add_argument("--dp-size", default="1", metavar="D,..", help="default: 1")
    arms.add_argument(
        "--scheduling", default="replicated", metavar="rank0,replicated", help="default: replicated, in every stage"
    )
    arms.add_argument("--constants", default="level", metavar="level,era", help="default: level")
    every = parser.add_argument_group("engine", "the same in every arm; as in `run`")
    defaults = EngineArgs()
    for name in SETTINGS:
        default = getattr(defaults, name)
        kind = {"random_seed": int, "sim_launch_us": float}.get(name, str)
        every.add_argument("--" + name.replace("_", "-"), type=kind, default=default)
    work = parser.add_argument_group("workload", "default: 16 requests of 128 token ids, 256 tokens out, 12 rounds;"
                                     " on cpu 32 tokens out, 1 round")  # fmt: skip
    work.add_argument("--num-prompts", type=int, help="requests of a round")
    work.add_argument("--input-len", type=int, help="tokens of each")
    work.add_argument("--output-len", type=int, help="tokens that each generates")
    work.add_argument("--rounds", type=int, help="rounds in an engine's life")
    work.add_argument("--request-rate", type=float, help="requests/s, Poisson; default: a round's all at once")
    parser.add_argument("--repeats", type=int, help=f"runs of every arm (default: {DEFAULT_REPEATS})")
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder for plan, runs, tables")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the comparison in DIR; takes no other options but --repeats"
    )
