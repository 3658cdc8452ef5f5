"""What a stage costs: messages of a turn, CPU time of a turn, cores of an idle engine. Given; nothing to edit.

python -m experiments.labs.lab7_own_model.measure [TP]      the table, half a minute
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.os_accounts import process_cpu_ns, thread_accounts
from evolution import Engine
from report.trace import load, working_turns

OUTPUT = 64  # tokens of each request, and so about as many turns
IDLE_S = 1.5
# Engines wait for a rank this long, not for the default: a stage that hangs must fail in the time of a test.
WATCHDOG = 15.0


@dataclass(frozen=True)
class Costs:
    """messages, bytes: sent in the middle corner in a usual decode turn. cpu_us: of its processes, a turn. switches:
    voluntary context switches of all their threads, a turn. idle_cores, idle_switches: without a request, a second."""

    stage: str
    messages: int
    bytes: int
    cpu_us: float
    switches: float
    idle_cores: float
    idle_switches: float


def measure(stage: str, tp_size: int, requests: int) -> Costs:
    """One engine on the simulated accelerator, where every rank plans; the detokenizer and main are not counted."""
    with tempfile.TemporaryDirectory(prefix="evo-lab-") as folder:
        how: dict[str, Any] = {"stage": stage, "tp_size": tp_size, "device": "sim", "scheduling": "replicated"}
        how |= {"max_total_tokens": 8192, "check_divergence": 1, "watchdog_timeout": WATCHDOG}
        with Engine(**how, trace_dir=folder, log_level="error") as engine:
            pids = [n.pid for r in engine.processes for n in r.walk() if n.name != "evo-detokenizer"]
            _generate(engine, requests, 4)
            before, turns = _counted(pids), engine.stats()[0]["turns"]
            _generate(engine, requests, OUTPUT)
            after, turns = _counted(pids), engine.stats()[0]["turns"] - turns
            time.sleep(0.5)  # the last messages are on their way
            still = _counted(pids)
            time.sleep(IDLE_S)
            idle = [(b - a) / IDLE_S for a, b in zip(still, _counted(pids), strict=True)]
        messages, nbytes = _of_a_turn(Path(folder))
    cpu, switches = ((b - a) / turns for a, b in zip(before, after, strict=True))
    return Costs(stage, messages, nbytes, cpu / 1e3, switches, idle[0] / 1e9, idle[1])


def _generate(engine: Engine, count: int, length: int) -> None:
    """All of them at once."""
    params = {"max_new_tokens": length, "ignore_eos": True}
    engine.generate(input_ids=[[1 + index, 2, 3] for index in range(count)], sampling_params=params)


def _counted(pids: list[int]) -> tuple[int, int]:
    """CPU time in ns, and voluntary context switches, of these processes so far."""
    threads = [thread for pid in pids for thread in thread_accounts(pid)]
    return sum(process_cpu_ns(pid) for pid in pids), sum(thread.voluntary for thread in threads)


def _of_a_turn(folder: Path) -> tuple[int, int]:
    """Messages and bytes of the most common working turn, summed over the processes of the middle corner."""
    messages = nbytes = 0
    for thread in load(folder):
        if thread.process in ("main", "evo-detokenizer"):
            continue
        turns = [thread.turns[number] for number in working_turns(thread)]
        if turns:
            usual = Counter((turn.counts["messages"], turn.counts["bytes"]) for turn in turns).most_common(1)[0][0]
            messages, nbytes = messages + usual[0], nbytes + usual[1]
    return messages, nbytes


def table(costs: list[Costs]) -> str:
    """With the place of each among them, the least first."""
    columns = [
        ("messages", 12),
        ("bytes", 10),
        ("CPU us", 14),
        ("switches", 12),
        ("idle cores", 16),
        ("idle switches/s", 18),
    ]
    head = f"{'stage':26}" + "".join(f"{name:>{width}}" for name, width in columns)
    lines = [head, "(in brackets the place; messages, bytes, CPU time and switches of a turn; idle, a second)"]
    for one in costs:

        def placed(name: str, digits: int, cost: Costs = one) -> str:
            place = 1 + sum(getattr(other, name) < getattr(cost, name) for other in costs)
            return f"{getattr(cost, name):.{digits}f} ({place})"

        lines.append(
            f"{one.stage:26}{placed('messages', 0):>12}{placed('bytes', 0):>10}{placed('cpu_us', 0):>14}"
            f"{placed('switches', 1):>12}{placed('idle_cores', 4):>16}{placed('idle_switches', 0):>18}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    from .adapters import STAGE

    tp_size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    print(table([measure(stage, tp_size, requests=8) for stage in (STAGE, "rpyc", "broadcast", "peer")]))
