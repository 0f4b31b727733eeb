"""Real writer processes on a real catalog. Each keeps a log of what it was about to do and what came of it."""

from __future__ import annotations

import json
import multiprocessing as mp
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import frazil
from concurrency.histories.model import Layout
from concurrency.histories.records import Record
from concurrency.histories.replay import Verdict, replay
from concurrency.histories.sessions import Session, create_table, remains

WRITERS = 8


@dataclass(frozen=True)
class Place:
    """A lake in a form that travels to another process."""

    uri: str
    warehouse: str

    def open(self) -> frazil.Lake:
        return frazil.connect(self.uri, warehouse=self.warehouse)


@dataclass(frozen=True)
class History:
    records: list[Record]
    verdict: Verdict
    seconds: float
    """How long the writers took."""

    @property
    def rate(self) -> float:
        """Commits that made a snapshot, in a second."""
        return sum(record.makes_snapshot for record in self.records) / self.seconds


def history(place: Place, layout: Layout, seed: int, sessions: int, logs: Path, *, every: int = 1) -> History:
    """Let the writers run, each so many sessions, then replay what they did."""
    with place.open() as lake:
        create_table(lake, layout)
    context = mp.get_context("spawn")
    barrier = context.Barrier(WRITERS + 1)
    files = [logs / f"writer-{number}.jsonl" for number in range(WRITERS)]
    processes = [
        context.Process(target=_write, args=(place, layout, f"{seed}-{number}", sessions, file, barrier))
        for number, file in enumerate(files)
    ]
    for process in processes:
        process.start()
    barrier.wait(120)
    began = time.monotonic()
    for process in processes:
        process.join()
    seconds = time.monotonic() - began
    broken = [process.exitcode for process in processes if process.exitcode != 0]
    assert not broken, f"{len(broken)} writers ended with the exit codes {broken}; their logs are in {logs}"
    records = read_logs(files)
    with place.open() as lake:
        return History(records, replay(records, remains(lake), layout, every=every), seconds)


def read_logs(files: Iterable[Path]) -> list[Record]:
    """The final record of each session: its outcome, or "unknown" if its writer recorded none."""
    found: dict[str, Record] = {}
    for file in files:
        for line in file.read_text().splitlines():
            record = Record.from_json(json.loads(line))
            found[record.id] = record
    return list(found.values())


def _write(place: Place, layout: Layout, name: str, sessions: int, log: Path, barrier: Any) -> None:
    with place.open() as lake, log.open("a") as lines:
        barrier.wait(120)
        for number in range(sessions):
            session = Session(
                lake,
                layout,
                f"{name}-{number}",
                # One clock for all processes of this machine.
                time.monotonic,
                delays=False,
                about_to_commit=lambda record: _log(lines, record),
            )
            record = session.run()
            _log(lines, record)
            if record.outcome == "crashed":
                return


def _log(lines: TextIO, record: Record) -> None:
    lines.write(json.dumps(record.to_json()) + "\n")
    lines.flush()
