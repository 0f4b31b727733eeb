"""The command ``frazil``. Exit codes: 0 done · 1 conflict, or the doctor found something · 2 bad input · 3 not found ·
4 catalog or storage unavailable or access denied · 5 outcome of a commit unknown · 70 defect · 130 interrupted.
"""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    """The entry point. Its imports take a second or two, and Ctrl-C may arrive while they run."""
    try:
        from frazil.cli._app import run

        run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("frazil: Interrupted.\n")
        sys.exit(130)
