"""`bench radix`: the radix cache against a plain one, and that against the original, on one workload.

2,000 requests of 512 tokens: 10 first parts of 128 tokens, 10 second parts of 128 below each of them, 20 third parts
of 256 below each of those. All arms are sent the same requests in the same (shuffled) order:

    insert      into an empty tree, each request once
    match       each request again: all 512 tokens are known
    match half  256 known tokens, then 256 unknown ones
    evict       512 tokens, EVICTIONS times in a row: two leaves each time

Each arm gets ids and slots as its engine has them: ours int32 bytes and arrays, the others lists of ints. Times are
CPU time of the thread, with Python's garbage collector off. The arms' answers are compared after every repeat:
known tokens, slots found, slots freed, what can be evicted.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from common.radix_cache import RadixCache
from experiments.bench.option_lists import check_repeats
from experiments.bench.original_radix import OriginalRadixCache, find_original, load_original
from experiments.bench.plain_radix import PlainRadixCache
from experiments.bench.rounds import median
from experiments.bench.verdicts import combined, in_words
from experiments.intervals import pairwise_ratio, remark, shown, verdict

BRANCHES = (10, 10, 20)
LENGTHS = (128, 128, 256)
VOCAB = 32000
EVICT_TOKENS = 512
EVICTIONS = 200
STEPS = ("insert", "match", "match half", "evict")
TARGETS = {"match": 2.2, "insert": 1.8, "evict": 20.0}  # times as fast as the plain one
PLAIN_WITHIN = 1.25  # the plain one is a fair yardstick while it stands within 25% of the original


@dataclass(frozen=True)
class Workload:
    """requests: int32 [R, 512]; halves: the same with the third part replaced by tokens that are not in the tree."""

    requests: np.ndarray
    halves: np.ndarray
    evictions: int


class Arm:
    """A kind of tree, and the workload in the form that it takes.

    What is matched is not the very lists that were inserted: a request brings token ids of its own.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Any],
        as_ids: Callable[[np.ndarray], Any],
        as_slots: Callable[[np.ndarray], Any],
        workload: Workload,
    ) -> None:
        count, tokens = workload.requests.shape
        self.name = name
        self.make = make
        self.ids = {
            "insert": [as_ids(row) for row in workload.requests],
            "match": [as_ids(row) for row in workload.requests],
            "match half": [as_ids(row) for row in workload.halves],
        }
        self.slots = [as_slots(row) for row in np.arange(count * tokens, dtype=np.int32).reshape(count, tokens)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--original", metavar="DIR", help="an unpacked SGLang wheel (0.1.5 to 0.4.0), a third arm")
    parser.add_argument("--repeats", type=int, default=15, help="times each arm is measured (default: 15)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    check_repeats(options.repeats)
    workload = make_workload(BRANCHES, LENGTHS, EVICTIONS)
    arms = make_arms(workload)
    if options.original:
        arms.append(_original_arm(options.original, workload))
    print(f"{len(arms)} arms, {options.repeats} repeats: about {0.8 * len(arms) * options.repeats + 8:.0f} s")
    return measure(arms, workload, options.repeats)


def make_arms(workload: Workload) -> list[Arm]:
    return [
        Arm("ours", RadixCache, np.ndarray.tobytes, np.ndarray.copy, workload),
        Arm("plain", PlainRadixCache, np.ndarray.tolist, torch.tensor, workload),
    ]


def _original_arm(folder: str, workload: Workload) -> Arm:
    path, by_label = find_original(folder)
    module = load_original(path)
    as_ids = (lambda row: tuple(row.tolist())) if by_label else np.ndarray.tolist
    return Arm("original", lambda: OriginalRadixCache(module, by_label), as_ids, torch.tensor, workload)


def make_workload(branches: tuple[int, int, int], lengths: tuple[int, int, int], evictions: int) -> Workload:
    rng = np.random.default_rng(0)
    firsts = rng.integers(0, VOCAB, (branches[0], lengths[0]), dtype=np.int32)
    seconds = rng.integers(0, VOCAB, (branches[0], branches[1], lengths[1]), dtype=np.int32)
    thirds = rng.integers(0, VOCAB, (*branches, lengths[2]), dtype=np.int32)
    rows, halves = [], []
    for a in range(branches[0]):
        for b in range(branches[1]):
            for third in thirds[a, b]:
                known = np.concatenate([firsts[a], seconds[a, b]])
                rows.append(np.concatenate([known, third]))
                halves.append(np.concatenate([known, third + VOCAB]))
    order = rng.permutation(len(rows))
    return Workload(np.stack(rows)[order], np.stack(halves)[order], evictions)


def measure(arms: list[Arm], workload: Workload, repeats: int) -> dict[str, Any]:
    """`samples[step][arm]`: microseconds of CPU time per call, one figure per repeat; ratios and verdicts of them."""
    samples: dict[str, dict[str, list[float]]] = {step: {arm.name: [] for arm in arms} for step in STEPS}
    state: dict[str, Any] = {}
    for _ in range(repeats):
        trees = [arm.make() for arm in arms]
        answers: list[list[Any]] = [[] for _ in arms]
        for step in STEPS:
            for arm, tree, answer in zip(arms, trees, answers, strict=True):
                microseconds, said = _time_step(step, arm, tree, workload)
                samples[step][arm.name].append(microseconds)
                answer += [said, tree.evictable_size]
        for arm, answer in zip(arms, answers, strict=True):
            if answer != answers[0]:
                raise AssertionError(f"{arm.name} and {arms[0].name} gave different answers: nothing can be compared")
        state = _summary(answers[0])
    ratios = {step: pairwise_ratio(samples[step]["plain"], samples[step]["ours"]) for step in STEPS}
    verdicts = {step: verdict(ratios[step], at_least=target) for step, target in TARGETS.items()}
    result = {
        "bench": "radix",
        "unit": "us of CPU time per call",
        "workload": {"requests": len(workload.requests), "tokens": workload.requests.shape[1], **state},
        "samples": samples,
        "ratios": ratios,
        "targets": TARGETS,
        "verdicts": verdicts,
        "verdict": combined(verdicts.values()),
    }
    if "original" in samples["insert"]:
        to_original = {step: pairwise_ratio(samples[step]["plain"], samples[step]["original"]) for step in STEPS}
        result["plain_to_original"] = to_original
        result["plain_is_fair"] = all(1 / PLAIN_WITHIN <= r["median"] <= PLAIN_WITHIN for r in to_original.values())
    return result


def _time_step(step: str, arm: Arm, tree: Any, workload: Workload) -> tuple[float, list[Any]]:
    """Microseconds per call, and what the calls answered, in a form in which all arms can be compared."""
    said = []
    gc.collect()
    gc.disable()
    began = time.thread_time()
    if step == "insert":
        for one, owned in zip(arm.ids[step], arm.slots, strict=True):
            said.append(tree.insert(one, owned))
    elif step == "evict":
        for _ in range(workload.evictions):
            said.append(tree.evict(EVICT_TOKENS))
    else:
        for one in arm.ids[step]:
            said.append(tree.match_prefix(one)[0])
    seconds = time.thread_time() - began
    gc.enable()
    if step != "insert":
        said = [np.asarray(found).tobytes() for found in said]
    return seconds / len(said) * 1e6, said


def _summary(answer: list[Any]) -> dict[str, int]:
    """Sums that a reader can check: `answer` is what was said and what can be evicted, step by step."""
    inserted, size, matched, _, halves, _, evicted, left = answer
    return {
        "tokens_known_at_insert": sum(inserted),
        "tokens_matched": (sum(map(len, matched)) + sum(map(len, halves))) // 4,
        "tokens_in_tree": size,
        "tokens_evicted": sum(map(len, evicted)) // 4,
        "tokens_left": left,
    }


def show(result: dict[str, Any]) -> None:
    console = Console()
    work = result["workload"]
    console.print(
        f"{work['requests']} requests of {work['tokens']} tokens; {work['tokens_in_tree']} tokens in the tree,"
        f" {work['tokens_evicted']} evicted; all arms gave the same answers",
        soft_wrap=True,
    )
    arms = list(result["samples"]["insert"])
    table = Table(title="us of CPU time per call, median; ratios of pairs, median [95% interval]")
    for column in ("", *arms, "plain / ours", "target", ""):
        table.add_column(column, justify="left" if not column else "right")
    for step, samples in result["samples"].items():
        target = result["targets"].get(step)
        table.add_row(
            step,
            *(f"{median(samples[arm]):.1f}" for arm in arms),
            shown(result["ratios"][step]),
            f">= {target:g}" if target else "",
            result["verdicts"].get(step, "") or remark(result["ratios"][step]),
        )
    console.print(table)
    console.print("targets: " + in_words(result["verdicts"].values()))
    if "plain_to_original" in result:
        parts = ", ".join(f"{step} {shown(ratio)}" for step, ratio in result["plain_to_original"].items())
        word = "within" if result["plain_is_fair"] else "NOT within"
        console.print(f"plain / original: {parts}: {word} 25%", soft_wrap=True)
