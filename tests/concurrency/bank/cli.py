"""``python -m tests.concurrency.bank``: ten minutes of transfers, and 1,000 crashes, on SQLite and Postgres."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from concurrency.bank import campaign, crashes
from concurrency.writers import Address
from servers import PostgresServer


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.concurrency.bank", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--crashes", type=int, default=1_000)
    parser.add_argument("--database", choices=["sqlite", "postgres"], action="append", help="by default both")
    asked = parser.parse_args(arguments)
    violations = 0
    for database in asked.database or ("sqlite", "postgres"):
        cuts = 0.5 if database == "postgres" else 0.0
        violations += _apart(
            database,
            lambda address, folder, cuts=cuts: campaign.run_apart(  # type: ignore[misc]
                campaign.Plan(address, folder / "acks", asked.seconds, asked.writers, cuts_per_s=cuts)
            ),
        )
        violations += _apart(database, lambda address, _folder: crashes.run_apart(address, asked.crashes))
    return int(violations > 0)


def _apart(database: str, run: Callable[[Address, Path], campaign.Report | crashes.Report]) -> int:
    """In a database and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        server = PostgresServer() if database == "postgres" else None
        try:
            uri = f"sqlite:///{folder}/catalog.db" if server is None else server.create_database("bank")
            report = run(Address(uri, "", f"file://{folder}/warehouse"), Path(folder))
        finally:
            if server is not None:
                server.close()
    print(f"{database}: {report}", *report.violations[:5], sep="\n  ", flush=True)
    return len(report.violations)
