"""Starting the ranks of one replica: as children of main (D = 1) or of the data-parallel controller."""

from __future__ import annotations

from common.args import EngineArgs
from common.channels import Channel, Endpoints
from common.processes import Supervisor
from common.ranks import rank_env, rank_name, replica_group


def start_replica(
    args: EngineArgs,
    endpoints: Endpoints,
    supervisor: Supervisor,
    replica: int,
    requests: Channel,
    finished: Channel | None,
) -> None:
    """`requests`: where rank 0 listens; `finished`: where it tells the controller what ended, if there is one."""
    group = replica_group(args, endpoints.folder, replica)
    for rank in range(args.tp_size):
        supervisor.start(
            rank_name("peer", args, replica, rank),
            "evolution.peer_schedulers.scheduler:run_scheduler_process",
            {
                "args": args,
                "endpoints": endpoints,
                "replica": replica,
                "rank": rank,
                "group": group,
                "requests": requests,
                "finished": finished,
            },
            rank_env(args),
            replica,
        )
