"""`history`: how SGLang's processes changed, from what its releases hold; and whether they do hold it.

`history eras` is the other side: the constants that this suite's stages run with.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console, RenderableType

from evolution.bench_command import check_folder
from evolution.engine import EngineError
from evolution.eras_table import print_eras
from evolution.history import data, tables
from evolution.history.answers import give_answers
from evolution.history.answers.page import Sources
from evolution.history.outcomes import AGREES, DIFFERS, UNKNOWN
from evolution.history.trees import Sizes
from evolution.history.verify import all_facts, verify
from evolution.history_args import ANSWERS, PAGES

DIFFERENCES = "Where the chapter says otherwise: python -m evolution claims --verdict wrong partly"
MOST_SCHEDULERS = 1024  # in a tree that is still worth printing


def history_command(options: argparse.Namespace) -> int:
    sources = Sources(*(Path(path) if path else None for path in (options.wheels, options.repo)))
    sizes = Sizes(options.tp_size, options.dp_size, options.pp_size)
    _check_options(options, sizes)
    console = Console()
    if options.verify:
        return _verify(console, sources)
    if options.what == "answers":
        try:
            return 0 if give_answers(console, [options.name] if options.name else list(ANSWERS), sources) else 1
        except EngineError as error:
            print(f"python -m evolution history: {error}", file=sys.stderr)
            return 1
    if options.what == "eras":
        print_eras(console)
    for page in PAGES:
        if options.what in ("all", page):
            console.print(_page(page, sizes))
            console.print()
    if options.what == "all":
        console.print(DIFFERENCES, style="dim", soft_wrap=True)
    if options.out:
        from evolution.history.pictures import draw_all  # matplotlib takes a second

        for path in draw_all(Path(options.out)):
            console.print(f"drawn: {path}", soft_wrap=True)
    return 0


def _check_options(options: argparse.Namespace, sizes: Sizes) -> None:
    if options.name and options.what != "answers":
        raise ValueError(f"{options.name} is an answer: history answers {options.name}")
    if options.verify and (options.what != "all" or options.out):
        raise ValueError("--verify checks everything, and draws nothing: it goes without WHAT and --out")
    if (options.wheels or options.repo) and not options.verify and options.what != "answers":
        raise ValueError("--wheels and --repo go with --verify, or with `history answers`")
    if options.what == "figures" and not options.out:
        raise ValueError("figures: --out DIR says where to draw them")
    if options.out and options.what not in ("all", "figures"):
        raise ValueError("--out goes with `history` and `history figures` only")
    for name, value in (("tp", sizes.tp), ("dp", sizes.dp), ("pp", sizes.pp)):
        if value < 1:
            raise ValueError(f"--{name}-size must be a whole number of at least 1, not {value}")
    if sizes.tp * sizes.dp * sizes.pp > MOST_SCHEDULERS:
        raise ValueError(f"--tp-size x --dp-size x --pp-size: at most {MOST_SCHEDULERS} schedulers are drawn")
    if options.out:
        check_folder(Path(options.out))


def _page(page: str, sizes: Sizes) -> RenderableType:
    if page == "listings":
        return tables.listings(data.listings())
    if page == "commits":
        return tables.commits(data.commits())
    if page == "trees":
        return tables.trees(sizes)
    if page == "constants":
        return tables.constants(data.constants())
    return tables.tradeoffs(data.tradeoffs())


def _verify(console: Console, sources: Sources) -> int:
    """1 if anything differs. What could not be checked is no failure: it is said."""
    outcomes = verify(all_facts(), sources.wheels, sources.repo)
    console.print(tables.outcomes(outcomes))
    found = [row.outcome for row in outcomes]
    said = ", ".join(f"{found.count(kind)} {kind}" for kind in (AGREES, DIFFERS, UNKNOWN))
    console.print(f"{len(found)} checks: {said}", soft_wrap=True)
    return 1 if DIFFERS in found else 0
