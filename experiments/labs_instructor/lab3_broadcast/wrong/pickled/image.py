"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from common.parallel.broadcast import NumpyBuffer

from .reference_image import *


class BytesEncoding(NumpyBuffer):
    """The engine's own, of its era."""
