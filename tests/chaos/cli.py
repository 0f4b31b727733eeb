"""Faults of every kind from a terminal, and a report with counts.

python -m tests.chaos                                       300 faults on each database: minutes
python -m tests.chaos --faults 5000 --database postgres     hours
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from chaos.campaign import Plan, Report, run_apart

_LEG = 50
"""Faults on one table: its metadata grows with every commit."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=300, help="on each database")
    parser.add_argument("--database", choices=["sqlite", "postgres"], action="append", help="default: both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="work in this new folder, and leave everything there")
    options = parser.parse_args(arguments)
    found = [
        _campaigns(database, options.faults, options.seed, options.keep)
        for database in options.database or ["sqlite", "postgres"]
    ]
    return int(any(report.violations for report in found))


def _campaigns(database: str, faults: int, seed: int, keep: Path | None) -> Report:
    total = Report()
    legs = [min(_LEG, faults - done) for done in range(0, faults, _LEG)]
    for number, size in enumerate(legs):
        with _folder(keep, f"{database}-{number}") as folder:
            total.add(run_apart(Plan(database, folder, size, seed * 1000 + number)))
        sys.stderr.write(f"{database}: {total.faults.total()} of {faults}, {len(total.violations)} violations\n")
        if total.violations:
            break
    print(f"{database}: {len(total.violations)} violations. {total}", flush=True)
    return total


@contextlib.contextmanager
def _folder(keep: Path | None, name: str) -> Iterator[Path]:
    if keep is not None:
        folder = keep.resolve() / name
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)
