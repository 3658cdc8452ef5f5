import rpyc

from .reference_solution import *


class ReferenceFanOut:
    def __init__(self, connections):
        self.steps = [rpyc.async_(connection.root.step) for connection in connections]

    def step(self, requests):
        results = [step(requests) for step in self.steps]
        for result in results:
            result.wait()
        return obtain(results[0].value)
