"""The options of `faults`, apart from what it needs to run."""

from __future__ import annotations

import argparse

KINDS = ("kill", "abort", "stop", "raise")
PHASES = ("start", "idle", "prefill", "decode")


def add_faults_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stage", default="peer", help="rpyc, broadcast, peer, or package.module:launch")
    parser.add_argument("--tp-size", "--tp", type=int, default=2, help="ranks per replica (default: 2)")
    parser.add_argument("--dp-size", "--dp", type=int, default=1, help="replicas (default: 1)")
    parser.add_argument("--device", choices=("cpu", "sim"), default="cpu", help="default: cpu, with the model tiny")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS, help="only these ways to fail")
    parser.add_argument("--phase", nargs="+", choices=PHASES, default=PHASES, help="only at these moments")
    parser.add_argument("--process", nargs="+", metavar="NAME", help="only these, like TP1 or detokenizer")
    parser.add_argument("--kills", type=int, metavar="N", help="in place of the table: N random kills under load")
    parser.add_argument("--seed", type=int, default=1, help="of the random kills (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="write the rows and the environment")
