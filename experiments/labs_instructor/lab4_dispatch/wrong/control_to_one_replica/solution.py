from common.messages import StopRequest

from . import reference_solution as reference
from .reference_solution import *


def controller_turn(dispatcher, reports, messages, send, alive):
    goes_on = reference.controller_turn(dispatcher, reports, [], send, alive)
    for message in messages:
        to = alive if isinstance(message, StopRequest) else alive[:1]
        goes_on = goes_on and reference.controller_turn(dispatcher, [], [message], send, to)
    return goes_on
