"""Random kills under load: start an engine, send it work from several threads, kill a random process of it at a random
time, look at what is left, and start the next one at once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from evolution.engine import Engine, EngineError
from experiments.faults.watching import (
    NOTICE_LIMIT,
    ORPHAN_LIMIT,
    SETTINGS,
    children,
    open_files,
    pids_of,
    run_folders,
    wait_until_dead,
)

CALLERS = 8
LONGEST_WAIT = 1.0  # s of load before the kill
PATIENCE = 30.0


@dataclass(frozen=True)
class Kill:
    """started, after, noticed: s of the start, of load before the kill, from it to the last caller's error (None: not
    all were told). results: that callers had before; files: that this process has open once all is over."""

    process: str
    started: float
    after: float
    noticed: float | None
    saw: str
    results: int
    orphans: int
    folders: int
    files: int

    @property
    def verdict(self) -> str:
        wrong = []
        if self.noticed is None or self.noticed > NOTICE_LIMIT:
            wrong.append(f"not all callers were told in {NOTICE_LIMIT:.0f} s")
        elif self.process not in self.saw.partition(" (pid ")[0]:
            wrong.append("another process is named")
        if self.orphans or self.folders:
            wrong.append(f"{self.orphans} processes and {self.folders} folders are left")
        return "; ".join(wrong) or "right"


def run_kills(stage: str, tp: int, dp: int, device: str, count: int, seed: int) -> Iterator[Kill]:
    rng = random.Random(seed)
    settings = SETTINGS | {"stage": stage, "tp_size": tp, "dp_size": dp, "device": device}
    for _ in range(count):
        yield _kill(settings, rng)


def _kill(settings: dict, rng: random.Random) -> Kill:
    before = children()
    began = time.monotonic()
    engine = Engine(**settings)
    started = time.monotonic() - began
    load = Load(engine, rng.randrange(1 << 30))
    after = rng.uniform(0.0, LONGEST_WAIT)
    time.sleep(after)
    process, pid = rng.choice(sorted(pids_of(engine).items()))
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    told = load.wait()
    mine = children() - before
    orphans = wait_until_dead(mine, ORPHAN_LIMIT)
    engine.shutdown(kill=True)
    noticed = None if told is None else told - killed
    return Kill(process, started, after, noticed, load.saw, load.results, orphans, len(run_folders()), open_files())


class Load:
    """Callers that ask again as soon as they have their answer, until there is an error."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine = engine
        self.results = 0
        self.saw = ""
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._call, args=(seed + i,), daemon=True) for i in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def _call(self, seed: int) -> None:
        rng = random.Random(seed)
        while True:
            prompt = [rng.randrange(1, 200) for _ in range(rng.choice((3, 40, 300)))]
            params = {"max_new_tokens": rng.choice((1, 20, 200)), "ignore_eos": True}
            try:
                result = self._engine.generate(input_ids=prompt, sampling_params=params, stream=rng.random() < 0.5)
                if not isinstance(result, dict):
                    list(result)
            except EngineError as error:
                with self._lock:
                    self.saw = str(error).partition("\n")[0]
                return
            with self._lock:
                self.results += 1

    def wait(self) -> float | None:
        """When the last caller had its error; None if one has none yet."""
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return None if any(thread.is_alive() for thread in self._threads) else time.monotonic()
