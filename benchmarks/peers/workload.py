"""Clients at the registers of one system, what each of them noted, and the history that it makes."""

from __future__ import annotations

import json
import logging
import multiprocessing
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from frazil.verify.checker import Outcome, Read, Transaction, Version, Write
from frazil.verify.checker.history import History
from peers.registers import TABLE, Place, Registers, Values, system_of

WRITES = 0.85
"""The share of transactions that put a value; the others read the whole table."""
TURNOVER = 2
"""After so many values that a client has put, the oldest of its keys is left alone and a new one is taken."""
PER_CLIENT = 1_000_000
"""Values are the client's number times this, plus the number of the transaction."""
OPEN_S = 300.0
FINISH_S = 300.0


@dataclass(frozen=True, slots=True)
class Workload:
    clients: int = 4
    seconds: float = 60.0
    keys: int = 8
    """How many a client chooses from at any time. None of them is there before somebody puts it there."""
    seed: int = 7
    most: int = 150
    """Transactions of one client at most: each version is read back at the end."""


@dataclass(frozen=True, slots=True)
class Note:
    """One transaction as its client saw it."""

    id: str
    client: int
    began: float
    ended: float
    outcome: str
    key: int | None = None
    """None: it read the whole table."""
    value: int = 0
    seen: Sequence[int] | None = None
    """What was read in the key; None: the statement that wrote has read."""
    rows: Sequence[Sequence[int]] = ()
    """Keys and values, of a read of the whole table."""
    problem: str | None = None


class Attempt:
    """One transaction in two steps, so that others can come between them."""

    def __init__(self, system: Registers, client: int, number: int, key: int, value: int) -> None:
        self._system = system
        self._name, self._client, self._key, self._value = f"{client}-{number}", client, key, value
        self._steps = system.steps(key, value)
        self._began = 0.0
        self._seen: Values | None = None
        self._problem: Exception | None = None

    def read(self) -> None:
        self._began = time.monotonic()
        try:
            self._seen = next(self._steps)
        except Exception as problem:
            self._problem = problem

    def commit(self) -> Note:
        if self._problem is not None:
            # It only wanted to read.
            return self._note(Outcome.FAILED, self._problem)
        try:
            next(self._steps, None)
        except Exception as problem:
            return self._note(Outcome.FAILED if self._system.refused(problem) else Outcome.UNKNOWN, problem)
        return self._note(Outcome.OK)

    def _note(self, outcome: Outcome, problem: Exception | None = None) -> Note:
        return Note(
            id=self._name,
            client=self._client,
            began=self._began,
            ended=time.monotonic(),
            outcome=outcome.value,
            key=self._key,
            value=self._value,
            seen=self._seen,
            problem=None if problem is None else in_short(problem),
        )


def in_short(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"[:300]


def read_whole(system: Registers, client: int, number: int) -> Note:
    name, began = f"{client}-{number}", time.monotonic()
    try:
        rows = system.rows()
    except Exception as problem:
        words = in_short(problem)
        return Note(name, client, began, time.monotonic(), Outcome.FAILED.value, problem=words)
    return Note(name, client, began, time.monotonic(), Outcome.OK.value, rows=rows)


# Many clients


class _Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...


def play(place: Place, workload: Workload) -> list[Note]:
    """Let all clients of a system at a table that is there. Raises RuntimeError if one of them dies."""
    folder = Path(place.folder) / "notes"
    folder.mkdir()
    if system_of(place).clients_are_threads:
        _in_threads(place, workload, folder)
    else:
        _in_processes(place, workload, folder)
    lines = [line for note in sorted(folder.iterdir()) for line in note.read_text().splitlines()]
    return [Note(**json.loads(line)) for line in lines]


def _in_processes(place: Place, workload: Workload, folder: Path) -> None:
    # Fresh ones: runtimes and connections do not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(workload.clients)
    numbers = range(1, workload.clients + 1)
    clients = [spawn.Process(target=_client, args=(place, workload, each, barrier, folder)) for each in numbers]
    for client in clients:
        client.start()
    for client in clients:
        client.join(OPEN_S + workload.seconds + FINISH_S)
        if client.is_alive():
            client.kill()
            client.join()
    if any(client.exitcode for client in clients):
        raise RuntimeError(f"clients of {place.system} ended with {[client.exitcode for client in clients]}")


def _in_threads(place: Place, workload: Workload, folder: Path) -> None:
    barrier, problems = threading.Barrier(workload.clients), []

    def run(number: int) -> None:
        try:
            _client(place, workload, number, barrier, folder)
        except Exception as problem:
            problems.append(problem)

    clients = [threading.Thread(target=run, args=(each,)) for each in range(1, workload.clients + 1)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if problems:
        raise RuntimeError(f"clients of {place.system} died") from problems[0]


def _client(place: Place, workload: Workload, number: int, barrier: _Barrier, folder: Path) -> None:
    # Lost races are what this is about.
    logging.disable(logging.CRITICAL)
    chance = random.Random(f"{workload.seed} {number}")
    system = system_of(place)
    with open(folder / str(number), "w", buffering=1) as notes:
        try:
            system.open()
        finally:
            # Also without a table: the others shall not wait for this one.
            barrier.wait(OPEN_S)
        deadline, put = time.monotonic() + workload.seconds, 0
        for count in range(workload.most):
            if time.monotonic() >= deadline:
                break
            if chance.random() >= WRITES:
                note = read_whole(system, number, count)
            else:
                key = put // TURNOVER + chance.randrange(workload.keys)
                attempt = Attempt(system, number, count, key, number * PER_CLIENT + count)
                attempt.read()
                note = attempt.commit()
                put += 1
            print(json.dumps(asdict(note)), file=notes)
    if not system.clients_are_threads:
        system.close()


# The history


def history_of(system: Registers, notes: Iterable[Note]) -> tuple[History, int]:
    """What the clients noted and what the system's own history says; and how many keys ever had two rows."""
    noted = sorted(notes, key=lambda note: note.began)
    # An update writes its value to every row that it finds of the key.
    copies = {note.value: len(note.seen) for note in noted if note.seen}
    previous: dict[tuple[int, int], Values] = {}
    versions: list[Version] = []
    state: dict[int, Values] = {}
    twins: set[int] = set()
    for version, rows in system.versions():
        brought: dict[tuple[int, int], list[int]] = defaultdict(list)
        for key, value, prev in rows:
            brought[key, value] += [] if prev is None else [prev]
        # The first version that holds a value is its writer's.
        previous = {**{name: tuple(sorted(found)) for name, found in brought.items()}, **previous}
        now = grouped([(key, value) for key, value, _ in rows], copies)
        twins.update(key for key, many in Counter(key for key, *_ in rows).items() if many > 1)
        changed = changes(state, now)
        if changed:
            parent = versions[-1].id if versions else None
            versions.append(Version(TABLE, version, parent=parent, rows=changed))
        state = now
    transactions = tuple(_transaction(system, note, previous, copies) for note in noted)
    return History(transactions, tuple(versions)), len(twins)


def changes(before: Mapping[int, Values], after: Mapping[int, Values]) -> dict[Any, Any]:
    """The keys whose values differ, with those after it."""
    return {key: after.get(key, ()) for key in {**before, **after} if before.get(key) != after.get(key)}


def grouped(rows: Iterable[Sequence[int]], copies: Mapping[int, int]) -> dict[int, Values]:
    """By key its values, sorted; rows that one write was right to write count once."""
    found: dict[int, Counter[int]] = defaultdict(Counter)
    for key, value in rows:
        found[key][value] += 1
    return {
        key: tuple(
            value for value, times in sorted(values.items()) for _ in range(max(1, times - copies.get(value, 1) + 1))
        )
        for key, values in found.items()
    }


def _transaction(
    system: Registers, note: Note, previous: Mapping[tuple[int, int], Values], copies: Mapping[int, int]
) -> Transaction:
    ops: list[Read | Write] = []
    if note.key is None:
        if note.outcome == Outcome.OK.value:
            seen: dict[Any, Any] = dict(grouped(note.rows, copies))
            ops.append(Read(TABLE, seen=seen, whole=True))
    else:
        values = previous.get((note.key, note.value)) if note.seen is None else note.seen
        if values is not None and (values or system.is_keyed):
            unique = tuple(grouped([(note.key, value) for value in values], copies).get(note.key, ()))
            ops.append(Read(TABLE, seen={note.key: unique} if unique else {}, keys=(note.key,)))
        ops.append(Write(TABLE, "put" if values else system.insert, note.key, note.value))
    return Transaction(
        id=note.id,
        process=str(note.client),
        ops=tuple(ops),
        outcome=Outcome(note.outcome),
        began=note.began,
        # Without an answer it may have landed at any later time.
        ended=None if note.outcome == Outcome.UNKNOWN.value else note.ended,
    )
