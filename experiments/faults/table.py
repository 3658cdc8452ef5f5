"""The fault table: one engine per row, in which one process fails in one way at one moment.

    kill, abort    SIGKILL, SIGABRT from outside: what the OOM killer does, and what C code does to itself
    stop           SIGSTOP: the process exists, and does nothing
    raise          an exception in its Python code (`--fault`); an idle process runs none, so there is no such row

    start          the process was just started
    idle           no request is out; one that is stopped is found at the next request
    prefill        prompts are prefilled, and nothing was sampled yet
    decode         tokens are streamed, and one more request comes

Noticed is from the fault (of `raise`: from the process's end) to the last caller's error; with `stop` the limit is the
watchdog's timeout more, or the start's, once the other processes have done what they can. A row is right when its
callers hear in time, of the process that failed, the engine says that it is not well, and every process is gone in
time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from common.args import EngineArgs
from evolution.engine import Engine, EngineError
from evolution.faults_args import KINDS, PHASES
from evolution.stages import fill_in, known_processes
from experiments.faults.watching import (
    NOTICE_LIMIT,
    ORPHAN_LIMIT,
    SETTINGS,
    STARTUP,
    WATCHDOG,
    children,
    lives,
    pids_of,
    starting_pid,
    wait_until_dead,
)

SIGNALS = {"kill": signal.SIGKILL, "abort": signal.SIGABRT, "stop": signal.SIGSTOP}
REST_OF_A_START = 8.0  # s at most, that the other processes go on starting
PATIENCE = 30.0  # s after which a caller that has heard nothing is not waited for any longer
LONG_PROMPTS = [[1 + index % 200 for index in range(1000)], [1 + index % 199 for index in range(1000)]]
DECODE_TURN = 40


@dataclass(frozen=True)
class Case:
    stage: str
    tp: int
    dp: int
    kind: str
    process: str
    phase: str

    @property
    def limit(self) -> float:
        """s, from the fault to the error."""
        if self.kind != "stop":
            return NOTICE_LIMIT
        if self.phase == "start":  # counted from when the others, too, have come to rest
            return REST_OF_A_START + STARTUP + NOTICE_LIMIT
        return WATCHDOG + NOTICE_LIMIT


@dataclass(frozen=True)
class Row:
    """noticed: s; None: never. saw: the first line of what the last caller was told, or why the engine never served."""

    case: Case
    noticed: float | None
    saw: str
    healthy: bool
    orphans: int

    @property
    def verdict(self) -> str:
        """ "right", or what is wrong."""
        if self.noticed is None:
            return "nobody was told" if not self.saw else "not measured"
        wrong = []
        if self.noticed > self.case.limit:
            wrong.append(f"told after more than {self.case.limit:.0f} s")
        if self.case.process not in self.saw.partition(" (pid ")[0]:
            wrong.append("another process is named")
        if self.healthy:
            wrong.append("the engine says that it is well")
        if self.orphans:
            wrong.append(f"{self.orphans} processes left after {ORPHAN_LIMIT:.0f} s")
        return "; ".join(wrong) or "right"


def all_cases(stage: str, tp: int, dp: int) -> list[Case]:
    args = fill_in(EngineArgs(stage=stage, tp_size=tp, dp_size=dp))
    processes = [name for name in known_processes(args) or [] if name != "main"]
    return [
        Case(stage, tp, dp, kind, process, phase)
        for phase in PHASES
        for process in processes
        for kind in KINDS
        if (kind, phase) != ("raise", "idle")
    ]


def run_case(case: Case, device: str = "cpu") -> Row:
    settings = SETTINGS | {"stage": case.stage, "tp_size": case.tp, "dp_size": case.dp, "device": device}
    if case.kind == "raise":
        settings["fault"] = _raise_at(case)
    if (case.kind, case.phase) == ("stop", "start"):
        settings["startup_timeout"] = STARTUP
    before = children()
    row = _while_starting(case, settings) if case.phase == "start" else _while_serving(case, settings)
    left = wait_until_dead(children() - before, ORPHAN_LIMIT)
    return Row(case, *row, left)


def _raise_at(case: Case) -> str:
    target = case.process.removeprefix("evo-")
    if " " in target:  # a rank
        target = target.partition(" ")[2]
        when = {"start": "start", "prefill": "turn 2", "decode": f"turn {DECODE_TURN}"}[case.phase]
    else:  # its turns are the messages that it takes: the second request is the router's third
        detokenizer = target == "detokenizer"
        decode = 5 if detokenizer else len(LONG_PROMPTS) + 1
        when = {"start": "start", "prefill": "turn 1", "decode": f"turn {decode}"}[case.phase]
    return f"{target}: raise at {when}"


# ---------------------------------------------------------------------- while starting


def _while_starting(case: Case, settings: dict[str, Any]) -> tuple[float | None, str, bool]:
    ended: list[tuple[float, str]] = []

    def start() -> None:
        try:
            Engine(**settings).shutdown(kill=True)
        except EngineError as error:
            ended.append((time.monotonic(), str(error).removeprefix("the engine could not start: ")))

    starter = threading.Thread(target=start)
    starter.start()
    pid = starting_pid(case.process)
    failed = _fail(case, pid)
    starter.join(PATIENCE + STARTUP)
    if not ended:
        return None, "", True
    return max(0.0, ended[0][0] - failed), ended[0][1].partition("\n")[0], False


# ---------------------------------------------------------------------- while serving


def _while_serving(case: Case, settings: dict[str, Any]) -> tuple[float | None, str, bool]:
    try:
        started = Engine(**settings)
    except EngineError as error:  # it is the row that could not be measured, and no reason to lose the others
        return None, str(error).partition("\n")[0], False
    with started as engine:
        pid = pids_of(engine)[case.process]
        if case.kind != "raise":
            engine.generate(input_ids=[[1, 2, 3]] * case.dp, sampling_params={"max_new_tokens": 2})
        streams = _work(engine, case)
        failed = _fail(case, pid)
        if case.phase == "idle" and case.kind == "stop":
            streams = _submit(engine, [[1, 2, 3]] * case.dp)
        try:
            told, saw = _wait_for_errors(engine, streams)
        except TimeoutError:
            return None, "", engine.health().ok
        return max(0.0, told - failed), saw, engine.health().ok


def _work(engine: Engine, case: Case) -> list:
    """What is out when the process fails."""
    if case.phase == "idle":
        return []
    if case.phase == "prefill":
        streams = _submit(engine, LONG_PROMPTS)
        time.sleep(0.02)  # the requests are on their way, and a prompt of 63 chunks takes longer than that
        return streams
    streams = _submit(engine, [[1, 2, 3], [4, 5, 6]])
    for stream in streams:
        results = stream.results()
        try:
            for _ in range(3):
                next(results)
        except EngineError:  # `raise` came before that
            return streams
    return streams + _submit(engine, [[7, 8, 9]])


def _submit(engine: Engine, prompts: list[list[int]]) -> list:
    params = {"max_new_tokens": 1000, "ignore_eos": True, "temperature": 0}
    return engine.submit(engine.make_requests(input_ids=prompts, sampling_params=params, stream=True)[1])


def _fail(case: Case, pid: int) -> float:
    """Let the process fail, or see it do so; when that was."""
    if case.kind != "raise":
        now = time.monotonic()
        os.kill(pid, SIGNALS[case.kind])
        return now
    deadline = time.monotonic() + PATIENCE
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    return time.monotonic()


def _wait_for_errors(engine: Engine, streams: list) -> tuple[float, str]:
    """When the last caller was told, and what. With no request out, when the engine knew. TimeoutError if not all."""
    deadline = time.monotonic() + PATIENCE
    for stream in streams:
        if not stream.done.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
    while engine.health().ok:
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.002)
    told = time.monotonic()
    errors = list(_errors(engine, streams))
    return told, errors[-1].partition("\n")[0] if errors else "a result"


def _errors(engine: Engine, streams: list) -> Iterator[str]:
    for stream in streams:
        try:
            stream.result()
        except EngineError as error:
            yield str(error)
    try:
        engine.generate(input_ids=[1])
    except EngineError as error:
        yield str(error)
