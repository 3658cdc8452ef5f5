"""Lab 0, the reference."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STAGES = ("rpyc", "broadcast", "peer")


def process_count(stage: str, tp_size: int, dp_size: int) -> int:
    if stage not in STAGES:
        raise ValueError(f"no stage {stage!r}: choose from {', '.join(STAGES)}")
    beside_ranks = 2  # main and the detokenizer
    has_router = dp_size > 1 or (stage == "rpyc" and tp_size > 1)
    return tp_size * dp_size + beside_ranks + has_router


def parents(stage: str, tp_size: int, dp_size: int) -> dict[str, str]:
    found = {"main": "", "evo-detokenizer": "main"}
    for replica in range(dp_size):
        labels = [f"DP{replica} TP{rank}" if dp_size > 1 else f"TP{rank}" for rank in range(tp_size)]
        if stage == "rpyc":
            found |= _rpyc(labels, dp_size)
        elif stage == "broadcast":
            above = "evo-controller-multi" if dp_size > 1 else "main"
            first = f"evo-controller {labels[0]}"
            found |= {first: above, **{f"evo-tp-server {label}": first for label in labels[1:]}}
        else:
            above = "evo-dp-controller" if dp_size > 1 else "main"
            found |= {f"evo-peer {label}": above for label in labels}
    dispatcher = {"broadcast": "evo-controller-multi", "peer": "evo-dp-controller"}.get(stage)
    if dp_size > 1 and dispatcher:
        found[dispatcher] = "main"
    return found


def _rpyc(labels: list[str], dp_size: int) -> dict[str, str]:
    if len(labels) == dp_size == 1:
        return {f"evo-router {labels[0]}": "main"}
    return {"evo-router": "main", **{f"evo-rpyc {label}": "evo-router" for label in labels}}


@dataclass(frozen=True)
class Seen:
    name: str
    parent: int


def processes_below(pid: int) -> dict[int, Seen]:
    everything: dict[int, Seen] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            title = (folder / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
            parent = int(_after_the_name(folder)[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        everything[int(folder.name)] = Seen(title, parent)
    below = {pid}
    while more := {one for one, seen in everything.items() if seen.parent in below} - below:
        below |= more
    return {one: everything[one] for one in below - {pid} if everything[one].name.startswith("evo-")}


def _after_the_name(folder: Path) -> list[str]:
    """Fields of /proc/PID/stat from the third on: the second is the name, and may hold spaces and brackets."""
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()


def messages_of_a_turn(stage: str, tp_size: int, scheduling: str) -> int:
    onward = 2  # rank 0 or the router to the detokenizer, which sends the text to main
    if stage == "rpyc":
        if tp_size == 1:
            return onward
        calls = tp_size + (scheduling == "rank0")  # rank 0 plans in a call of its own
        return onward + 2 * calls
    broadcasts = 2 if scheduling == "rank0" else 1  # length and content; or a single 0
    return onward + broadcasts * (tp_size - 1)


def cpu_seconds(pid: int) -> float:
    try:
        fields = _after_the_name(Path(f"/proc/{pid}"))
    except FileNotFoundError:
        raise ProcessLookupError(f"there is no process {pid}") from None
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")
