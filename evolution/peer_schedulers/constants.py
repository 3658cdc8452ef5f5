"""What v0.4.0 had beside its process model, in both of its loops. The loops of this folder read the same with both.

Its default was the overlap loop, which is `--overlap` here, with either constants.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.args import EngineArgs
from common.constants import constant
from common.turn import ONE_STEP, TurnRules


@dataclass(frozen=True)
class PeerConstants:
    version: str = constant("the release of SGLang that had them")
    transport: str = constant("of the ZMQ channels between the processes")
    codec: str = constant("of the messages on those channels")
    broadcast: str = constant("how what rank 0 broadcasts becomes a tensor")
    dispatch: str = constant(
        "what shortest_queue looks at: outstanding requests; in 0.4.0 it raised NotImplementedError"
    )
    idle: str = constant("schedulers and controller with nothing to do: block, or spin through their loops")
    rules: TurnRules = constant("")


LEVEL = PeerConstants(
    version="level",
    transport="ipc",
    codec="msgpack",
    broadcast="msgpack",
    dispatch="outstanding",
    idle="block",
    rules=ONE_STEP,
)

V0_4_0 = PeerConstants(
    version="0.4.0",
    transport="ipc",
    codec="pickle",
    broadcast="numpy buffer",
    dispatch="refused",
    idle="spin",
    # One step a turn: --num-continuous-decode-steps was still parsed, and nothing read it.
    rules=TurnRules(decode_steps=1, stream_interval=1, stream_phase="engine"),
)

ERAS = (V0_4_0,)


def in_force(args: EngineArgs) -> PeerConstants:
    return V0_4_0 if args.constants == "era" else LEVEL


def check(args: EngineArgs) -> None:
    """ValueError for what this version could not do."""
    if args.constants == "era" and args.load_balance_method == "shortest_queue":
        raise ValueError(
            "--stage peer --constants era has no --load-balance-method shortest_queue: from 0.3.3 to 0.4.1 it raised"
            " NotImplementedError; use round_robin, or --constants level"
        )
