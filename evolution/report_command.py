"""`report`: the page, the pictures and the tables of a comparison."""

from __future__ import annotations

import argparse
import errno
from pathlib import Path

from report.page import write_report


def report_command(options: argparse.Namespace) -> int:
    """ValueError of one line for a folder that holds no comparison, or cannot be written to; OSError of a full disk."""
    folder = Path(options.dir)
    try:
        page, *files = write_report(folder, [Path(path) for path in options.also])
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise OSError(error.errno, error.strerror, str(error.filename or folder)) from None
        raise ValueError(f"{error.filename or folder}: {error.strerror}") from None
    print(f"{page}, and {len(files)} files of its pictures and tables beside it")
    return 0
