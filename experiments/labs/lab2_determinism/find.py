"""Where did the ranks part? From the folder that `stage.py` has written, with your `first_divergence`.

python -m experiments.labs.lab2_determinism.find FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from . import adapters


def read(folder: Path) -> list[list[int]]:
    """The digests of each rank, turn by turn. ValueError of one line if there are none."""
    paths = sorted(folder.glob("TP*.txt"), key=lambda path: int(path.stem[2:]))
    if len(paths) < 2:
        raise ValueError(f"{folder} holds the digests of {len(paths)} ranks: run the stage of this lab first")
    return [[int(line) for line in path.read_text().split()] for path in paths]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m experiments.labs.lab2_determinism.find FOLDER")
    try:
        digests = read(Path(sys.argv[1]))
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    questions = 0

    def ask(rank: int, turn: int) -> int:
        nonlocal questions
        questions += 1
        return digests[rank][turn - 1]

    turns = min(map(len, digests))
    found = adapters.first_divergence(ask, len(digests), turns)
    if found is None:
        print(f"{len(digests)} ranks, {turns} turns, all alike ({questions} questions)")
    else:
        turn, ranks = found
        print(
            f"turn {turn} of {turns}: rank(s) {', '.join(map(str, ranks))} parted from rank 0 ({questions} questions)"
        )


if __name__ == "__main__":
    main()
