"""The wire between the ranks of one replica: gloo's broadcast, and a count of what went over it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from common.processes import PeerLost


class Wire:
    """`rank`, `size`: who this is, and of how many. `sizes`: bytes of each broadcast so far, the first first.

    `before` and `after` are called around each broadcast; the lab's tests see by them who hangs where.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.sizes: list[int] = []
        self.group = group
        self._before = before
        self._after = after

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """What `tensor` (on the CPU, contiguous) holds on rank `source` stands in `tensor` on every rank afterwards.

        Every rank must call it, in the same order, with the same source and a tensor of as many bytes. gloo checks none
        of that: a rank that calls it once too often waits for ever; one whose tensor is too short is aborted by gloo;
        one whose tensor is too long goes on with the end of it unfilled. PeerLost if another rank has gone.
        """
        self.sizes.append(tensor.nbytes)
        self._before()
        try:
            dist.broadcast(tensor, src=source, group=self.group)
        except RuntimeError as error:
            raise PeerLost(f"the broadcast failed: {error}") from error
        self._after()
