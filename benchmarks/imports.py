"""What it costs to load Frazil: user CPU time of processes of their own, beside another installation of it.

    .venv/bin/python benchmarks/imports.py --this /path/to/python --other /path/to/python

Both need the same packages: where pandas is installed, Arrow loads it for the first table.
``.ci/earlier-version COMMIT`` installs a commit with what it depends on, and nothing else.

The two alternate in one run, and the median of each counts. *import* is ``import frazil``; *connect* also looks up
``frazil.connect``, which loads PyIceberg and Arrow; *help* is ``frazil --help``; *append* creates an embedded lake with
a table, appends a row and reads it, which loads everything else that a job without Spark and SQL needs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from common import Report

WANTED = 1.67
"""``import frazil`` takes at most 0.6 of the time it took before it was made light."""
APPEND = """
import tempfile, frazil, pyarrow as pa
with tempfile.TemporaryDirectory() as folder, frazil.connect(folder) as lake:
    lake.create_namespace("bench", exists_ok=True)
    table = lake.create_table("bench.imports", "id bigint")
    table.append(pa.table({"id": [1]}))
    assert table.scan().to_arrow().num_rows == 1
"""
CODES = {
    "import": "import frazil",
    "help": "from frazil.cli import main\nmain(['--help'])",
    "connect": "import frazil\nfrazil.connect",
    "append": APPEND,
}


def user_seconds(python: str, code: str, folder: str) -> float:
    """The user time of a new process, from a folder whose files it cannot import by accident."""
    command = [python, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime


def medians(pythons: Sequence[str], code: str, rounds: int) -> list[float]:
    taken: dict[str, list[float]] = {python: [] for python in pythons}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for python in pythons:
                seconds = user_seconds(python, code, folder)
                # The first round compiles the modules and warms the page cache.
                if number:
                    taken[python].append(seconds)
    return [statistics.median(taken[python]) for python in pythons]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--this", default=sys.executable, help="the Python of the installation to measure")
    parser.add_argument("--other", help="the Python of another installation of Frazil, to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    report = Report("imports")
    # The processes run in a folder of their own; a link to an environment's Python is not followed.
    pythons = list(dict.fromkeys(os.path.abspath(each) for each in (options.this, options.other) if each))
    for name, code in CODES.items():
        times = medians(pythons, code, options.rounds)
        report.add(f"{name}, user time", times[0] * 1000, "ms")
        if len(times) == 1:
            continue
        report.add(f"{name}, user time of the other", times[1] * 1000, "ms")
        if name == "import":
            report.ratio("import, the other over this", *times, wanted=WANTED, higher_is_better=False)
        else:
            report.add(f"{name}, the other over this", times[1] / times[0], "×")
    if options.other:
        report.save()


if __name__ == "__main__":
    main()
