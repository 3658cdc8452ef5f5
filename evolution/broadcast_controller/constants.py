"""What v0.2.0 had beside its process model. The loops of this folder read the same with both."""

from __future__ import annotations

from dataclasses import dataclass

from common.args import EngineArgs
from common.constants import constant
from common.turn import ONE_STEP, TurnRules


@dataclass(frozen=True)
class BroadcastConstants:
    version: str = constant("the release of SGLang that had them")
    transport: str = constant("of the ZMQ channels between the processes")
    codec: str = constant("of the messages on those channels")
    broadcast: str = constant("how what rank 0 broadcasts becomes a tensor")
    dispatch: str = constant(
        "what shortest_queue looks at: outstanding requests, or a replica's undrained backlog, ties to replica 0"
    )
    idle: str = constant(
        "ranks and controller with nothing to do: block; or spin, each turn a broadcast of 0 (rank0: of an empty turn)"
    )
    rules: TurnRules = constant("")


LEVEL = BroadcastConstants(
    version="level",
    transport="ipc",
    codec="msgpack",
    broadcast="msgpack",
    dispatch="outstanding",
    idle="block",
    rules=ONE_STEP,
)

V0_2_0 = BroadcastConstants(
    version="0.2.0",
    transport="tcp",
    codec="pickle",
    broadcast="list of ints",
    dispatch="backlog",
    # The two delays of the rpyc router were still in global_config, and nothing read them.
    idle="spin",
    rules=TurnRules(decode_steps=10, early_stop="any_streams", stream_interval=1, stream_phase="engine"),
)

ERAS = (V0_2_0,)


def in_force(args: EngineArgs) -> BroadcastConstants:
    return V0_2_0 if args.constants == "era" else LEVEL
