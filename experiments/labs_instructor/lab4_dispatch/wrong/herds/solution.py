from .reference_solution import *


class PrefixAware(PrefixAware):
    def __init__(self, replicas, capacity, imbalance):
        super().__init__(replicas, capacity, imbalance=10**12)
