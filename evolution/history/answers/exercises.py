"""The chapter's three exercises."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from evolution.history import data
from evolution.history.answers.page import Answer, Sources, verdict
from evolution.history.clone import MANAGERS, last_event
from evolution.history.releases import check_repo, from_wheel, managers_of
from evolution.history.trees import MODELS, Sizes
from evolution.processes_command import rich_tree
from evolution.stages import process_tree

IMAGE_BYTES = 4 << 20
CONTROLLERS = ("controller_multi.py", "data_parallel_controller.py")
QUEUE, SOCKET = b"multiprocessing.Queue", b"zmq.PUSH"


def show_encodings(console: Console, sources: Sources) -> bool:
    """4 MiB through the two encodings of the releases, and through this suite's: seconds of one process."""
    from common.parallel.broadcast import make_encoding  # torch takes seconds

    image = bytes(range(256)) * (IMAGE_BYTES // 256)
    seconds = {}
    table = Table(title="4 MiB from message to tensor and back")
    for column in ("encoding", "bytes in the tensor", "encode ms", "decode ms"):
        table.add_column(column, justify="left" if column == "encoding" else "right")
    whole = True
    for name in ("list of ints", "numpy buffer", "msgpack"):
        encoding = make_encoding(name, bytes)
        start = time.perf_counter()
        content = encoding.encode(image)
        encoded = time.perf_counter()
        whole &= encoding.decode(content) == image
        seconds[name] = time.perf_counter() - start
        times = (f"{(encoded - start) * 1e3:.1f}", f"{(seconds[name] - (encoded - start)) * 1e3:.1f}")
        table.add_row(name, f"{len(content):,}", *times)
    console.print(table)
    verdict(console, "the bytes came back whole", whole)
    ratio = seconds["list of ints"] / seconds["numpy buffer"]
    return (
        verdict(console, f"the list of ints takes several times as long as the buffer: {ratio:.0f} times", ratio > 3)
        and whole
    )


def show_gap(console: Console, sources: Sources) -> bool:
    """Which release has which controller of replicas: by the listings of this suite, or by the user's own wheels."""
    rows = {}
    table = Table(title="Who dispatches to replicas")
    for column in ("release", "day", *CONTROLLERS, "through"):
        table.add_column(column)
    for version in ("0.3.2", "0.3.3", "0.3.3.post1", "0.4.0"):
        files = from_wheel(sources.wheels, version) if sources.wheels else None
        names = managers_of(files) if files else data.listings()[version].files
        rows[version] = [name in names for name in CONTROLLERS]
        through = "" if files else "(give --wheels)"
        for name in CONTROLLERS:
            text = (files or {}).get(f"srt/managers/{name}", b"")
            through += "multiprocessing.Queue " if QUEUE in text else "ZMQ " if SOCKET in text else ""
        table.add_row(version, data.listings()[version].date, *("yes" if has else "" for has in rows[version]), through)
    console.print(table)
    for kind, name in (("D", CONTROLLERS[0]), ("A", CONTROLLERS[1])):
        file_event(console, sources.repo, kind, name)
    expected = {"0.3.2": [True, False], "0.3.3": [False, False], "0.3.3.post1": [False, True], "0.4.0": [False, True]}
    return verdict(console, "0.3.3 has neither, and 0.3.3.post1 the new one", rows == expected)


def show_today(console: Console, sources: Sources) -> bool:
    """Arithmetic: this suite runs no pipeline. Without stages its own tree must have the same count."""
    today = MODELS[-1]
    counts = []
    for sizes in (Sizes(4, 2, 2), Sizes(4, 2, 2, dp_attention=True)):
        root = today.tree(sizes)
        counts.append(len(root.walk()))
        console.print(f"{counts[-1]} processes{', with DP attention' if sizes.dp_attention else ''}")
        console.print(rich_tree(root))
    ours = len(process_tree(EngineArgs(stage="peer", tp_size=4, dp_size=2)).walk())
    same = len(today.tree(Sizes(4, 2)).walk()) == ours
    return verdict(console, "19, and 11 with DP attention", counts == [19, 11]) & verdict(
        console, f"without stages the tree has as many as this suite's peer stage starts: {ours}", same
    )


def file_event(console: Console, repo: Path | None, kind: str, name: str) -> None:
    """Prints the commit that added ("A") or deleted ("D") a file of managers/, where there is a clone to ask."""
    what = f"{name} was {'added' if kind == 'A' else 'deleted'} by"
    if repo is None:
        console.print(f"{what}: only a clone knows (--repo PATH)", style="dim")
        return
    check_repo(repo)
    console.print(f"{what}: {last_event(repo, kind, MANAGERS + name) or 'no commit of this clone'}", soft_wrap=True)


PAGES = {
    "exercise-1": Answer(
        "Why is a length broadcast first, and what happens to a request with a 4 MB image?",
        "A receiver of a broadcast must hold a tensor of the right size beforehand. So the length comes first, in a"
        " tensor whose size is known, then the content; 0 says that there is none. An image makes a large content. Not"
        " the file travels but the float16 tensor that the model's tiling makes of it, hashed and prepared by the"
        " tokenizer manager since 0.1.5. It was pickled on each hop, and until 0.3.2 its bytes became a Python list.",
        show_encodings,
        "bench image",
    ),
    "exercise-2": Answer(
        "Why was data parallelism gone for a while?",
        "#1534 made a process of each rank and took the controllers away, and data parallelism with them: release 0.3.3"
        " has none. #1635 brought it back within days, in 0.3.3.post1, as a process that starts the schedulers of all"
        " replicas and sends over ZMQ, to a socket file for each replica; before, it was a multiprocessing.Queue. Both"
        " policies kept their names, but shortest_queue raised NotImplementedError, and an abort ended the controller.",
        show_gap,
        "claims",
    ),
    "exercise-3": Answer(
        "How many processes does today's server start for TP 4, PP 2, DP 2?",
        "A main process, a controller of replicas, a detokenizer, and a scheduler for each rank of each stage of each"
        " replica: 1 + 1 + 1 + 2*2*4 = 19. With DP attention the replicas lie inside the tensor-parallel ranks: 3 + 2*4"
        " = 11. Python's own resource tracker is not counted, nor are workers for images.",
        show_today,
        "history trees --tp-size 4 --pp-size 2 --dp-size 2",
    ),
}
