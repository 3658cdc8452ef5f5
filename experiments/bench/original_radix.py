"""The radix cache of an SGLang release, out of an unpacked wheel, behind the calls of PlainRadixCache.

    pip download --no-deps sglang==0.4.0 && python -m zipfile -e sglang-0.4.0-py3-none-any.whl DIR

Only the file radix_cache.py is run; the two modules that it imports names from, for annotations and a base class, are
replaced by empty ones. The file may lie where 0.1.5 had it, or where 0.4.0 has it; releases far from those may want
other arguments, and then this raises.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

NEW_PLACE = "sglang/srt/mem_cache/radix_cache.py"
OLD_PLACE = "sglang/srt/managers/router/radix_cache.py"
STAND_INS = {
    "sglang.srt.mem_cache.base_prefix_cache": ("BasePrefixCache",),
    "sglang.srt.mem_cache.memory_pool": ("BaseTokenToKVPool", "ReqToTokenPool"),
}
PACKAGES = ("sglang", "sglang.srt", "sglang.srt.mem_cache")


def find_original(folder: str) -> tuple[Path, bool]:
    """The file, and whether its edges are keyed by whole labels (0.1.5). ValueError if there is none."""
    for place, by_label in ((NEW_PLACE, False), (OLD_PLACE, True)):
        path = Path(folder) / place
        if path.is_file():
            return path, by_label
    raise ValueError(f"--original {folder}: there is no {NEW_PLACE} or {OLD_PLACE}; unpack an SGLang wheel there")


class OriginalRadixCache:
    """Token ids are lists of ints (tuples in 0.1.5), slots int32 tensors."""

    def __init__(self, module: ModuleType, by_label: bool) -> None:
        self.cache = module.RadixCache() if by_label else module.RadixCache(None, None)

    @property
    def evictable_size(self) -> int:
        return self.cache.evictable_size()

    def match_prefix(self, ids: Any) -> tuple[Any, Any]:
        return self.cache.match_prefix(ids)

    def insert(self, ids: Any, slots: Any) -> int:
        return self.cache.insert(ids, slots.clone())  # its callers clone

    def evict(self, n: int) -> torch.Tensor:
        freed: list[Any] = []

        def keep(slots: Any) -> int:
            freed.append(slots)
            return len(slots)

        self.cache.evict(n, keep)
        return torch.cat(freed)


def load_original(path: Path) -> ModuleType:
    """Import this one file. Nothing else of SGLang is imported, and its names do not stay in sys.modules."""
    before = dict(sys.modules)
    for name in PACKAGES:
        sys.modules[name] = ModuleType(name)
    for name, contents in STAND_INS.items():
        module = ModuleType(name)
        for content in contents:
            setattr(module, content, type(content, (), {}))
        sys.modules[name] = module
    try:
        spec = importlib.util.spec_from_file_location("original_radix_cache", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name in (*PACKAGES, *STAND_INS):
            if name in before:
                sys.modules[name] = before[name]
            else:
                del sys.modules[name]
    return module
