from .reference_solution import *


class PrefixAware(PrefixAware):
    def __init__(self, replicas, capacity, imbalance):
        super().__init__(replicas, 10**12, imbalance)
