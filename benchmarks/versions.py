"""This version beside an earlier one, in one run: a lone writer, and 30 processes on one table.

    python benchmarks/versions.py --earlier "$(.ci/earlier-version f321ba5)" --rounds 5      make bench-versions

Each round runs ``frazil race`` (appends of 100 rows on SQLite, with every file synced) with both versions, in turn.
The rates are commits per second of the race itself, without start and proof; the figure is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Report

RACES = {"a lone writer": (1, 150), "30 writers": (30, 10)}
"""Name → processes, and commits of each."""


def race(python: str, writers: int, commits: int) -> float:
    folder = tempfile.mkdtemp(prefix="frazil-versions-")
    command = [python, "-m", "frazil", "--output", "json", "race", "--folder", f"{folder}/lake"]
    numbers = ["--writers", str(writers), "--commits", str(commits)]
    try:
        done = subprocess.run([*command, *numbers], cwd=folder, check=True, capture_output=True, text=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert found["nothing_lost"], found
    return float(found["commits"]) / float(found["race_seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--earlier", required=True, help="the Python of an environment with the earlier version")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    report = Report("versions")
    for name, (writers, commits) in RACES.items():
        rates: dict[str, list[float]] = {"earlier": [], "this": []}
        for number in range(given.rounds):
            # The first of a round is not always the same, as the machine may be warm or busy by then.
            order = ("earlier", "this") if number % 2 else ("this", "earlier")
            for version in order:
                python = str(Path(given.earlier)) if version == "earlier" else sys.executable
                rates[version].append(race(python, writers, commits))
        for version, found in rates.items():
            report.add(f"{name}, {version} version, median of {len(found)}", statistics.median(found), "commits/s")
        report.ratio(
            f"{name}, this beside earlier", *map(statistics.median, (rates["this"], rates["earlier"])), wanted=1
        )
    report.save()


if __name__ == "__main__":
    main()
