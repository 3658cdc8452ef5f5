"""What `run` prints: the process tree as it ran, a sample of the text, latencies and CPU time by stage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from common.processes import ReadyReport
from evolution import stages

if TYPE_CHECKING:
    from evolution.run import RunResult

SAMPLE_CHARS = 200
SAMPLES = 4


def process_tree(result: RunResult) -> Tree:
    """Names and pids of the processes that really ran."""
    count = 1 + sum(len(process.walk()) for process in result.processes)
    planned = f"{result.args.scheduling} scheduling" if result.args.tp_size > 1 else "one rank"
    tree = Tree(f"[bold]{result.args.stage}[/bold], {planned}: {count} processes; main, pid {os.getpid()}")

    def add(node: ReadyReport, parent: Tree) -> None:
        branch = parent.add(f"{node.name}, pid {node.pid}")
        for child in node.children:
            add(child, branch)

    for process in result.processes:
        add(process, tree)
    return tree


def print_sample(console: Console, result: RunResult) -> None:
    """The first requests' text, as it came."""
    for output in result.outputs[:SAMPLES]:
        text = output["text"]
        shown = text if len(text) <= SAMPLE_CHARS else text[:SAMPLE_CHARS] + " ..."
        console.print(f"[bold]{output['meta_info']['id']}[/bold]: {escape(repr(shown))}", soft_wrap=True)
    if len(result.outputs) > SAMPLES:
        console.print(f"... and {len(result.outputs) - SAMPLES} more", soft_wrap=True)


def latency_table(results: list[RunResult]) -> Table:
    table = Table(title=f"{len(results[0].outputs)} requests; latency in ms: median/p90/p99")
    table.add_column("")
    for result in results:
        table.add_column(result.args.stage, justify="right")
    for name in ("ttft", "itl", "tpot", "e2e"):
        table.add_row(name.upper(), *(_percentiles(getattr(result.samples, name)) for result in results))
    table.add_row("gap between chunks", *(_percentiles(_chunk_gaps(result)) for result in results))
    table.add_row("longest gap", *(f"{max(_chunk_gaps(result), default=0) * 1e3:.0f}" for result in results))
    table.add_row("output tokens/s", *(_throughput(result) for result in results))
    table.add_row("start, s", *(f"{result.startup_seconds:.2f}" for result in results))
    return table


def _chunk_gaps(result: RunResult) -> list[float]:
    return [gap for gaps in result.samples.chunk_gaps for gap in gaps]


def cpu_table(results: list[RunResult]) -> Table:
    """CPU time by process; one column of names, since the stages' processes differ. On sim `all` is without what only
    the simulation takes."""
    table = Table(title="CPU seconds (user + system), by process")
    table.add_column("stage")
    table.add_column("process")
    table.add_column("seconds", justify="right")
    table.add_column("per 1,000 tokens out", justify="right")
    for result in results:
        tokens = max(1, result.samples.output_tokens)
        for (name, _), seconds in result.cpu_seconds.items():
            table.add_row(result.args.stage, name, f"{seconds:.3f}", f"{seconds / tokens * 1000:.3f}")
        total = sum(result.cpu_seconds.values())
        if result.sim:
            simulating = result.sim["sim_cpu_seconds"] + result.sim["sim_others_cpu_seconds"]
            total -= simulating
            table.add_row(
                result.args.stage,
                "taken off: the simulation",
                f"{-simulating:z.3f}",
                f"{-simulating / tokens * 1000:z.3f}",
            )
        table.add_row(
            result.args.stage, "[bold]all[/bold]", f"{total:.3f}", f"{total / tokens * 1000:.3f}", end_section=True
        )
    return table


def notes(results: list[RunResult]) -> list[str]:
    """What the reader must know beside the figures."""
    lines = [_tokens_verdict(results)] if len(results) > 1 else []
    args = results[0].args
    if args.tp_size > 1 and len({result.args.scheduling for result in results}) > 1:
        lines.append(
            "who plans differs too: "
            + ", ".join(f"{result.args.stage} {result.args.scheduling}" for result in results)
            + "; --scheduling replicated makes all alike."
        )
    if args.device == "sim":
        lines.append(f"sim: forwards last as long as profile {args.sim_profile} predicts; tokens are hashes, no text.")
    ranks, cores = args.tp_size * args.dp_size, len(os.sched_getaffinity(0))
    if args.device == "cpu" and ranks > cores:
        lines.append(f"{ranks} ranks share {cores} cores: latencies say more about the cores than about the stage.")
    if os.getloadavg()[0] > cores * (1 + len(results) / 2):
        lines.append(f"load average {os.getloadavg()[0]:.1f} on {cores} cores: other processes disturbed this run.")
    if len(results) > 1:
        lines.append("One run of each: a difference smaller than what a second run shows means nothing.")
    for result in results:
        lines += stages.notes(result.args)
        nodes = [node for process in result.processes for node in process.walk()]
        lines += sorted({f"{result.args.stage}: {node.info['note']}." for node in nodes if "note" in node.info})
    return lines


def tokens_identical(results: list[RunResult]) -> bool:
    return _first_difference(results) is None


def _tokens_verdict(results: list[RunResult]) -> str:
    difference = _first_difference(results)
    if difference is None:
        return f"tokens: identical in all {len(results)} stages"
    stage, index = difference
    return f"TOKENS DIFFER: request {index} in {stage} against {results[0].args.stage}"


def _first_difference(results: list[RunResult]) -> tuple[str, int] | None:
    """(stage, request) of the first output that is not that of the first stage."""
    first = [output["output_ids"] for output in results[0].outputs]
    for result in results[1:]:
        for index, output in enumerate(result.outputs):
            if output["output_ids"] != first[index]:
                return result.args.stage, index
    return None


def _percentiles(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    values = np.percentile(seconds, [50, 90, 99]) * 1e3
    return "/".join(f"{value:.1f}" if values[0] < 100 else f"{value:.0f}" for value in values)


def _throughput(result: RunResult) -> str:
    samples = result.samples
    return f"{samples.output_tokens / samples.duration:.1f}" if samples.duration else "-"
