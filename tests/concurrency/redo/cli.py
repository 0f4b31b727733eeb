"""``python -m tests.concurrency.redo``: 200 statements of each verb beside 1 and 8 appenders, on both databases."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

from concurrency.redo.campaign import VERBS, Plan, run
from concurrency.writers import Address
from servers import PostgresServer


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.concurrency.redo", description=__doc__)
    parser.add_argument("--verb", choices=VERBS, action="append", help="by default all")
    parser.add_argument("--statements", type=int, default=200)
    parser.add_argument("--appenders", type=int, action="append", help="by default 1 and 8")
    parser.add_argument("--database", choices=["sqlite", "postgres"], action="append", help="by default both")
    parser.add_argument("--others", action="store_true", help="also writers of other rows, and a compaction loop")
    parser.add_argument("--engine", choices=["arrow", "spark"], default="arrow", help="what runs the statements")
    asked = parser.parse_args(arguments)
    failed = 0
    for database in asked.database or ("sqlite", "postgres"):
        for verb in asked.verb or VERBS:
            for appenders in asked.appenders or (1, 8):
                beside = int(asked.others)
                failed += _run(database, Plan(verb, asked.statements, appenders, beside, beside, asked.engine))
    return int(failed > 0)


def _run(database: str, plan: Plan) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        server = PostgresServer() if database == "postgres" else None
        try:
            uri = f"sqlite:///{folder}/catalog.db" if server is None else server.create_database("redo")
            report = run(Address(uri, "ns.t", f"file://{folder}/warehouse"), plan)
        finally:
            if server is not None:
                server.close()
    print(f"{database}: {report}", *report.errors[:5], *report.wrong[:5], sep="\n  ", flush=True)
    return bool(report.errors or report.wrong)
