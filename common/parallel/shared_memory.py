"""Anonymous shared memory, and semaphores inside it, for the ranks of one replica.

The memory is a memfd: it has no name in any file system, so two engines cannot collide and nothing is left behind
however their processes die. It reaches a child only by being handed over while that child is spawned.

The semaphores are glibc's (`sem_init` with pshared=1). They are used in place of flags that are polled with plain
loads and stores because those have no order between them on arm64; a semaphore's post and wait are full fences.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from multiprocessing import context
from multiprocessing.reduction import DupFd

# A sem_t is 32 bytes in 64-bit glibc; each has a cache line of its own, so that two of them never share one.
SEMAPHORE_BYTES = 64

# ctypes releases the GIL around each call: a rank that waits does not stop its process's other threads.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
for _name in ("sem_post", "sem_wait", "sem_trywait"):
    getattr(_libc, _name).argtypes = (ctypes.c_void_p,)


class SharedBuffer:
    """`nbytes` of zeroed memory, shared by the process that creates it and the children it hands it to.

    Can be pickled only as an argument of a process that is being spawned (RuntimeError otherwise).
    """

    def __init__(self, nbytes: int, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("collectives", os.MFD_CLOEXEC)
            os.ftruncate(fd, nbytes)
        self.nbytes = nbytes
        self.memory = mmap.mmap(fd, nbytes)
        self._fd = fd

    def __reduce__(self):
        context.assert_spawning(self)
        return _attach, (self.nbytes, DupFd(self._fd))

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Give the memory back now, in this process. BufferError while something still looks into it."""
        self.memory.close()
        os.close(self._fd)
        self._fd = -1

    def address(self, offset: int) -> int:
        """The address of byte `offset` in this process; valid as long as this object lives."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory, offset))


def _attach(nbytes: int, fd: DupFd) -> SharedBuffer:
    return SharedBuffer(nbytes, fd.detach())


class Semaphore:
    """A counting semaphore in `buffer` at byte `offset` (a multiple of SEMAPHORE_BYTES).

    `initialize` once, in one process, before any other process uses it.
    """

    def __init__(self, buffer: SharedBuffer, offset: int) -> None:
        self._buffer = buffer  # keeps the address valid
        self._address = buffer.address(offset)

    def initialize(self, value: int = 0) -> None:
        if _libc.sem_init(self._address, 1, value) != 0:
            raise OSError(ctypes.get_errno(), "sem_init failed")

    def post(self) -> None:
        if _libc.sem_post(self._address) != 0:
            raise OSError(ctypes.get_errno(), "sem_post failed")

    def try_wait(self) -> bool:
        """Take one if there is one; never blocks."""
        return _libc.sem_trywait(self._address) == 0

    def wait(self) -> None:
        """Take one, blocking in the kernel until there is one."""
        while _libc.sem_wait(self._address) != 0:
            if ctypes.get_errno() != errno.EINTR:
                raise OSError(ctypes.get_errno(), "sem_wait failed")


def exchange_buffer(size: int, slot_bytes: int) -> SharedBuffer:
    """The buffer of `size` ranks' collectives, ready for use; its layout is told in `common.parallel.collectives`."""
    buffer = SharedBuffer(size * size * SEMAPHORE_BYTES + 2 * size * slot_bytes)
    for i in range(size * size):
        Semaphore(buffer, i * SEMAPHORE_BYTES).initialize()
    return buffer
