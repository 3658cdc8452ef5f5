"""How the ranks of one replica find each other: a GroupSpec made by the process that starts them, joined in each.

Nothing here has a fixed port or a fixed name. Shared memory is handed to the ranks as they are spawned; the groups of
torch.distributed meet through a FileStore in the run folder (0.02 s; a TCPStore takes 0.45 s and listens on every
interface). Once all ranks have joined, the file may be removed.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from common.parallel.shared_memory import SharedBuffer, exchange_buffer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from common.parallel.collectives import Collectives

logger = logging.getLogger(__name__)

# A slot holds a piece of one rank's part. It must hold a row of logits: 1 MiB are 262,144 float32.
SLOT_BYTES = 1 << 20

# A follower waits in the control group's broadcast for as long as nobody sends a request.
CONTROL_TIMEOUT = timedelta(days=365)


@dataclass(frozen=True)
class GroupSpec:
    """size: ranks of the replica; first_rank: how many ranks of other replicas come before them on this host.

    collectives: "shm", "gloo" or "nccl"; blocks: whether a rank that waits in "shm" blocks at once, without yielding
    the core first. Picklable while a process is being spawned (it may hold a SharedBuffer).
    """

    size: int
    collectives: str
    store_path: str
    buffer: SharedBuffer | None
    slot_bytes: int
    first_rank: int
    ranks_on_host: int
    blocks: bool = False
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)

    @classmethod
    def create(
        cls,
        size: int,
        collectives: str,
        device: str,
        run_dir: Path,
        name: str,
        *,
        first_rank: int = 0,
        ranks_on_host: int | None = None,
        slot_bytes: int = SLOT_BYTES,
    ) -> GroupSpec:
        """In the process that starts the ranks; imports no torch. `name` is unique within the run folder.

        On cuda the collectives are NCCL whatever `collectives` says; `ranks_on_host` counts all replicas' ranks
        (default: `size`) and tells whether each has a GPU of its own. On sim ranks only meet, and wait off the cores.
        """
        if device == "cuda":
            collectives = "nccl"
        if collectives not in ("shm", "gloo", "nccl"):
            raise ValueError(f"collectives {collectives!r}: expected shm or gloo")
        buffer = exchange_buffer(size, slot_bytes) if collectives == "shm" and size > 1 else None
        store_path = str(run_dir / f"{name}.store")
        blocks = device == "sim"
        return cls(size, collectives, store_path, buffer, slot_bytes, first_rank, ranks_on_host or size, blocks)


def join(spec: GroupSpec | None, rank: int, beat: Callable[[], None] = lambda: None) -> Collectives:
    """In a rank, in the thread that will run the forward: the collectives of its group; None is a group of one.

    Every rank of the group must call it. On cuda it also makes the rank's GPU the current one of this thread. `beat` is
    called as each collective begins: among ranks that stand still, the one that has begun fewer is waited for.
    """
    from common.parallel.collectives import YIELDS_BEFORE_BLOCKING, ShmCollectives, SingleRank, TorchCollectives

    if spec is not None and spec.collectives == "nccl":
        _choose_gpu(spec, rank)
    if spec is None or spec.size == 1:
        return SingleRank()
    if spec.collectives == "shm":
        yields = 0 if spec.blocks else YIELDS_BEFORE_BLOCKING
        return ShmCollectives(spec.buffer, rank, spec.size, spec.slot_bytes, yields, beat)
    dist = _meet(spec, rank)
    return TorchCollectives(dist.new_group(backend=_torch_backend(spec)), close=dist.destroy_process_group, beat=beat)


def control_group(spec: GroupSpec, rank: int) -> ProcessGroup:
    """The gloo group of the control plane's broadcasts, for `torch.distributed.broadcast(..., group=)`.

    Every rank of the group must call it, after `join`. A rank that waits in a group longer than its timeout raises
    RuntimeError, and an idle follower waits until somebody sends a request: hence CONTROL_TIMEOUT. It is
    torch.distributed's default group: each gloo group has a thread that wakes 100 times a second (gloo polls with a
    timeout of 10 ms), so one group more would show in the idle cost.

    gloo lets in whoever connects while the ranks meet, and what is broadcast here may be a pickle: so the first thing
    is the run's secret. PermissionError if rank 0 does not know it.
    """
    import torch

    dist = _meet(spec, rank)
    secret = torch.frombuffer(bytearray(spec.secret), dtype=torch.uint8)
    heard = secret.clone() if rank == 0 else torch.zeros_like(secret)
    dist.broadcast(heard, src=0)
    if not hmac.compare_digest(bytes(heard.tolist()), spec.secret):
        raise PermissionError("rank 0 of the group is not a process of this run")
    return dist.group.WORLD


def _meet(spec: GroupSpec, rank: int):
    """torch.distributed, with its default group of all ranks in place: others are made from that one."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks live on one host: listen nowhere else
    import torch.distributed as dist

    if not dist.is_initialized():
        store = dist.FileStore(spec.store_path, spec.size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=spec.size, timeout=CONTROL_TIMEOUT)
    return dist


def _torch_backend(spec: GroupSpec) -> str:
    import torch

    gpus = torch.cuda.device_count()
    if spec.collectives == "nccl" and gpus < spec.ranks_on_host:
        logger.warning(
            "%d ranks share %d GPU(s): their collectives go through gloo, not NCCL", spec.ranks_on_host, gpus
        )
        return "gloo"
    return spec.collectives


def _choose_gpu(spec: GroupSpec, rank: int) -> None:
    import torch

    torch.cuda.set_device((spec.first_rank + rank) % torch.cuda.device_count())
