"""The tensor-parallel collectives of a forward: one interface, three bindings, chosen when a rank joins its group.

1. Every rank calls the same methods in the same order with the same shapes; nothing checks that.
2. A sum adds the ranks' parts in rank order, on every rank: all ranks hold the same bits, and they are the same bits
   through shared memory and through gloo, for any batch. (NCCL sums in its own order, alike on all ranks.)
3. bfloat16 parts are added in float32 and rounded once.
4. `all_reduce` may write its result into its argument; use the returned tensor and forget the argument.

How `ShmCollectives` works
--------------------------
The buffer of T ranks holds T * T semaphores, then 2 * T slots:

    sem(0->0) .. sem(0->T-1) | .. | sem(T-1->T-1) | even: slot 0 .. slot T-1 | odd: slot 0 .. slot T-1

One exchange, number n, on rank i (n counts alike on all ranks and chooses the even or the odd slots):

    write    copy the own part to slot i                        only rank i ever writes a slot i
    post     sem(i->j) for every other j                        "part n of rank i is there"
    wait     sem(j->i) for every other j
    read     the slots of all ranks, until the next exchange

One rendezvous is enough because the slots alternate. Rank i writes slot i of exchange n over what it wrote in n - 2.
By then it has waited for sem(j->i) of exchange n - 1 from every j, and j posts that only after it has read n - 2.
A fast rank can therefore be ahead by one exchange at most, which the semaphores count. The post and the wait are full
fences, so the part is visible before the post is, on any architecture.

What is larger than a slot is exchanged in pieces of whole rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import torch

from common.parallel.shared_memory import SEMAPHORE_BYTES, Semaphore, SharedBuffer
from common.processes import PeerLost

# How often a waiting rank yields the core before it blocks in the kernel. A bare rendezvous on 2 idle cores takes
# 4.6 us with yields and 21 with a futex at T=2, 12 and 29 at T=4, where two ranks share a core; an all-reduce of 576
# floats at T=2, on cores that others used too, 16 and 30. A yield takes about 1 us: a rank that is later than 200 of
# them (another process has its core, or it is idle) is better waited for asleep.
YIELDS_BEFORE_BLOCKING = 200

# A Python int is exchanged as a signed integer of this size, so that 64-bit digests fit whatever their sign.
INT_BYTES = 16


class Collectives(Protocol):
    rank: int
    size: int
    capturable: bool  # whether a CUDA graph can hold them

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks of x, [..., n], float32 or bfloat16; same shape and dtype."""

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., n] of every rank, joined on the last dimension in rank order: [..., size * n]."""

    def all_gather_ints(self, value: int) -> list[int]:
        """One int of every rank, in rank order; at most 127 bits and a sign."""

    def barrier(self) -> None:
        """Return once every rank has called it."""

    def close(self) -> None:
        """Give back what the binding holds; no collective may follow."""


class SingleRank:
    """A group of one: nothing to exchange."""

    rank = 0
    size = 1
    capturable = True

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather_ints(self, value: int) -> list[int]:
        return [value]

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass


class ShmCollectives:
    """CPU collectives through a SharedBuffer; see the head of this file."""

    capturable = False

    def __init__(
        self,
        buffer: SharedBuffer,
        rank: int,
        size: int,
        slot_bytes: int,
        yields: int = YIELDS_BEFORE_BLOCKING,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """yields: how often a waiting rank yields the core before it blocks. beat: called at each rendezvous."""
        self._beat = beat
        self.rank = rank
        self.size = size
        self._slot_bytes = slot_bytes
        self._yields = yields
        others = [j for j in range(size) if j != rank]
        self._posts = [Semaphore(buffer, (rank * size + j) * SEMAPHORE_BYTES) for j in others]
        self._waits = [Semaphore(buffer, (j * size + rank) * SEMAPHORE_BYTES) for j in others]
        self._memory = buffer.memory
        first = size * size * SEMAPHORE_BYTES
        self._slots = torch.frombuffer(buffer.memory, dtype=torch.uint8, offset=first).view(2, size, slot_bytes)
        self._starts = [[first + (half * size + j) * slot_bytes for j in range(size)] for half in range(2)]
        # The 60 exchanges of a forward are nearly all of one shape, and making its views takes ten times as long as
        # the rest of an exchange: 56 us against 5, without the wait.
        self._views = lru_cache(maxsize=32)(self._make_views)
        self._count = 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        for piece in self._pieces(x):
            parts = self._exchange(piece)
            _sum_in_rank_order(parts, out=piece)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        width = x.shape[-1]
        joined = x.new_empty(*x.shape[:-1], self.size * width)
        for piece, out in zip(self._pieces(x), self._pieces(joined, self.size), strict=True):
            torch.cat(self._exchange(piece), dim=-1, out=out)
        return joined

    def all_gather_ints(self, value: int) -> list[int]:
        """Without tensors: on `--device sim` each forward is one of these."""
        starts = self._starts[self._count % 2]
        self._count += 1
        own = starts[self.rank]
        self._memory[own : own + INT_BYTES] = value.to_bytes(INT_BYTES, "little", signed=True)
        self._meet()
        return [int.from_bytes(self._memory[start : start + INT_BYTES], "little", signed=True) for start in starts]

    def barrier(self) -> None:
        self.all_gather_ints(0)

    def close(self) -> None:
        del self._views, self._slots, self._starts  # a later exchange fails at once instead of hanging

    def _pieces(self, x: torch.Tensor, times: int = 1) -> Sequence[torch.Tensor]:
        """Contiguous x [..., n] as views of whole rows, each of at most `times` slots."""
        if x.nbytes <= times * self._slot_bytes:
            return (x,)
        row_bytes = x.shape[-1] * x.element_size()
        rows_per_slot = times * self._slot_bytes // row_bytes
        if rows_per_slot == 0:
            raise ValueError(
                f"a row of {row_bytes} bytes does not fit a slot of {self._slot_bytes} bytes;"
                " create the group with a larger slot_bytes"
            )
        return x.view(-1, x.shape[-1]).split(rows_per_slot)

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Give contiguous x to all ranks and get theirs, as views of the slots that hold until the next exchange."""
        parts = self._views(self._count % 2, x.shape, x.dtype)
        self._count += 1
        parts[self.rank].copy_(x)
        self._meet()
        return parts

    def _meet(self) -> None:
        self._beat()
        for semaphore in self._posts:
            semaphore.post()
        for semaphore in self._waits:
            self._wait(semaphore)

    def _wait(self, semaphore: Semaphore) -> None:
        for _ in range(self._yields):
            if semaphore.try_wait():
                return
            os.sched_yield()
        semaphore.wait()

    def _make_views(self, half: int, shape: torch.Size, dtype: torch.dtype) -> list[torch.Tensor]:
        nbytes = shape.numel() * dtype.itemsize
        return [slot[:nbytes].view(dtype).view(shape) for slot in self._slots[half]]


class TorchCollectives:
    """Collectives of torch.distributed: gloo for tensors of the CPU, or of a GPU by way of the CPU; NCCL on GPUs."""

    def __init__(
        self,
        group: torch.distributed.ProcessGroup,
        close: Callable[[], None],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        import torch.distributed as dist

        self._beat = beat

        self._dist = dist
        self._group = group
        self._close = close
        self._nccl = self.capturable = dist.get_backend(group) == "nccl"
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if self._nccl:
            x = x.contiguous()
            self._guard(self._dist.all_reduce, x)
            return x
        # gloo's own all-reduce adds in an order that depends on the tensor's size: rows would lose batch invariance.
        return _sum_in_rank_order(self._gather(x), out=x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._gather(x), dim=-1)

    def all_gather_ints(self, value: int) -> list[int]:
        device = torch.device("cuda", torch.cuda.current_device()) if self._nccl else torch.device("cpu")
        return [_int_from(part) for part in self._gather(_int_tensor(value).to(device))]

    def barrier(self) -> None:
        self.all_gather_ints(0)

    def close(self) -> None:
        self._close()

    def _gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        sent = x.contiguous() if self._nccl else x.contiguous().cpu()
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        self._guard(self._dist.all_gather, parts, sent)
        return [part.to(x.device) for part in parts]

    def _guard(self, collective: Callable[..., object], *tensors: object) -> None:
        self._beat()
        try:
            collective(*tensors, group=self._group)
        except RuntimeError as error:
            raise PeerLost(f"a collective failed: {error}") from error


def _sum_in_rank_order(parts: list[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """parts[0] + parts[1] + ... in float32, into `out`, which is not one of the parts."""
    if out.dtype == torch.float32:
        total = torch.add(parts[0], parts[1], out=out)
    else:
        total = parts[0].float().add_(parts[1])
    for part in parts[2:]:
        total.add_(part)
    return out if total is out else out.copy_(total)


def _int_tensor(value: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(value.to_bytes(INT_BYTES, "little", signed=True)), dtype=torch.uint8)


def _int_from(part: torch.Tensor) -> int:
    return int.from_bytes(bytes(part.tolist()), "little", signed=True)
