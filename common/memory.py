"""How much memory a model and its KV pools take, and how large a pool fits. Imports no torch.

Weights and pools are computed from the config; the rest of a rank is a measured allowance.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from common.models.config import HeadLayout, ModelConfig, plan_heads

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}

# A pool that a CPU could not fill in any useful time would only delay the start of eviction.
CPU_DEFAULT_TOKENS = 16384

# Interpreter, torch and the activations of a turn. Measured for SmolLM2 in float32: 220 MiB of anonymous memory beyond
# weights and written KV after a prefill turn of 2,048 tokens. The rest is room for the peak within a turn.
CPU_OVERHEAD = 512 << 20
# On a GPU, by estimate: its context and libraries, the gathered keys and values of a decode step (2^17 keys of 2 KiB
# for Llama-3-8B, twice), the graphs' own memory of as much, prefill masks. Not measured on one yet.
GPU_OVERHEAD = 3 << 30
OVERHEAD = {"cpu": CPU_OVERHEAD, "cuda": GPU_OVERHEAD}

# What is not planned for: allocator rounding, page cache, the other processes of the engine.
USABLE_FRACTION = 0.9


def kv_bytes_per_token(config: ModelConfig, layout: HeadLayout, dtype: str) -> int:
    """Bytes that one token's keys and values take on one rank."""
    return 2 * config.num_layers * layout.num_kv_heads * config.head_dim * DTYPE_BYTES[dtype]


def weight_bytes(config: ModelConfig, layout: HeadLayout, dtype: str) -> int:
    """Bytes of one rank's weights, its own copy of the embedding included."""
    heads = 2 * layout.num_q_heads + 2 * layout.num_kv_heads  # q and o, k and v
    per_layer = config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size // layout.tp_size)
    vocab = config.vocab_size + -(-config.vocab_size // layout.tp_size)  # embedding and lm_head
    return (config.num_layers * per_layer + vocab * config.hidden_size) * DTYPE_BYTES[dtype]


def default_max_total_tokens(
    config: ModelConfig, tp_size: int, dp_size: int, dtype: str, device: str, context_length: int
) -> int:
    """The KV pool of a replica, in tokens, for the memory that is free now; at least 1, so that `check_memory` can say
    what is missing. On a CPU at most CPU_DEFAULT_TOKENS, or one context where that is longer."""
    # A tenth is left: the check that follows, or the next engine's, may find a little less memory free.
    fits = _tokens_that_fit(config, tp_size, dp_size, dtype, device) * 9 // 10
    if device == "cpu":
        fits = min(fits, max(CPU_DEFAULT_TOKENS, context_length))
    return max(1, fits)


def check_memory(
    config: ModelConfig, tp_size: int, dp_size: int, dtype: str, device: str, max_total_tokens: int
) -> None:
    """ValueError of one line if the ranks of all replicas, with pools of max_total_tokens, do not fit."""
    layout = plan_heads(config, tp_size)
    fits = _tokens_that_fit(config, tp_size, dp_size, dtype, device)
    if max_total_tokens <= fits:
        return
    fixed = (weight_bytes(config, layout, dtype) + OVERHEAD[device]) / 2**30
    pool = max_total_tokens * kv_bytes_per_token(config, layout, dtype) / 2**30
    room = _bytes_per_rank(tp_size, dp_size, device) / 2**30
    raise ValueError(
        f"each of {tp_size * dp_size} rank(s) needs {fixed:.1f} GiB for {config.path.name} and {pool:.1f} GiB for"
        f" {max_total_tokens} KV tokens, and has {room:.1f} GiB:"
        f" {_remedy(config, tp_size, dp_size, dtype, device, fits)}"
    )


def _remedy(config: ModelConfig, tp_size: int, dp_size: int, dtype: str, device: str, fits: int) -> str:
    if fits >= 1:
        return f"--max-total-tokens {fits} would fit"
    for fewer in range(dp_size - 1, 0, -1):
        if tokens := _tokens_that_fit(config, tp_size, fewer, dtype, device):
            return f"--dp-size {fewer} would fit, with up to {tokens} KV tokens"
    return "only a smaller model would fit"


def available_bytes(proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Host memory that this process and its children may still take: the least of what the system and the memory
    cgroups it is in (version 1 or 2) say. File cache that can be dropped counts as free."""
    fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    least = int(fields["MemAvailable"].split()[0]) * 1024
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            least = min(least, _cgroup_free(cgroup_root, path, "memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            least = min(least, _cgroup_free(cgroup_root / "memory", path, *names))
    return max(0, int(least))


def _cgroup_free(root: Path, path: str, limit: str, usage: str, cache: str) -> float:
    """The least that a cgroup and its ancestors leave free; infinite without a limit. In a container only the root may
    be visible, and it is the container's own."""
    group = root / path.lstrip("/")
    least = float("inf")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            break
        if not (folder / limit).is_file() or (folder / limit).read_text().strip() == "max":
            continue
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        used = int((folder / usage).read_text()) - int(stat[cache])
        least = min(least, int((folder / limit).read_text()) - used)
    return least


def _tokens_that_fit(config: ModelConfig, tp_size: int, dp_size: int, dtype: str, device: str) -> int:
    layout = plan_heads(config, tp_size)
    room = _bytes_per_rank(tp_size, dp_size, device) - weight_bytes(config, layout, dtype) - OVERHEAD[device]
    return max(0, room // kv_bytes_per_token(config, layout, dtype))


def _bytes_per_rank(tp_size: int, dp_size: int, device: str) -> int:
    ranks = tp_size * dp_size
    if device == "cpu":
        return int(available_bytes() * USABLE_FRACTION) // ranks
    gpus = _gpu_bytes()
    ranks_on_a_gpu = -(-ranks // len(gpus))
    return int(min(gpus) * USABLE_FRACTION) // ranks_on_a_gpu


def _gpu_bytes() -> list[int]:
    """The memory of each visible GPU, all of it: a GPU is taken to be free. RuntimeError if there is none."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        raise RuntimeError("the NVIDIA driver shows no GPU")
    sizes = []
    for ordinal in range(count.value):
        device, size = ctypes.c_int(0), ctypes.c_size_t(0)
        driver.cuDeviceGet(ctypes.byref(device), ordinal)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        sizes.append(size.value)
    return sizes
