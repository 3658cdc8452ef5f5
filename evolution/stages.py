"""Finding a stage: one of the three, or `package.module:launch` of a user's own.

A stage is one function, `launch(args, endpoints, supervisor)`, which starts the processes of the middle corner. Its
module may also hold `SUPPORTS`, a set of words out of {"dp", "rank0"}; `DEFAULT_SCHEDULING`, "replicated" unless it
says otherwise; `process_tree(args)`, the processes it would start; and `notes(args)`, what a reader of its figures
must know.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from common.args import EngineArgs
from common.process_tree import ProcessNode

STAGES = {
    "rpyc": "evolution.rpyc_router:launch",
    "broadcast": "evolution.broadcast_controller:launch",
    "peer": "evolution.peer_schedulers:launch",
}


def find_stage(stage: str) -> tuple[Callable, ModuleType]:
    """`launch` and its module. Raises ValueError of one line when there is no such stage."""
    path = STAGES.get(stage, stage)
    if ":" not in path:
        raise ValueError(f"unknown stage {stage!r}: choose rpyc, broadcast, peer, all, or package.module:launch")
    module_name, function = path.split(":", 1)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module does when it is imported
        raise ValueError(f"stage {stage!r} cannot be imported: {type(error).__name__}: {error}") from error
    launch = getattr(module, function, None)
    if not callable(launch):
        raise ValueError(f"stage {stage!r}: {module_name} has no function {function!r}")
    return launch, module


def supports(stage: str) -> frozenset[str]:
    """What a stage can do beyond TP, abort and flush: "dp", "rank0"."""
    return frozenset(getattr(find_stage(stage)[1], "SUPPORTS", ()))


def default_scheduling(stage: str) -> str:
    return getattr(find_stage(stage)[1], "DEFAULT_SCHEDULING", "replicated")


def notes(args: EngineArgs) -> list[str]:
    module = find_stage(args.stage)[1]
    return module.notes(args) if hasattr(module, "notes") else []


def process_tree(args: EngineArgs) -> ProcessNode:
    """The processes that `args` would start, from the main process down."""
    module = find_stage(args.stage)[1]
    if not hasattr(module, "process_tree"):
        raise ValueError(f"stage {args.stage!r} does not say which processes it starts (it has no process_tree)")
    detokenizer = ProcessNode("evo-detokenizer", "detokenizer", ("PULL ipc token batches <- every rank 0",))
    main_channels = ("PULL ipc texts <- detokenizer", "PULL ipc control <- every rank 0")
    return ProcessNode("main", "tokenizer, Engine", main_channels, [detokenizer, *module.process_tree(args)])
