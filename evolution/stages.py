"""Finding a stage: one of the three, or `package.module:launch` of a user's own.

A stage is one function, `launch(args, endpoints, supervisor)`, which starts the processes of the middle corner. Its
module may also hold `SUPPORTS`, a set of words out of {"dp", "rank0", "era", "overlap"}; `process_tree(args)`, the
processes it would start; `check(args)`, which raises ValueError for what it cannot do; and `notes(args)`, what a reader
of its figures must know. With "era" it holds `in_force(args)`, a dataclass of the constants that `args` ask for:
`transport`, `codec`, `idle`, `rules`, and `scheduling` where that is not "replicated" by default; `LEVEL` and `ERAS`
are all of them; and `hears(args)`, which failures of its children the main process noticed then (`common.supervision`).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import secrets
from collections.abc import Callable
from types import ModuleType
from typing import Any

from common.args import EngineArgs
from common.channels import Endpoints
from common.process_tree import ProcessNode
from common.processes import Failure

STAGES = {
    "rpyc": "evolution.rpyc_router:launch",
    "broadcast": "evolution.broadcast_controller:launch",
    "peer": "evolution.peer_schedulers:launch",
}


def find_stage(stage: str) -> tuple[Callable, ModuleType]:
    """`launch` and its module. Raises ValueError of one line when there is no such stage."""
    path = STAGES.get(stage, stage)
    if ":" not in path:
        raise ValueError(f"unknown stage {stage!r}: choose rpyc, broadcast, peer, or package.module:launch")
    module_name, function = path.split(":", 1)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module does when it is imported
        raise ValueError(f"stage {stage!r} cannot be imported: {type(error).__name__}: {error}") from error
    launch = getattr(module, function, None)
    if not callable(launch):
        raise ValueError(f"stage {stage!r}: {module_name} has no function {function!r}")
    try:
        inspect.signature(launch).bind("args", "endpoints", "supervisor")
    except (TypeError, ValueError):
        raise ValueError(f"stage {stage!r}: it must be a function launch(args, endpoints, supervisor)") from None
    return launch, module


def supports(stage: str) -> frozenset[str]:
    """What a stage can do beyond TP, abort and flush: "dp", "rank0", "era", "overlap"."""
    return frozenset(getattr(find_stage(stage)[1], "SUPPORTS", ()))


def fill_in(args: EngineArgs) -> EngineArgs:
    """`args` with what depends on the stage and its constants. ValueError for what the stage cannot do."""
    module = find_stage(args.stage)[1]
    if args.constants == "era" and "era" not in supports(args.stage):
        raise ValueError(f"stage {args.stage!r} has no era of its own: use --constants level")
    if args.idle == "spin" and "era" not in supports(args.stage):
        raise ValueError(f"stage {args.stage!r} does not say that it can spin: use --idle block")
    if args.supervision == "era" and not hasattr(module, "hears"):
        raise ValueError(f"stage {args.stage!r} does not say what its era heard of a failure: use --supervision full")
    if hasattr(module, "check"):
        module.check(args)
    constants = _constants(args)
    return dataclasses.replace(
        args,
        scheduling=args.scheduling or getattr(constants, "scheduling", "replicated"),
        idle=args.idle or getattr(constants, "idle", "block"),
        stream_interval=args.stream_interval or (constants.rules.stream_interval if constants else 1),
    )


def make_endpoints(args: EngineArgs, folder: str) -> Endpoints:
    """The channels as the stage's constants want them."""
    constants = _constants(args)
    secret = secrets.token_bytes(16)
    if constants is None:
        return Endpoints(folder, secret=secret)
    return Endpoints(folder, constants.transport, constants.codec, secret)


def _constants(args: EngineArgs) -> Any:
    module = find_stage(args.stage)[1]
    if "era" not in supports(args.stage):
        return None
    if not hasattr(module, "in_force"):
        raise ValueError(
            f"stage {args.stage!r} names era in SUPPORTS and has no in_force(args) that gives its constants"
        )
    return module.in_force(args)


def notes(args: EngineArgs) -> list[str]:
    """What a reader of this stage's figures must know."""
    module = find_stage(args.stage)[1]
    lines = module.notes(args) if hasattr(module, "notes") else []
    if args.constants == "era":
        lines.append(f"{args.stage}: constants of SGLang {_constants(args).version}; see `history eras`.")
    return lines


def era_hears(args: EngineArgs) -> Callable[[Failure], bool]:
    """With `--supervision era`: which failures of its children the main process notices."""
    return find_stage(args.stage)[1].hears(args)


def known_processes(args: EngineArgs) -> list[str] | None:
    """The names of the processes that `args` would start; None where the stage does not say."""
    if not hasattr(find_stage(args.stage)[1], "process_tree"):
        return None
    return [node.name for node in process_tree(args).walk()]


def process_tree(args: EngineArgs) -> ProcessNode:
    """The processes that `args` would start, from the main process down."""
    module = find_stage(args.stage)[1]
    if not hasattr(module, "process_tree"):
        raise ValueError(f"stage {args.stage!r} does not say which processes it starts (it has no process_tree)")
    transport = make_endpoints(args, folder="").transport
    detokenizer = ProcessNode("evo-detokenizer", "detokenizer", (f"PULL {transport} token batches <- every rank 0",))
    main_channels = (f"PULL {transport} texts <- detokenizer", f"PULL {transport} control <- every rank 0")
    return ProcessNode("main", "tokenizer, Engine", main_channels, [detokenizer, *module.process_tree(args)])
