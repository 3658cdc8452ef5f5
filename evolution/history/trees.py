"""The processes of each release. A tree and its formula are written down apart, and the tests compare them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.process_tree import ProcessNode
from evolution.history.data import Line

CONTROLLER = "srt/managers/controller/"
MANAGERS = "srt/managers/"


@dataclass(frozen=True)
class Sizes:
    """Ranks of a replica (T), replicas (D), pipeline stages (P). With DP attention the replicas lie inside T."""

    tp: int
    dp: int = 1
    pp: int = 1
    dp_attention: bool = False


@dataclass(frozen=True)
class ProcessModel:
    """What several releases share. `formulas`: the number of processes in T, D and P, by the case it holds for;
    `without_dp`: it has no replicas. `today`: it has pipeline stages and DP attention. No image workers, no helper
    processes of Python's own."""

    releases: str
    formulas: dict[str, str]
    middle: Callable[[Sizes], list[ProcessNode]]
    lines: tuple[Line, ...] = ()
    without_dp: bool = False
    today: bool = False

    def tree(self, sizes: Sizes) -> ProcessNode:
        """From main down. ValueError for what these releases could not do."""
        if self.without_dp and sizes.dp > 1:
            raise ValueError(f"SGLang {self.releases} had no data parallelism")
        if sizes.pp > 1 and not self.today:
            raise ValueError(f"SGLang {self.releases} had no pipeline parallelism")
        if sizes.dp_attention and (not self.today or sizes.tp % sizes.dp):
            raise ValueError("DP attention is drawn for today's processes only, and D must divide T")
        return ProcessNode("main", "HTTP, tokenizer", (), [*self.middle(sizes), ProcessNode("detokenizer", "")])


def of_router(sizes: Sizes) -> list[ProcessNode]:
    if sizes.tp == 1:
        return [ProcessNode("router", "asyncio loop, the model: rank 0")]
    ranks = [ProcessNode(f"rank {rank}", "rpyc server, scheduler, model") for rank in range(sizes.tp)]
    return [ProcessNode("router", "asyncio loop", ("rpyc calls -> every rank",), ranks)]


def of_threads(sizes: Sizes) -> list[ProcessNode]:
    if sizes.tp * sizes.dp == 1:
        return [ProcessNode("controller", "asyncio loop, the model: rank 0")]
    ranks = [
        ProcessNode(_label(sizes, replica, rank), "rpyc server, scheduler, model")
        for replica in range(sizes.dp)
        for rank in range(sizes.tp)
    ]
    if sizes.dp == 1:
        return [ProcessNode("controller", "asyncio loop", ("rpyc calls -> every rank",), ranks)]
    channels = ("queue.Queue -> the thread of a replica", "rpyc calls of that thread -> its ranks")
    return [ProcessNode("controller", f"dispatcher, a thread for each of {sizes.dp} replicas", channels, ranks)]


def of_controllers(sizes: Sizes) -> list[ProcessNode]:
    def replica(index: int) -> ProcessNode:
        others = [
            ProcessNode(_label(sizes, index, rank), "scheduler, model", ("gloo broadcast <- rank 0",))
            for rank in range(1, sizes.tp)
        ]
        return ProcessNode(f"ControllerSingle = {_label(sizes, index, 0)}", "loop, scheduler, model", (), others)

    if sizes.dp == 1:
        return [replica(0)]
    replicas = [replica(index) for index in range(sizes.dp)]
    return [ProcessNode("ControllerMulti", "dispatcher", ("multiprocessing.Queue -> every replica",), replicas)]


def of_peers(sizes: Sizes) -> list[ProcessNode]:
    inside = sizes.dp_attention
    peers = [
        ProcessNode(_label(sizes, replica, rank, stage), "scheduler, model")
        for replica in range(1 if inside else sizes.dp)
        for stage in range(sizes.pp)
        for rank in range(sizes.tp)
    ]
    if sizes.dp == 1:
        return peers
    return [ProcessNode("DP controller", "dispatcher", ("ZMQ ipc -> rank 0 of every replica",), peers)]


def _label(sizes: Sizes, replica: int, rank: int, stage: int = 0) -> str:
    if sizes.dp_attention:
        replica = rank * sizes.dp // sizes.tp
    prefix = f"DP{replica} " if sizes.dp > 1 else ""
    return f"{prefix}{f'PP{stage} ' if sizes.pp > 1 else ''}TP{rank}"


MODELS = (
    ProcessModel(
        "0.1.5", {"D = 1, T = 1": "3", "D = 1, T > 1": "T + 3"}, of_router,
        (Line("0.1.5", "srt/managers/router/model_rpc.py", 445, 448, "ModelRpcServer()"),
         Line("0.1.5", "srt/managers/router/model_rpc.py", 494, 495, "multiprocessing.Process(")),
        without_dp=True,
    ),
    ProcessModel(
        "0.1.17", {"D = 1, T = 1": "3", "D = 1, T > 1": "T + 3", "D > 1": "D*T + 3"}, of_threads,
        (Line("0.1.17", CONTROLLER + "tp_worker.py", 739, 748, "exposed_ModelTpServer("),
         Line("0.1.17", CONTROLLER + "dp_worker.py", 24, 24, "threading.Thread")),
    ),
    ProcessModel(
        "0.2.0 to 0.3.2", {"D = 1": "T + 2", "D > 1": "D*T + 3"}, of_controllers,
        (Line("0.2.0", CONTROLLER + "manager_single.py", 59, 76, "range(1, tp_size_local)"),
         Line("0.2.0", CONTROLLER + "manager_multi.py", 97, 97, "multiprocessing.Process("),
         Line("0.3.2", MANAGERS + "controller_single.py", 65, 95, "range(1, tp_size_local)")),
    ),
    ProcessModel(
        "0.3.3", {"D = 1": "T + 2"}, of_peers, (Line("0.3.3", "srt/server.py", 329, 330, "run_scheduler_process"),),
        without_dp=True,
    ),
    ProcessModel(
        "0.3.3.post1 to 0.4.1.post7", {"D = 1": "T + 2", "D > 1": "D*T + 3"}, of_peers,
        (Line("0.4.0", "srt/server.py", 454, 455, "run_scheduler_process"),
         Line("0.4.0", MANAGERS + "data_parallel_controller.py", 154, 155, "run_scheduler_process")),
    ),
    ProcessModel(
        "today",
        {"D = 1": "P*T + 2", "D > 1": "D*P*T + 3", "D > 1, DP attention": "P*T + 3"},
        of_peers, today=True,
    ),
)  # fmt: skip
