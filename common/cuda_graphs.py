"""Decode as a CUDA graph: the kernels of a whole forward launched as one, since launching them costs the CPU more than
running them costs the GPU.

A graph replays fixed shapes on fixed memory. So there is one for each batch size and key length rounded up to a power
of two, captured when it is first needed, which costs that turn three forwards; a turn copies its inputs in, padded, and
reads the logits out. Who measures warms up over the shapes first: `stats()` says how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from common.gpu_attention import DecodeBatch, GpuAttention

SHORTEST_WIDTH = 128  # keys; below this a graph of its own would save nothing
MOST_KEYS = 1 << 17  # of a batch with its padding; reading more takes longer than launching kernels does
WARM_UPS = 2  # forwards before a capture: libraries allocate their workspaces in the first

# (input_ids int64 [B], positions int64 [B]) -> logits float32 [B, vocab]
Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Captured:
    input_ids: torch.Tensor
    positions: torch.Tensor
    batch: DecodeBatch
    logits: torch.Tensor
    replay: Callable[[], None]


class DecodeGraphs:
    """`run` in place of a decode forward. `forward` must attend through `attention` and have no other state."""

    def __init__(self, forward: Forward, attention: GpuAttention, capture: bool = True) -> None:
        """capture False replays by calling `forward` again, on the same padded inputs: what tests on a CPU can do."""
        self._forward = forward
        self._attention = attention
        self._capture_graphs = capture
        self._captured: dict[tuple[int, int], Captured] = {}
        self._memory_pool = torch.cuda.graph_pool_handle() if capture else None
        self._side = torch.cuda.Stream() if capture else None  # one: libraries keep a workspace for each stream

    @property
    def count(self) -> int:
        return len(self._captured)

    def worth_it(self, positions: np.ndarray) -> bool:
        size, width = _padded(positions)
        return size * width <= MOST_KEYS

    def run(
        self, input_ids: np.ndarray, positions: np.ndarray, slot_table: np.ndarray, rows: np.ndarray
    ) -> torch.Tensor:
        """Logits float32 [len(rows), vocab], valid until the next run. Row i has positions[i] + 1 tokens with slots."""
        size, width = _padded(positions)
        batch = self._attention.decode_batch(slot_table, rows, positions + 1, size, width)
        padded = np.zeros((2, size), dtype=np.int64)
        padded[0, : len(rows)] = input_ids
        padded[1, : len(rows)] = positions
        inputs = torch.from_numpy(padded).to(self._attention.device)
        graph = self._captured.get((size, width))
        if graph is None:
            graph = self._captured[size, width] = self._capture(inputs, batch)
        graph.input_ids.copy_(inputs[0])
        graph.positions.copy_(inputs[1])
        for name in ("new_slots", "key_slots", "seen"):
            getattr(graph.batch, name).copy_(getattr(batch, name))
        graph.replay()
        return graph.logits[: len(rows)]

    def _capture(self, inputs: torch.Tensor, batch: DecodeBatch) -> Captured:
        input_ids, positions = inputs[0].clone(), inputs[1].clone()
        self._attention.use(batch)
        if not self._capture_graphs:
            logits = self._forward(input_ids, positions).clone()

            def replay() -> None:
                self._attention.use(batch)
                logits.copy_(self._forward(input_ids, positions))

            return Captured(input_ids, positions, batch, logits, replay)
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            for _ in range(WARM_UPS):
                self._forward(input_ids, positions)
        torch.cuda.current_stream().wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        # thread_local: NCCL's watchdog thread may ask for its events meanwhile.
        with torch.cuda.graph(graph, pool=self._memory_pool, stream=self._side, capture_error_mode="thread_local"):
            logits = self._forward(input_ids, positions)
        return Captured(input_ids, positions, batch, logits, graph.replay)


def _padded(positions: np.ndarray) -> tuple[int, int]:
    """Sequences and keys of each, rounded up to powers of two."""
    return _power_of_two(len(positions)), max(SHORTEST_WIDTH, _power_of_two(int(positions.max()) + 1))


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
