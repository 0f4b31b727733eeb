"""Kills and freezes group leaders, round after round, and prints the results.

python -m tests.concurrency.leaders                                         1,000 rounds on each database
python -m tests.concurrency.leaders --rounds 100 --database sqlite --seed 7
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from concurrency.leaders.campaign import Plan, Report, run_apart

_LEG = 50
"""Rounds on one table: its metadata grows with every commit."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="leaders", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000, help="on each database")
    parser.add_argument("--database", choices=["sqlite", "postgres"], action="append", help="default: both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="work in this new folder, and leave everything there")
    options = parser.parse_args(arguments)
    found = [
        _campaigns(database, options.rounds, options.seed, options.keep)
        for database in options.database or ["sqlite", "postgres"]
    ]
    return int(any(report.violations for report in found))


def _campaigns(database: str, rounds: int, seed: int, keep: Path | None) -> Report:
    total = Report()
    with _folder(keep, database) as folder, _uri(database, folder) as uri:
        for first in range(0, rounds, _LEG):
            leg = folder / f"leg-{first}"
            leg.mkdir()
            many = min(_LEG, rounds - first)
            warehouse = f"file://{folder}/warehouse"
            total.add(run_apart(Plan(uri, warehouse, leg, f"ns.t{first}", many, seed + first)))
            print(
                f"{database}: {total.rounds.total()} of {rounds} rounds, {total.batches} batches, "
                f"{total.shared} groups, {len(total.violations)} violations, {total.seconds:.0f} s",
                flush=True,
            )
            if total.violations:
                break
    print(f"\n{database}, seed {seed}: {total}\n", flush=True)
    return total


@contextlib.contextmanager
def _folder(keep: Path | None, database: str) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    folder = keep.resolve() / database
    folder.mkdir(parents=True)
    yield folder


@contextlib.contextmanager
def _uri(database: str, folder: Path) -> Iterator[str]:
    if database == "sqlite":
        yield f"sqlite:///{folder}/catalog.db"
        return
    from servers import PostgresServer

    with contextlib.closing(PostgresServer()) as server:
        yield server.create_database("leaders")
