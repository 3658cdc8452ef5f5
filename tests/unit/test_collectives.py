"""The collectives with 2 and 4 real processes, spawned once each."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from common.parallel.collectives import SingleRank
from common.parallel.group import CONTROL_TIMEOUT, GroupSpec, control_group, join
from common.parallel.shared_memory import SharedBuffer

ROUNDS = 3000
WIDTH = 576
SMALL_SLOT = 2 * WIDTH * 4  # two float32 rows: most tensors below go through it in pieces
SHAPES = ((1, WIDTH), (7, WIDTH), (128, WIDTH), (3, 5, 64))


def part(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What `rank` contributes; large and small values, so that the order of a sum shows in its bits."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return (torch.randn(shape, generator=generator) * 10.0 ** (rank % 3)).to(dtype)


def expected_sum(size: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    total = part(0, shape, dtype).float()
    for rank in range(1, size):
        total = total + part(rank, shape, dtype).float()
    return total.to(dtype)


def check_values(tp) -> None:
    """Sums and gathers of every shape have exactly the expected bits; so all ranks and both bindings agree."""
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            mine = part(tp.rank, shape, dtype)
            gathered = tp.all_gather(mine.clone())
            assert torch.equal(gathered, torch.cat([part(r, shape, dtype) for r in range(tp.size)], dim=-1)), shape
            summed = tp.all_reduce(mine)
            assert summed.dtype == dtype
            assert torch.equal(summed, expected_sum(tp.size, shape, dtype)), shape
        columns = part(tp.rank, (WIDTH, 3), dtype).t()  # not contiguous
        assert torch.equal(tp.all_reduce(columns), expected_sum(tp.size, (WIDTH, 3), dtype).t())
    ints = [2**64 - 1 - rank if rank % 2 else -rank for rank in range(tp.size)]
    assert tp.all_gather_ints(ints[tp.rank]) == ints
    tp.barrier()


def check_rounds(tp) -> None:
    """No rank overwrites what another still reads, whoever is late: each round has other values and another shape."""
    delays = random.Random(tp.rank)
    for i in range(ROUNDS):
        if delays.random() < 0.02:
            time.sleep(delays.random() * 1e-3)
        x = torch.full((1 + i % 3, 16), float(i * tp.size + tp.rank))
        total = tp.all_reduce(x)
        if delays.random() < 0.01:
            time.sleep(delays.random() * 1e-3)
        want = sum(i * tp.size + rank for rank in range(tp.size))
        assert torch.all(total == want), (i, want, total)


def check_shm(spec: GroupSpec, rank: int):
    tp = join(spec, rank)
    assert (tp.rank, tp.size) == (rank, spec.size)
    check_values(tp)
    check_rounds(tp)
    with pytest.raises(ValueError, match="does not fit a slot"):
        tp.all_reduce(torch.zeros(1, SMALL_SLOT))
    assert not torch.distributed.is_initialized()
    maps = Path("/proc/self/maps").read_text()
    assert "/memfd:collectives" in maps
    assert "/dev/shm" not in maps
    return tp


def check_gloo(spec: GroupSpec, rank: int, shm_barrier) -> None:
    tp = join(spec, rank)
    control = control_group(spec, rank)
    hasty = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=1))
    assert control._get_backend(torch.device("cpu")).options._timeout == CONTROL_TIMEOUT
    shm_barrier()
    if rank == 0:
        Path(spec.store_path).unlink()  # nobody needs it any more
    check_values(tp)

    message = torch.tensor([7 if rank == 0 else 0])
    torch.distributed.broadcast(message, src=0, group=control)
    assert message.item() == 7
    if rank != 0:
        with pytest.raises(RuntimeError):
            torch.distributed.broadcast(message, src=0, group=hasty)  # rank 0 never sends
    shm_barrier()
    tp.close()


def run_rank(shm: GroupSpec, gloo: GroupSpec, rank: int, result: Connection) -> None:
    try:
        torch.set_num_threads(1)
        tp = check_shm(shm, rank)
        check_gloo(gloo, rank, tp.barrier)
        tp.close()
        result.send("ok")
    except BaseException:
        result.send(traceback.format_exc())
        raise


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_spawned_ranks(size: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    shm = GroupSpec.create(size, "shm", "cpu", tmp_path, "a", slot_bytes=SMALL_SLOT)
    gloo = GroupSpec.create(size, "gloo", "cpu", tmp_path, "b")
    processes, results = [], []
    try:
        for rank in range(size):
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=run_rank, args=(shm, gloo, rank, writer), daemon=True)
            process.start()
            writer.close()
            processes.append(process)
            results.append(reader)
        waiting = list(results)
        while waiting:
            ready = multiprocessing.connection.wait(waiting, timeout=60)
            assert ready, "a rank hangs"
            for reader in ready:  # in the order they end: where one has failed, the others may wait for it forever
                outcome = reader.recv()
                assert outcome == "ok", outcome
                waiting.remove(reader)
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert list(tmp_path.iterdir()) == []


def test_single_rank() -> None:
    tp = join(None, 0)
    assert isinstance(tp, SingleRank)
    x = torch.ones(2, 3)
    assert torch.equal(tp.all_reduce(x), x)
    assert torch.equal(tp.all_gather(x), x)
    assert tp.all_gather_ints(5) == [5]
    tp.barrier()


def test_unknown_collectives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected shm or gloo"):
        GroupSpec.create(2, "mpi", "cpu", tmp_path, "a")


def test_a_shared_buffer_goes_only_to_spawned_children() -> None:
    with pytest.raises(RuntimeError):
        pickle.dumps(SharedBuffer(64))


def test_making_a_group_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from common.parallel.group import GroupSpec;"
        f"GroupSpec.create(2, 'shm', 'cpu', pathlib.Path({str(tmp_path)!r}), 'a'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
