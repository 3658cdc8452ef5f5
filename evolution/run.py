"""`run`: start a stage, send the workload, print what came out and what it cost."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.args import EngineArgs, engine_args_from
from common.os_accounts import ProcessAccount, process_account
from common.processes import ReadyReport
from common.tokenizer import Tokenizer
from evolution.checks import resolve_args
from evolution.engine import Engine, EngineError
from evolution.environment import environment
from evolution.metrics import Samples, collect, summary
from evolution.requests import RequestMaker
from evolution.stages import STAGES
from evolution.workload import Workload, make_workload
from report import tables

WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class RunResult:
    """One stage's run. `cpu_seconds`: (process name, pid) -> user + system seconds during the workload; `sim`: what
    `--device sim` counted in that time, over all replicas, else empty; `accounts`: the operating system's of each
    process, before and after the workload."""

    args: EngineArgs
    workload: Workload
    samples: Samples
    outputs: list[dict[str, Any]]
    processes: list[ReadyReport]
    cpu_seconds: dict[tuple[str, int], float]
    startup_seconds: float
    sim: dict[str, float]
    accounts: tuple[list[ProcessAccount], list[ProcessAccount]]


def run_command(options: argparse.Namespace) -> int:
    console = Console()
    stages = list(STAGES) if options.stage == "all" else [options.stage]
    prepared = []
    for stage in stages:  # everything is checked before anything starts
        args, config = resolve_args(engine_args_from(options, stage=stage))
        maker = RequestMaker(args, config, Tokenizer(args.model_path))
        prepared.append((args, make_workload(options, maker)))
    if options.json:
        check_writable(options.json)

    results = []
    for args, workload in prepared:
        try:
            results.append(run_stage(args, workload, console))
        except EngineError as error:
            print(f"python -m evolution run: {error}", file=sys.stderr)
            return 1
    for result in results:
        console.print(tables.process_tree(result))
    tables.print_sample(console, results[0])
    console.print(tables.latency_table(results))
    console.print(tables.cpu_table(results))
    for note in tables.notes(results):
        console.print(note, style="dim", soft_wrap=True)
    if options.json:
        lines = [msgspec.json.encode(result_record(result)).decode() for result in results]
        Path(options.json).write_text("\n".join(lines) + "\n", encoding="utf-8")
        console.print(f"results: {options.json}", soft_wrap=True)
    return 0 if tables.tokens_identical(results) else 1


def check_writable(path: str, option: str = "--json") -> None:
    """Before the run, not after it."""
    new = not os.path.lexists(path)
    try:
        with Path(path).open("a"):
            pass
        if new:
            Path(path).unlink()
    except OSError as error:
        raise ValueError(f"{option} {path}: {error.strerror}") from None


def run_stage(args: EngineArgs, workload: Workload, console: Console) -> RunResult:
    """Start, warm up, send, collect, stop."""
    began = time.perf_counter()
    with console.status(f"{args.stage}: starting"):
        engine = Engine(**{name: getattr(args, name) for name in args.__dataclass_fields__})
    startup_seconds = time.perf_counter() - began
    with engine:
        _warm_up(engine)
        pids = _pids(engine.processes)
        sim_before = _sim_counts(engine)
        before = [process_account(pid) for _, pid in pids]
        streams = _send(engine, workload, console)
        outputs = [stream.result() for stream in streams]
        after = [process_account(pid) for _, pid in pids]
        sim = {name: count - sim_before[name] for name, count in _sim_counts(engine).items()}
        processes = engine.processes
    cpu = {key: (b.cpu_ns - a.cpu_ns) / 1e9 for key, a, b in zip(pids, before, after, strict=True)}
    samples = collect(streams)
    return RunResult(args, workload, samples, outputs, processes, cpu, startup_seconds, sim, (before, after))


def _warm_up(engine: Engine) -> None:
    """A short request for every replica, so that no measured one pays for lazy initialisation. (With round robin the
    next request goes to replica 0 again; a least-loaded one, too, as nothing is outstanding.)"""
    new_tokens = min(WARM_UP_TOKENS, engine.args.context_length - 1)
    params = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    engine.generate(input_ids=[[0]] * engine.args.dp_size, sampling_params=params)
    engine.flush_cache()


def _send(engine: Engine, workload: Workload, console: Console) -> list:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    streams: list = []
    with Progress(*columns, console=console, transient=True, refresh_per_second=1) as progress:
        task = progress.add_task(f"{engine.args.stage}: requests", total=len(workload.requests))
        began = time.perf_counter()
        for request, send_at in zip(workload.requests, workload.send_at, strict=True):
            while (left := began + send_at - time.perf_counter()) > 0:
                progress.update(task, completed=sum(s.done.is_set() for s in streams))
                time.sleep(min(left, 0.1))
            streams += engine.submit([msgspec.structs.replace(request)])
        for count, stream in enumerate(streams, 1):
            stream.done.wait()
            progress.update(task, completed=count)
    return streams


def _sim_counts(engine: Engine) -> dict[str, float]:
    if engine.args.device != "sim":
        return {}
    stats = engine.stats()
    return {name: sum(s[name] for s in stats) for name in stats[0] if name.startswith("sim_")}


def _pids(processes: list[ReadyReport]) -> list[tuple[str, int]]:
    return [("main", os.getpid()), *((r.name, r.pid) for process in processes for r in process.walk())]


def result_record(result: RunResult) -> dict[str, Any]:
    """One line of the result file: bench_serving 0.4.6's names, ours under `evolution`."""
    args, samples, workload = result.args, result.samples, result.workload
    input_lens = [output["meta_info"]["prompt_tokens"] for output in result.outputs]
    output_lens = [output["meta_info"]["completion_tokens"] for output in result.outputs]
    duration = samples.duration
    random = workload.dataset_name == "random-ids"
    return {
        "tag": args.stage,
        "backend": "evolution",
        "dataset_name": workload.dataset_name,
        "request_rate": workload.request_rate if workload.request_rate != float("inf") else "inf",
        "max_concurrency": None,
        "random_input_len": max(input_lens) if random else None,
        "random_output_len": max(output_lens) if random else None,
        "duration": duration,
        "completed": len(result.outputs),
        "total_input_tokens": sum(input_lens),
        "total_output_tokens": sum(output_lens),
        "request_throughput": len(result.outputs) / duration if duration else None,
        "input_throughput": sum(input_lens) / duration if duration else None,
        "output_throughput": sum(output_lens) / duration if duration else None,
        **summary("e2e_latency", samples.e2e),
        **summary("ttft", samples.ttft),
        **summary("tpot", samples.tpot),
        **summary("itl", samples.itl),
        "concurrency": sum(samples.e2e) / duration if duration else None,
        "input_lens": input_lens,
        "output_lens": output_lens,
        "ttfts": samples.ttfts,
        "itls": samples.itls,
        "generated_texts": [output["text"] for output in result.outputs],
        "errors": [""] * len(result.outputs),
        "server_info": {name: getattr(args, name) for name in args.__dataclass_fields__},
        "evolution": {
            "tpots": samples.tpot,
            "e2e_latencies": samples.e2e,
            "chunk_gaps": samples.chunk_gaps,
            "output_ids": [output["output_ids"] for output in result.outputs],
            "finish_reasons": [output["meta_info"]["finish_reason"] for output in result.outputs],
            "cached_tokens": [output["meta_info"]["cached_tokens"] for output in result.outputs],
            "processes": [{"name": name, "pid": pid} for name, pid in _pids(result.processes)],
            "cpu_seconds": [
                {"name": name, "pid": pid, "seconds": seconds} for (name, pid), seconds in result.cpu_seconds.items()
            ],
            "startup_seconds": result.startup_seconds,
            "sim": result.sim,
            "scheduling": args.scheduling,
            "environment": environment(args),
        },
    }
