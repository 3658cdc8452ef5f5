"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from typing import Any

from common.channels import Receiver

from .reference_loop import *


def lead(requests: Receiver, broadcast: Any, worker: Any, send: Any) -> None:
    stopped = False
    while not stopped:
        arrived = requests.drain(wait=True)
        broadcast.send(arrived)
        output = worker.step(arrived)
        send(output)
        stopped = output.stop
