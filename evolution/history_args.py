"""The options of `history` and `claims`, apart from them: other commands need not read what they print."""

from __future__ import annotations

import argparse

PAGES = ("listings", "commits", "trees", "constants", "tradeoffs")
ANSWERS = ("self-test-1", "self-test-2", "self-test-3", "self-test-4", "exercise-1", "exercise-2", "exercise-3")
VERDICTS = ("true", "partly", "wrong", "not checkable")


def add_history_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=("all", *PAGES, "figures", "answers", "eras"),
        default="all",
        metavar="WHAT",
        help=f"all (the default): {', '.join(PAGES)}, and with --out the figures; or one of these; answers: of the"
        " self-test and the exercises; eras: the constants that this suite's stages run with",
    )
    parser.add_argument(
        "name", nargs="?", choices=ANSWERS, metavar="ANSWER", help=f"which answer: {', '.join(ANSWERS)}"
    )
    parser.add_argument("--out", metavar="DIR", help="draw the figures there: the three stages, and a strip")
    sizes = parser.add_argument_group("sizes of the trees")
    sizes.add_argument("--tp-size", type=int, default=2, help="ranks of a replica (default: 2)")
    sizes.add_argument("--dp-size", type=int, default=2, help="replicas (default: 2)")
    sizes.add_argument("--pp-size", type=int, default=1, help="pipeline stages, of today's processes (default: 1)")
    check = parser.add_argument_group("checking")
    check.add_argument("--verify", action="store_true", help="check all facts against --wheels, --repo or both")
    check.add_argument("--wheels", metavar="DIR", help="a folder of SGLang's wheels, from `pip download --no-deps`")
    check.add_argument("--repo", metavar="PATH", help="a clone of sgl-project/sglang, read by git")


def add_claims_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verdict", nargs="+", choices=VERDICTS, help="only claims with these verdicts")
    parser.add_argument("--only", nargs="+", type=int, metavar="N", help="only claims with these numbers")
    parser.add_argument(
        "--run", action="store_true", help="measure those that a run can show, and print predicted against measured"
    )
    parser.add_argument("--json", metavar="FILE", help="with --run: write raw samples and the environment")
