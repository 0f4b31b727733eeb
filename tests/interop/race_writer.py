"""Writer processes of a race, in Python: ``python -m interop.race_writer REQUEST``; FrazilInterop's ``append`` in Java.

Forks one process per writer, so that the imports are paid once. Each says that it is ready; after a line on stdin all
of them send their batches and say what became of each.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.synchronize import Event, Semaphore
from typing import Any

import pyarrow as pa

Send = Callable[[pa.Table], dict[str, Any]]


def main(request: dict[str, Any]) -> int:
    opener = {"frazil": _frazil, "pyiceberg": _pyiceberg}[request["kind"]]()
    context = multiprocessing.get_context("fork")
    go = context.Event()
    turns = context.Semaphore(request.get("at_once", len(request["writers"])))
    processes = [context.Process(target=_write, args=(opener, request, n, go, turns)) for n in request["writers"]]
    for process in processes:
        process.start()
    sys.stdin.readline()
    go.set()
    for process in processes:
        process.join()
    return max(abs(process.exitcode or 0) for process in processes)


def _write(
    opener: Callable[[dict[str, Any]], Send], request: dict[str, Any], writer: int, go: Event, turns: Semaphore
) -> None:
    send = opener(request)
    _say({"ready": writer})
    go.wait()
    for seq in range(request["count"]):
        batch = pa.table({"writer": pa.array([writer], pa.int32()), "seq": pa.array([seq], pa.int32())})
        with turns:
            outcome = send(batch)
        _say({"writer": writer, "seq": seq, **outcome})


def _frazil() -> Callable[[dict[str, Any]], Send]:
    import frazil

    def opener(request: dict[str, Any]) -> Send:
        events = frazil.connect(request["uri"], warehouse=request["warehouse"]).table(request["table"])

        def send(batch: pa.Table) -> dict[str, Any]:
            commit = events.append(batch, retry=frazil.Retry.backfill())
            return {"outcome": "acknowledged", "failures": commit.attempts - 1}

        return send

    return opener


def _pyiceberg() -> Callable[[dict[str, Any]], Send]:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    def opener(request: dict[str, Any]) -> Send:
        # The catalog's tables are there: creating them from many processes at once would be another race.
        properties = {"uri": request["uri"], "warehouse": request["warehouse"], "init_catalog_tables": "false"}
        table = SqlCatalog(request["name"], **properties).load_table(request["table"])

        def send(batch: pa.Table) -> dict[str, Any]:
            failures = 0
            while True:
                table.refresh()
                try:
                    table.append(batch)
                except CommitFailedException:
                    failures += 1
                else:
                    return {"outcome": "acknowledged", "failures": failures}

        return send

    return opener


def _say(line: dict[str, Any]) -> None:
    # One write of less than a pipe's buffer: lines of several processes do not mix.
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
