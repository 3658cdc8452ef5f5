"""Three process models of an LLM serving engine over one shared engine: `from evolution import Engine`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evolution.engine import Engine, EngineError

__all__ = ["Engine", "EngineError"]


def __getattr__(name: str) -> Any:
    # Lazy: every rank imports its stage from below this package, and none of them needs the main process's part.
    if name in __all__:
        from evolution import engine

        return getattr(engine, name)
    raise AttributeError(f"module 'evolution' has no attribute {name!r}")
