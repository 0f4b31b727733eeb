"""The simulated database: a real SQLite in memory with the virtual clock, behind a faulty network.

A transaction is atomic and takes no virtual time. Transactions that are not durable yet are inside one outer
transaction, which a power loss rolls back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from frazil.catalog._db import Db, DuplicateRow, LostRace, OutcomeUnknown, SqlNotifier
from frazil.catalog._queue import QUEUE
from frazil.catalog._sql import TABLES
from frazil.catalog._sql_records import PINS
from frazil.catalog.base import RESERVATION, QueueState
from frazil.errors import CatalogUnavailable
from frazil.runtime import RandomStream
from frazil_verification.simulator.faults import Fault, Point
from frazil_verification.simulator.process import BEGINNING_MS, Process
from frazil_verification.simulator.schedule import Task

if TYPE_CHECKING:
    from frazil_verification.simulator.world import World

T = TypeVar("T")

_AWAY_S = (0.05, 0.3, 3.0, 15.0, 40.0)
_TIMEOUTS_S = (0.0, 0.05, 0.5, 5.0)
_LATE_S = (0.01, 0.2, 1.0, 3.0, 20.0, 90.0)
_PATIENCE = 200
"""Refused tries for the commit lock while no table moves."""
_TURN = "\x1fturn"
_TURN_PATIENCE = 1000
"""The same for the turn of functions, which try for it more and more often."""
_STEPS_MS = (-30_000, -2_000, -50, 50, 5_000, 120_000)


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a table's pointer."""

    event: int
    at: float
    by: str
    """The process whose transaction it was."""
    table: str
    location: str
    pins: frozenset[int]
    """The snapshots that were pinned at that time."""
    swap: int
    """The number of the transaction; all the moves of a swap have the same."""


class Database:
    """The database, shared by all processes."""

    def __init__(self, world: World, chance: RandomStream) -> None:
        self._world = world
        self._chance = chance
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.execute("BEGIN")
        self._step_ms = 0
        self._away_until = 0.0
        self._is_set_up = False
        self._locks: dict[str, Process] = {}
        self._refused: dict[tuple[str, str], tuple[int, int]] = {}
        """Process and lock → (number of moves, how often it was refused the lock since)."""
        self._committed: set[str] = set()
        """The tickets of committed queue entries."""
        self._pointers: dict[str, str] = {}
        self._swaps = 0
        self.moves: list[Move] = []
        self.sleepers: dict[tuple[str, str], Task] = {}

    @property
    def now_ms(self) -> int:
        return BEGINNING_MS + self._step_ms + int(self._world.schedule.now * 1000)

    @property
    def is_away(self) -> bool:
        return self._world.schedule.now < self._away_until

    def read(self, work: Callable[[Db], T]) -> T:
        return work(self._db)

    def write(self, work: Callable[[Db], T], keep: Callable[[T], bool] | None, process: str, *, durable: bool) -> T:
        """One transaction. Raises DuplicateRow."""
        db = self._db
        db.execute("SAVEPOINT one")
        try:
            result = work(db)
        except BaseException as error:
            db.execute("ROLLBACK TO one")
            db.execute("RELEASE one")
            if isinstance(error, sqlite3.IntegrityError):
                raise DuplicateRow from error
            raise
        if keep is not None and not keep(result):
            db.execute("ROLLBACK TO one")
            db.execute("RELEASE one")
            return result
        db.execute("RELEASE one")
        self._record_moves(process)
        if durable:
            db.execute("COMMIT")
            db.execute("BEGIN")
        return result

    def _record_moves(self, process: str) -> None:
        if not self._is_set_up:
            found = self._db.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (TABLES,)).fetchone()
            self._is_set_up = bool(found[0])
            return
        self._swaps += 1
        for name, location in self._db.execute(f"SELECT table_name, metadata_location FROM {TABLES}"):  # noqa: S608
            if self._pointers.get(name) != location:
                self._pointers[name] = location
                event = self._world.journal.note(process, f"moved {name} to {location.rsplit('/', 1)[-1]}")
                self._moved(event, process, name, location)
                self._check_tickets(process)

    def _moved(self, event: int, process: str, name: str, location: str) -> None:
        self.moves.append(Move(event, self._world.schedule.now, process, name, location, self._pins(), self._swaps))

    def _pins(self) -> frozenset[int]:
        sql = f"SELECT snapshot_id FROM {PINS} WHERE deadline > ?"  # noqa: S608
        return frozenset(row[0] for row in self._db.execute(sql, (self.now_ms,)))

    def _check_tickets(self, process: str) -> None:
        """No leader commits a queue entry that has expired (rule P3)."""
        sql = f"SELECT ticket, deadline FROM {QUEUE} WHERE state = {int(QueueState.COMMITTED)}"  # noqa: S608
        for ticket, deadline in self._db.execute(sql):
            if ticket not in self._committed and deadline <= self.now_ms:
                self._world.records.problems.append(f"{process} committed the ticket {ticket}, which had expired")
            self._committed.add(ticket)

    def most_yields(self) -> int:
        """How often the commit lock was left to a writer that had reserved it."""
        sql = f"SELECT coalesce(max(tries), 0) FROM {QUEUE} WHERE version = {RESERVATION}"  # noqa: S608
        (found,) = self._db.execute(sql).fetchone()
        return int(found)

    # Commit locks

    def try_commit_lock(self, process: Process, key: str) -> Callable[[], None] | None:
        if key in self._locks:
            self._refuse(process, key)
            return None
        self._locks[key] = process
        process.locks.add(key)
        return lambda: self.release(process, [key])

    def _refuse(self, process: Process, key: str) -> None:
        """A writer that cannot take the commit lock goes ahead without it, once nothing has moved for a while."""
        before, times = self._refused.get((process.name, key), (-1, 0))
        times = times + 1 if before == len(self.moves) else 1
        self._refused[process.name, key] = len(self.moves), times
        if times == (_TURN_PATIENCE if key.endswith(_TURN) else _PATIENCE):
            self._world.records.problems.append(f"{process.name} was refused the commit lock {times} times in a row")

    def release(self, process: Process, keys: Sequence[str]) -> None:
        for key in keys:
            if self._locks.get(key) is process:
                del self._locks[key]
            process.locks.discard(key)

    # Faults

    def restart(self) -> None:
        """The database is away for a while and loses sessions and locks, but no committed data."""
        self._away_until = self._world.schedule.now + self._chance.choice((0.05, 0.5, 4.0))
        for key, process in sorted(self._locks.items(), key=lambda each: each[0]):
            self.release(process, [key])

    def lose_power(self) -> None:
        """Transactions that were not durable are lost. All processes are already dead."""
        self._db.execute("ROLLBACK")
        self._db.execute("BEGIN")
        self._locks.clear()
        self.sleepers.clear()
        self._swaps += 1
        rows = self._db.execute(f"SELECT table_name, metadata_location FROM {TABLES}").fetchall()  # noqa: S608
        for name, location in rows:
            if self._pointers.get(name) != location:
                self._pointers[name] = location
                event = self._world.journal.note("power loss", f"took {name} back to {location.rsplit('/', 1)[-1]}")
                self._moved(event, "power loss", name, location)

    def step_clock(self) -> None:
        self._step_ms += self._chance.choice(_STEPS_MS)

    def close(self) -> None:
        self._db.close()


class SimulatedEngine:
    """One process's connection to the database: the ``SqlEngine`` of the SQL catalogs."""

    bytes_type = "BLOB"
    row_number_type = "INTEGER PRIMARY KEY AUTOINCREMENT"
    bytes_value = "?"
    no_bytes = "x''"
    on_standby = "0"
    key_share = ""
    share = ""
    inserts_in_with = False

    def __init__(self, process: Process) -> None:
        self._process = process
        self._database = process.world.database
        self._trip_s = process.world.database_s
        self.clock: Callable[[], str] = lambda: str(self._database.now_ms)

    def stamp_lock(self, key: int) -> str:  # noqa: ARG002 - one transaction at a time
        return ""

    def stamping(self, key: int) -> frozenset[str]:  # noqa: ARG002
        return frozenset()

    def read(self, work: Callable[[Db], T]) -> T:
        process = self._process
        process.take(self._trip_s)
        if process.strikes(Point.READ) is not None:
            process.struck(Fault.LOST_REQUEST, "of a read")
            raise self._unreachable()
        self._check_there()
        return self._database.read(work)

    def write(self, work: Callable[[Db], T], keep: Callable[[T], bool] | None = None, *, durable: bool = True) -> T:
        process = self._process
        process.take(self._trip_s)
        self._check_there()
        fault = process.strikes(Point.WRITE)
        apply: Callable[[], T] = partial(self._database.write, work, keep, process.name, durable=durable)
        if fault is None:
            return apply()
        process.struck(fault)
        if fault is Fault.LOST_REQUEST:
            raise self._unreachable()
        if fault is Fault.SERIALIZATION:
            raise LostRace
        if fault is Fault.CUT_OFF:
            self._cut_off(apply)
            raise OutcomeUnknown("The network is gone")
        if fault is Fault.DELAY:
            self._later(apply, "arrives late")
            self._wait_in_vain()
            raise OutcomeUnknown("The connection broke before an answer came")
        result = apply()
        if fault is Fault.DUPLICATE:
            self._later(apply, "arrives again")
            return result
        self._wait_in_vain()
        raise OutcomeUnknown("The connection broke after the request was sent")

    def _wait_in_vain(self) -> None:
        """A lost answer is noticed only after a timeout."""
        self._process.sleep(self._process.chance.choice(_TIMEOUTS_S))

    def _cut_off(self, apply: Callable[[], object]) -> None:
        """The transaction is committed, is still in flight, or is lost."""
        process, chance = self._process, self._process.chance
        process.cut_off_until = process.world.schedule.now + chance.choice(_AWAY_S)
        drawn = chance.random()
        if drawn < 0.35:
            apply()
        elif drawn < 0.75:
            self._later(apply, "arrives late")

    def _later(self, apply: Callable[[], object], what: str) -> None:
        process, chance, losses = self._process, self._process.chance, self._process.world.power_losses
        process.world.records.late.add(process.name)

        def arrive() -> None:
            if process.world.power_losses != losses:
                # It was lost with the power.
                return
            process.note(f"a transaction {what}")
            try:
                apply()
            except Exception as error:  # noqa: BLE001 - the answer is not awaited
                process.note(f"and is refused: {type(error).__name__}")

        process.world.schedule.call(arrive, chance.choice(_LATE_S) * (0.5 + chance.random()))

    def write_one(self, sql: str, parameters: Sequence[Any]) -> int:
        return self.write(lambda db: db.execute(sql, parameters).rowcount, durable=False)

    def write_value(self, sql: str, parameters: Sequence[Any]) -> Any:
        row = self.write(lambda db: db.execute(sql, parameters).fetchone(), durable=False)
        return None if row is None else row[0]

    def try_commit_lock(self, key: str) -> Callable[[], None] | None:
        self._process.take(self._trip_s)
        self._check_there()
        return self._database.try_commit_lock(self._process, key)

    def notifier(self) -> SqlNotifier:
        return SimulatedNotifier(self._process)

    def may_change(self, table: str) -> bool:  # noqa: ARG002 - every writer may
        return True

    def wipe(self, tables: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002 - nothing is on disk
        return ()

    def columns(self, db: Db, table: str) -> frozenset[str]:
        return frozenset(row[1] for row in db.execute(f"PRAGMA table_info({table})").fetchall())

    def close(self) -> None:
        """The database is closed by its owner."""

    def _check_there(self) -> None:
        process = self._process
        if process.is_faultless:
            return
        if self._database.is_away or process.world.schedule.now < process.cut_off_until:
            raise self._unreachable()

    def _unreachable(self) -> CatalogUnavailable:
        self._process.troubles += 1
        return CatalogUnavailable("The simulated database cannot be reached")


class SimulatedNotifier:
    """Notifies waiting writers in virtual time; some notifications are lost."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sleepers = process.world.database.sleepers

    def address(self) -> str:
        return self._process.name

    def sleep(self, key: str, seconds: float) -> bool:
        task = self._process.world.schedule.current
        if task is not None:
            self._sleepers[self._process.name, key] = task
        was_notified = False
        try:
            self._process.sleep(seconds)
        finally:
            was_notified = self._sleepers.pop((self._process.name, key), None) is None and task is not None
        return was_notified

    def notify(self, to_notify: Sequence[tuple[str, str]]) -> None:
        for each in to_notify:
            if self._process.strikes(Point.NOTIFICATION) is Fault.LOST_NOTIFICATION:
                self._process.struck(Fault.LOST_NOTIFICATION)
            elif each in self._sleepers:
                self._process.world.schedule.wake(self._sleepers.pop(each))

    def notify_at_commit(self, db: Db, to_notify: Sequence[tuple[str, str]], outcomes: Mapping[str, bytes]) -> None:
        """``notify_after_commit`` does it."""

    def pushed_outcome(self, key: str) -> bytes | None:  # noqa: ARG002 - a read finds it, with its faults
        return None

    def notify_after_commit(self, to_notify: Sequence[tuple[str, str]]) -> None:
        self.notify(to_notify)
