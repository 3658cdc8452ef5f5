"""`bench`: measure one of the project's figures and say whether it holds."""

from __future__ import annotations

import argparse
import importlib
import tempfile
from pathlib import Path

import msgspec

from common.args import EngineArgs
from evolution.environment import environment
from evolution.run import check_writable


def bench_command(name: str, arguments: list[str], parser_class: type[argparse.ArgumentParser]) -> int:
    """Exit status 0 if the figure holds, 1 if it does not. ValueError of one line for what cannot work."""
    module = importlib.import_module(f"experiments.bench.{name}")
    parser = parser_class(
        prog=f"python -m evolution bench {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="write raw samples and the environment")
    options = parser.parse_args(arguments)
    if options.json:
        check_writable(options.json)
    if getattr(options, "out", None):
        check_folder(Path(options.out))
    result = module.run(options)
    result.setdefault("environment", environment(EngineArgs()))
    module.show(result)
    if options.json:
        Path(options.json).write_bytes(msgspec.json.encode(result) + b"\n")
        print(f"results: {options.json}")
    # benches with no bound of their own say neither
    return 0 if result.get("holds", result.get("verdict") in ("holds", None)) else 1


def check_folder(folder: Path) -> None:
    """Before the measurement, not after it. ValueError of one line if no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"--out {folder}: {error.strerror}") from None
