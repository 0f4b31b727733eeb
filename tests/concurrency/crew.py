"""Writer processes of a campaign, their notes, and a check of their batches."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from multiprocessing.context import ForkContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import frazil
from concurrency.leaders.orders import Desk, Order
from concurrency.leaders.writer import Note
from concurrency.writers import batches_in

Batches = Set[tuple[int, int]]
T = TypeVar("T")


class Violated(Exception):
    """Something that must not happen, and after which a campaign cannot go on."""


class Crew:
    """``take`` is handed each note once; waits look every ``look_s`` and fail after ``patience_s``."""

    def __init__(
        self,
        fork: ForkContext,
        folder: Path,
        writers: int,
        take: Callable[[Note], None],
        look_s: float,
        patience_s: float,
    ) -> None:
        self._fork = fork
        self._folder = folder
        self._take = take
        self._look_s, self._patience_s = look_s, patience_s
        self._read = [0] * writers
        self.processes: dict[int, BaseProcess] = {}
        self.notes: list[Note] = []

    def path(self, writer: int) -> Path:
        return self._folder / f"notes-{writer}.jsonl"

    def start(self, writer: int, target: Callable[..., None], *arguments: object) -> None:
        self.processes[writer] = self._fork.Process(target=target, args=arguments)
        self.processes[writer].start()

    def run_once(self, target: Callable[..., None], *arguments: object) -> None:
        """In a process like the writers': this one opens nothing before they are gone."""
        process = self._fork.Process(target=target, args=arguments)
        process.start()
        process.join()

    def finish(self, desk: Desk) -> None:
        desk.finish()
        self.until(lambda: all(not each.is_alive() for each in self.processes.values()), "every writer ends")
        # What they noted between the last look and their end.
        self.read_notes()
        codes = [each.exitcode for each in self.processes.values()]
        if any(codes):
            raise Violated(f"writers ended with the exit codes {codes}")

    def end_all(self) -> None:
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join()

    def read_notes(self) -> None:
        for writer, before in enumerate(self._read):
            if not self.path(writer).exists():
                continue
            with self.path(writer).open("rb") as file:
                file.seek(before)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[writer] += len(whole)
            for line in whole.splitlines():
                note = Note(**json.loads(line))
                self.notes.append(note)
                if note.kind == "failed":
                    raise Violated(f"writer {note.writer} failed by itself at its batch {note.batch}\n{note.text}")
                self._take(note)

    def obeyed(self, order: Order) -> Note | None:
        return next((note for note in reversed(self.notes) if note.order == order.number), None)

    def until(self, look: Callable[[], T | None], what: str) -> T:
        end = time.monotonic() + self._patience_s
        while True:
            self.read_notes()
            found = look()
            if found:
                return found
            if time.monotonic() > end:
                raise Violated(f"waited {self._patience_s:.0f} s in vain until {what}")
            time.sleep(self._look_s)


def wrong_batches(
    table: frazil.Table, acknowledged: Batches, doubtful: Batches, refused: Batches = frozenset()
) -> Iterator[str]:
    """Batches that are missing, duplicated, or unacknowledged, as two readers see them."""
    for reader, rows in (("Frazil", table.scan()), ("PyIceberg", table.pyiceberg().scan())):
        found = Counter(batches_in(rows.to_arrow()))
        if lost := acknowledged - found.keys():
            yield f"as {reader} reads it, {len(lost)} acknowledged batches are missing: {sorted(lost)[:5]}"
        if twice := [each for each, times in found.items() if times > 1]:
            yield f"as {reader} reads it, {len(twice)} batches are there more than once: {sorted(twice)[:5]}"
        if there := found.keys() & refused:
            yield f"as {reader} reads it, {len(there)} refused batches are there: {sorted(there)[:5]}"
        if foreign := found.keys() - acknowledged - doubtful:
            yield f"as {reader} reads it, these were not acknowledged: {sorted(foreign)[:5]}"
