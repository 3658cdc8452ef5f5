"""The main process's receiving end: a thread that hands on the texts and control messages as they come."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import zmq

from common.channels import Endpoints, Receiver
from common.messages import ControlOut, TextBatch
from common.processes import name_this_thread
from common.tracing import NoTrace, Trace, make_trace


class AnswerReceiver:
    """Listens from the moment it is made, reads from `start` to `stop`."""

    def __init__(self, context: zmq.Context, endpoints: Endpoints, trace_dir: str | None) -> None:
        self._texts = Receiver(context, endpoints.texts, TextBatch)
        self._control = Receiver(context, endpoints.control, ControlOut)
        self._trace_dir = trace_dir
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._wake = os.eventfd(0)  # ends the thread

    def start(
        self,
        take_texts: Callable[[TextBatch, Trace | NoTrace], None],
        take_control: Callable[[ControlOut], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Called on the thread; `fail` with what ends it: without this thread no caller would ever get an answer."""
        self._thread = threading.Thread(
            target=self._run, args=(take_texts, take_control, fail), name="engine receiver", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if it was started. The sockets end with their context."""
        self._stopping = True
        if self._thread:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        os.close(self._wake)

    def _run(self, take_texts: Callable, take_control: Callable, fail: Callable) -> None:
        name_this_thread("receiver")
        trace = make_trace(self._trace_dir, "main", "receiver")
        poller = zmq.Poller()
        for source in (self._texts.socket, self._control.socket, self._wake):
            poller.register(source, zmq.POLLIN)
        try:
            while not self._stopping:
                trace.turn()
                trace.part("idle")
                poller.poll()
                trace.part("recv_requests")
                for batch in self._texts.drain(wait=False):
                    take_texts(batch, trace)
                for message in self._control.drain(wait=False):
                    take_control(message)
        except Exception as error:
            fail(error)
        trace.close()
