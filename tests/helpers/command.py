"""The command line as a person types it, in this process: starting Python and torch anew costs
seconds each time.
"""

import io
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest import mock

from macc.cli import main


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def run(*words: object) -> Ended:
    """``macc WORDS``, with errors handled as on the command line."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["macc", *map(str, words)]),
        mock.patch.object(warnings, "showwarning"),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return Ended(code, out.getvalue(), err.getvalue())
