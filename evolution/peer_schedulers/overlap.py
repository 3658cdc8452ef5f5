"""The overlap loop (v0.3.4 behind a flag, v0.4.0 by default): the forward runs on a thread of its own, and meanwhile
the scheduling thread processes what the turn before gave and plans the turn after.

```
 scheduling   plan 1 │ plan 2 │ wait for 1 │ process 1, send, receive, plan 3 │ wait for 2 │ process 2, send, receive ..
                     │ launch │ launch     ^ tokens 1                         │ launch     ^ tokens 2
 forward      idle   │ forward 1 ......... │ forward 2 ................................... │ forward 3 ...............
```

A turn of the loop: receive, plan turn N+1, launch it behind turn N, wait for N's tokens, process and send them.

1. N+1 is planned without N's tokens. 0.4.0's batches named their input ids, so those not known yet were negative
   placeholders, and the forward thread looked them up in a map just before the next forward. Here a decode plan names
   rows only, and the map is the runner's own `last_token`, one per row: forward N+1 reads what forward N left there.
2. Nor does the plan know who ends in N. Whoever does, by its length too, is in N+1 once more: that token is dropped,
   and its KV slot freed after N+1. So it was in 0.4.0.
3. What needs the tokens waits for them, and nothing overlaps in that turn: a control message (abort, flush, stats,
   stop), and a pool with too few slots for a decode step. 0.4.0 marked an aborted request and ended it with its next
   result, and retracted at once, dropping the victims' tokens in flight.
4. Penalties, minimum lengths and log-probabilities are the runner's, forward by forward, and need no waiting.
5. Each group belongs to one thread: that of the broadcasts to the scheduling thread, that of the forward's collectives
   (and of `--check-divergence`) to the forward thread. In each the order is that of the turns, on every rank.

The token ids come to the host in each forward, so on a GPU too the scheduling is hidden and the launching of kernels is
not; 0.4.0 looked placeholders up on the device.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from common.batch import BatchPlan, Sampled
from common.messages import GenerateRequest
from common.processes import ChildContext, name_this_thread
from common.tracing import make_trace
from common.worker import Worker

if TYPE_CHECKING:
    from evolution.peer_schedulers.scheduler import PeerScheduler


def event_loop_overlap(scheduler: PeerScheduler, forward: ForwardThread) -> None:
    """Every rank plans from the same requests, one turn ahead of its forward thread."""
    worker, trace = scheduler.worker, scheduler.trace
    launched: BatchPlan | None = None  # the turn whose tokens are not known
    waited = False  # there was nothing to do since the last launch
    while True:
        trace.turn()
        waited = waited or not worker.busy
        messages = scheduler.recv_requests()
        if launched and not all(isinstance(message, GenerateRequest) for message in messages):
            trace.part("wait_for_forward")
            worker.commit(launched, forward.result())
            launched = None
        plan = worker.plan_ahead(messages)
        if plan is not None:
            forward.launch(plan, waited)
            waited = False
        if launched:
            trace.part("wait_for_forward")
            worker.commit(launched, forward.result())
        launched = plan
        output = worker.output()
        if scheduler.rank == 0:
            scheduler.send(output)
        if output.stop:
            forward.stop()
            return


class ForwardThread:
    """Executes plans in the order in which they were launched. An exception there ends the process, as its failure."""

    def __init__(self, context: ChildContext, worker: Worker, trace_dir: str | None) -> None:
        self._context = context
        self._worker = worker
        self._trace_dir = trace_dir
        self._plans: SimpleQueue[tuple[BatchPlan, bool] | None] = SimpleQueue()
        self._results: SimpleQueue[Sampled] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)
        self._thread.start()

    def launch(self, plan: BatchPlan, waited: bool) -> None:
        """`waited`: there was nothing to do since the last launch."""
        self._plans.put((plan, waited))

    def result(self) -> Sampled:
        """Of the oldest launched plan whose result was not taken yet; blocks until it is there."""
        return self._results.get()

    def stop(self) -> None:
        """After what was launched."""
        self._plans.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            name_this_thread("forward")
            trace = self._worker.runner.trace = make_trace(self._trace_dir, self._context.name, "forward")
            trace.turn()
            trace.part("wait_for_plan")
            while (launched := self._plans.get()) is not None:
                plan, waited = launched
                if waited:
                    trace.waited()
                self._results.put(self._worker.execute(plan))
                trace.turn()
                trace.part("wait_for_plan")
            trace.close()
        except BaseException as error:  # the scheduling thread waits for a result that will never come
            self._context.fail(error)
