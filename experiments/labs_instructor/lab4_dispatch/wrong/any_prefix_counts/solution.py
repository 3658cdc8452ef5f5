from .reference_solution import *


class PrefixAware(PrefixAware):
    def _candidates(self, request):
        left = self._load.rotation.order()
        loads = [self._load.outstanding[replica] for replica in left]
        if max(loads) - min(loads) > self._imbalance:
            return left
        known = {replica: len(self._mirrors[replica].match_prefix(request.input_ids)[0]) for replica in left}
        return [replica for replica in left if known[replica] == max(known.values())]
