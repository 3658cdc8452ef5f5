"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from common.request_state import RequestState

from . import reference_repairs as reference
from .reference_repairs import *


class Tenants(reference.Tenants):
    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        return super().order(sorted(waiting, key=tenant_of))
