"""`bench`: measure one of the project's figures and say whether it keeps its bound."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from common.args import EngineArgs
from evolution.engine import EngineError
from evolution.environment import code, environment
from evolution.run import check_writable

BEFORE = ("load_average", "git_commit", "git_changes", "git_diff")


def bench_command(name: str, arguments: list[str], parser_class: type[argparse.ArgumentParser]) -> int:
    """Exit status 0 if the verdict is "holds" or there is no bound, 1 if it is "undecided" or "fails". ValueError of
    one line for what cannot work."""
    module = importlib.import_module(f"experiments.bench.{name}")
    parser = parser_class(
        prog=f"python -m evolution bench {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="write raw samples and the environment")
    options = parser.parse_args(arguments)
    out = getattr(options, "out", None)
    if options.json:
        check_writable(options.json)
    if out:
        check_folder(Path(out))
    started = environment(EngineArgs())
    try:
        result = module.run(options)
    except EngineError as error:
        print(f"python -m evolution bench {name}: {error}", file=sys.stderr)
        return 1
    # The load average is that before the measurement, and so is the code.
    result["environment"] = started | result.get("environment", {}) | {name: started[name] for name in BEFORE}
    if options.json:
        write_result(Path(options.json), result)  # first of all: nothing that fails below loses it
    if changed := [name for name, value in code().items() if value != started[name]]:
        result["verdict"] = "undecided"
        print(f"python -m evolution bench {name}: the code changed meanwhile ({', '.join(changed)}): measure again")
    module.show(result)
    if out:
        # With only the names in it, a result says nothing about the machine's folders.
        paths = [
            Path(path) for path in importlib.import_module(f"experiments.bench.{name}_plot").draw(result, Path(out))
        ]
        result["pictures"] = [path.name for path in paths]
        for path in paths:
            print(f"picture: {path}")
    if options.json:
        write_result(Path(options.json), result)
        print(f"results: {options.json}")
    print(f"verdict: {result['verdict'] or 'no bound to keep'}")
    return 0 if result["verdict"] in ("holds", None) else 1


def write_result(path: Path, result: dict[str, Any]) -> None:
    """What is there already is replaced in one step, once all of the new is on the disk. A link stays one; a pipe or a
    device, and a file in a folder that takes no new one, are written to as they are."""
    data = msgspec.json.encode(result) + b"\n"
    path = path.resolve()
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    try:
        new.write_bytes(data)
        new.replace(path)
    except PermissionError:
        path.write_bytes(data)
    finally:
        new.unlink(missing_ok=True)


def check_folder(folder: Path, option: str = "--out") -> None:
    """Before the measurement, not after it. ValueError of one line if no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"{option} {folder}: {error.strerror}") from None
