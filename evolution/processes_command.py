"""`processes`: the tree a stage would start, without starting it."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.tree import Tree

from common.args import engine_args_from
from common.process_tree import ProcessNode
from evolution.checks import resolve_args
from evolution.stages import STAGES, process_tree


def processes_command(options: argparse.Namespace) -> int:
    console = Console()
    for stage in list(STAGES) if options.stage == "all" else [options.stage]:
        args, _ = resolve_args(engine_args_from(options, stage=stage), measure_memory=False)
        root = process_tree(args)
        count = len(root.walk())
        console.print(f"{stage}: {count} processes at --tp-size {args.tp_size} --dp-size {args.dp_size}")
        console.print(rich_tree(root))
    return 0


def rich_tree(node: ProcessNode, parent: Tree | None = None) -> Tree:
    """Names, what they hold, and their channels below, as rich prints a tree."""
    label = f"[bold]{node.name}[/bold]  {node.holds}"
    for channel in node.channels:
        label += f"\n  [dim]{channel}[/dim]"
    tree = parent.add(label) if parent else Tree(label)
    for child in node.children:
        rich_tree(child, tree)
    return tree
