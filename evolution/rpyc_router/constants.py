"""What v0.1.5 (one replica) and v0.1.17 (several) had beside their process model. The loops of this folder read the
same with all of them."""

from __future__ import annotations

from dataclasses import dataclass

from common.args import EngineArgs
from common.constants import constant
from common.turn import ONE_STEP, TurnRules


@dataclass(frozen=True)
class RpycConstants:
    version: str = constant("the release of SGLang that had them")
    scheduling: str = constant("who plans, unless --scheduling says so")
    transport: str = constant("of the ZMQ channels between the processes")
    codec: str = constant("of the messages on those channels")
    calls: str = constant(
        "how an rpyc call travels: msgpack by value over a unix socket; or a list by reference over TCP, pulled back as"
        " a pickle by each rank, frames over 3,000 bytes through zlib, a thread per rank to wait for the answer"
    )
    sync_request_timeout: float | None = constant("s that rpyc waits for a synchronous call")
    sleep_after_output: float = constant(
        "s that the router sleeps after a turn that sent anything. Meant for turns that finished a request, but the"
        " test for it looked at the truth of a list, and a list of one False is true"
    )
    sleep_every_turn: float = constant("s that the router sleeps after every turn, on top")
    sleep_dispatcher: float = constant("s that the controller of several replicas sleeps between two looks")
    dispatch: str = constant(
        "what shortest_queue looks at: outstanding requests, or a replica's undrained backlog, ties to replica 0"
    )
    idle: str = constant(
        "with nothing to do: block; or go on calling step on every rank (rank0: plan on rank 0) between the sleeps"
    )
    rules: TurnRules = constant("")


LEVEL = RpycConstants(
    version="level",
    scheduling="rank0",  # the router can ask one rank alone
    transport="ipc",
    codec="msgpack",
    calls="by value",
    sync_request_timeout=None,
    sleep_after_output=0.0,
    sleep_every_turn=0.0,
    sleep_dispatcher=0.0,
    dispatch="outstanding",
    idle="block",
    rules=ONE_STEP,
)

V0_1_5 = RpycConstants(
    version="0.1.5",
    scheduling="replicated",
    transport="tcp",
    codec="pickle",
    calls="by reference",
    sync_request_timeout=600.0,
    sleep_after_output=0.03,
    sleep_every_turn=0.0006,
    sleep_dispatcher=0.0,
    dispatch="none",  # it had no data parallelism
    idle="spin",
    rules=TurnRules(decode_steps=10, early_stop="never", stream_interval=2, stream_phase="engine", first_token=False),
)

V0_1_17 = RpycConstants(
    version="0.1.17",
    scheduling="replicated",
    transport="tcp",
    codec="pickle",
    calls="by reference",
    sync_request_timeout=3600.0,
    sleep_after_output=0.02,
    sleep_every_turn=0.0004,
    sleep_dispatcher=0.0004,
    dispatch="backlog",
    idle="spin",
    rules=TurnRules(
        decode_steps=10, early_stop="first_streams", stream_interval=8, stream_phase="engine", first_token=True
    ),
)

ERAS = (V0_1_5, V0_1_17)


def in_force(args: EngineArgs) -> RpycConstants:
    if args.constants == "level":
        return LEVEL
    return V0_1_5 if args.dp_size == 1 else V0_1_17
