"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from . import suspects
from .reference_repairs import *


class Tenants(suspects.Tenants):
    """As it was."""
