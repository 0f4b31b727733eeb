"""One run: a world made from a seed, in which actors work until all steps are done."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from frazil.errors import CatalogUnavailable
from frazil.format.properties import RETENTION, RETENTION_MIN_AGE
from frazil.format.retention import MAX_SNAPSHOT_AGE
from frazil.model import Ident
from frazil.runtime import seeded
from frazil_verification.simulator import bank
from frazil_verification.simulator.actors import ACTORS, Actor, usual
from frazil_verification.simulator.database import Database
from frazil_verification.simulator.faults import Fault, Weather
from frazil_verification.simulator.files import Files
from frazil_verification.simulator.journal import Journal
from frazil_verification.simulator.lake import BANK, TABLE, CatalogKind, SimulatedLake
from frazil_verification.simulator.process import Process
from frazil_verification.simulator.records import JointWrite, Records, Write
from frazil_verification.simulator.schedule import Endless, Killed, Schedule
from frazil_verification.simulator.session import PARTITIONS, Session
from frazil_verification.simulator.steps import OLD_MS, SCHEMA, Step

_CLEANING = 0.06
"""How often an actor empties the table first, so that it stays small and runs stay fast."""
_CROWDS = (2, 3, 4, 5, 6, 6, 8, 12)
_SMALL_CASTS = 0.5
"""How often a run has at most three kinds of actors, which then race often."""
_PROPERTIES: tuple[dict[str, str], ...] = (
    {},
    {"commit.manifest.min-count-to-merge": "3"},
    # Files with several row groups are written in parts, smaller ones as a whole.
    {"write.parquet.row-group-limit": "1"},
)
_RETENTION: tuple[dict[str, str], ...] = (
    {},
    {RETENTION: "true", RETENTION_MIN_AGE: str(OLD_MS), MAX_SNAPSHOT_AGE: "100"},
)
_LAYOUTS = ((), ("p",), ("truncate(4, id)",))
_SKEWS_MS = (0, 0, 40, -700, 30_000, -3_600_000, 86_400_000)


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that decides a run."""

    seed: int
    steps: int = 100
    faults: frozenset[Fault] = frozenset(Fault)
    actors: tuple[str, ...] = usual()
    """The names of the possible actors. The first one takes part in every run."""
    kept: tuple[int, ...] | None = None
    """The numbers of the steps to run; None: all."""
    catalog: CatalogKind = CatalogKind.DATABASE
    salt: int = 0
    """Changes the timing of the same steps."""
    severity: float = 1.0
    """A factor for the rates of faults."""

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        return {**values, "faults": sorted(each.value for each in self.faults)}

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Case:
        kept = raw.get("kept")
        return Case(
            seed=raw["seed"],
            steps=raw["steps"],
            faults=frozenset(map(Fault, raw["faults"])),
            actors=tuple(raw["actors"]),
            kept=None if kept is None else tuple(kept),
            catalog=CatalogKind(raw.get("catalog", CatalogKind.DATABASE)),
            salt=raw.get("salt", 0),
            severity=raw.get("severity", 1.0),
        )


class World:
    """All processes, and everything that they share."""

    def __init__(self, case: Case) -> None:
        self.case = case
        chance = seeded(f"{case.seed}/world")
        self.schedule = Schedule()
        self.journal = Journal(self.schedule)
        self.weather = Weather.drawn(chance, case.faults, case.severity)
        self.database_s: float = chance.choice((0.0003, 0.001, 0.005))
        self.files_s: float = chance.choice((0.0001, 0.0005, 0.004))
        self.database = Database(self, seeded(f"{case.seed}/database"))
        self.files = Files(self, seeded(f"{case.seed}/files"))
        self.records = Records()
        self.thinking_s: float = chance.choice((0.0005, 0.005, 0.03))
        self.staging_s: float = chance.choice((0.0, 0.01, 0.1))
        self.pause_s: float = chance.choice((0.0, 0.002, 0.02))
        self._processes: dict[str, Process] = {}
        self._births = 0
        self.power_losses = 0
        self.frozen_until = 0.0
        self.ledger: list[int] = []
        """Keys of rows that exist or existed."""
        self.streams: dict[str, int] = {}
        """Stream → its next batch."""
        self.outside = Process("outside", self, seeded(f"{case.seed}/outside"), is_faultless=True)
        self.lake = SimulatedLake(self.outside)
        self.lake.create_namespace("sim")
        properties = seeded(f"{case.seed}/properties").choice(_PROPERTIES)
        if "janitor" in case.actors:
            properties = {**properties, **seeded(f"{case.seed}/retention").choice(_RETENTION)}
        layout = chance.choice(_LAYOUTS)
        for ident in self.tables:
            self.lake.create_table(str(ident), SCHEMA, keys=["id"], partition_by=layout, properties=properties)
        if TABLE in self.tables:
            self._fill()
        else:
            bank.fill(self)
        self._steps = deque(range(case.steps) if case.kept is None else case.kept)
        self._cast(chance.choice(_CROWDS))

    @property
    def tables(self) -> tuple[Ident, ...]:
        """Those of the actors' scene."""
        return (TABLE,) if TABLE in ACTORS[self.case.actors[0]].tables else BANK

    def _fill(self) -> None:
        """Some rows to begin with."""
        session = Session("begin", self, self.outside, self.lake, seeded(f"{self.case.seed}/begin"))
        for partition in PARTITIONS:
            session.write(Step("append", rows=session.rows(4, p=partition)))

    def _cast(self, count: int) -> None:
        """The actors. Each step goes to the next free session, so that a stalled one does not leave the others idle."""
        chance = seeded(f"{self.case.seed}/cast")
        known = [ACTORS[each] for each in self.case.actors]
        first, weights = known[0], [each.weight for each in known]
        if chance.random() < _SMALL_CASTS:
            known = [first, *chance.sample(known, min(2, len(known)))]
            weights = [1.0] * len(known)
        others = chance.choices(known, weights, k=count - 1)
        for index, part in enumerate((first, *others)):
            _Player(self, f"{part.name} {index}", part).start(chance.random() * self.pause_s)

    def next_step(self) -> int | None:
        return self._steps.popleft() if self._steps else None

    @property
    def is_over(self) -> bool:
        return not self._steps

    def born(self, name: str) -> Process:
        """A new process."""
        self._births += 1
        chance = seeded(f"{self.case.seed}/{self.case.salt}/{name}/{self._births}")
        process = Process(f"{name}#{self._births}", self, chance)
        if self.weather.has(Fault.SKEW):
            process.skew_ms = chance.choice(_SKEWS_MS)
            if process.skew_ms:
                process.struck(Fault.SKEW, f"{process.skew_ms} ms")
        self._processes[name] = process
        return process

    def freeze(self, seconds: float) -> None:
        """Every process stops; the database and the clock continue."""
        self.frozen_until = self.schedule.now + seconds

    def lose_power(self) -> None:
        """Called by a process that is killed together with the others."""
        self.power_losses += 1
        current = self.schedule.current
        victims = [each for each in self._processes.values() if each.is_alive]
        for process in victims:
            process.is_alive = False
            self.records.deaths[process.name] = self.schedule.now
            process.locks.clear()
            if process.task is not None and process.task is not current:
                # The running task cannot raise in another stack; the scheduler does that next.
                self.schedule.call(lambda process=process: _throw(self.schedule, process), 0.0)  # type: ignore[misc]
        self.database.lose_power()
        self.files.lose_power()
        raise Killed

    def run(self) -> None:
        try:
            self.schedule.run()
        except Endless:
            self.records.problems.append(f"the run does not end: {self.schedule.switches} switches")
        finally:
            self.schedule.end()


def _throw(schedule: Schedule, process: Process) -> None:
    if process.task is not None:
        schedule.kill(process.task)


class _Player:
    """One actor across restarts: after a kill it continues in a new process."""

    def __init__(self, world: World, name: str, part: Actor) -> None:
        self._world = world
        self._name = name
        self._part = part
        self._pending: Write | JointWrite | None = None

    def start(self, after: float) -> None:
        process = self._world.born(self._name)
        process.task = self._world.schedule.spawn(process.name, lambda: self._live(process), after)

    def _live(self, process: Process) -> None:
        with self._watched(process):
            self._live_and_die(process)

    def _live_and_die(self, process: Process) -> None:
        session: Session | None = None
        try:
            session = self._opened(process)
            process.double = partial(self._double, session)
            if self._pending is not None:
                again, self._pending = self._pending, None
                session.resume(again)
            while (number := self._world.next_step()) is not None:
                session.name, session.draw = f"s{number}", seeded(f"{self._world.case.seed}/step/{number}")
                session.calls, session.number = 0, number
                self._choose_table(session)
                if not self._part.is_foreign and session.draw.random() < _CLEANING:
                    session.write(Step("delete", where=self._part.rubbish))
                self._part.act(session)
                process.take(self._world.pause_s)
        except Killed:
            if session is not None:
                self._pending = session.pending
            if self._pending is not None or not self._world.is_over:
                self._world.schedule.call(lambda: self.start(0.0), 0.2 + process.chance.random())

    def _choose_table(self, session: Session) -> None:
        tables = self._part.tables
        session.table = tables[0] if len(tables) == 1 else session.draw.choice(tables)

    def _double(self, session: Session) -> bool:
        """Start another session that repeats the current write of this session."""
        write = session.pending
        if write is None:
            return False
        write.is_doubled = True
        process = self._world.born(f"{self._name}, double of {session.process.name}")
        process.task = self._world.schedule.spawn(
            process.name, lambda: self._resume(process, write), process.chance.random() * session.world.staging_s
        )
        return True

    def _resume(self, process: Process, write: Write | JointWrite) -> None:
        with self._watched(process), contextlib.suppress(Killed):
            self._opened(process).resume(write)

    @contextlib.contextmanager
    def _watched(self, process: Process) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - an error that callers do not expect is a violation
            where = "".join(traceback.format_exception(error)[-3:])
            self._world.records.problems.append(f"{process.name} got an unexpected error: {error!r}\n{where}")

    def _opened(self, process: Process) -> Session:
        while True:
            try:
                lake = SimulatedLake(process, is_foreign=self._part.is_foreign, kind=self._world.case.catalog)
                break
            except CatalogUnavailable:
                process.sleep(0.2)
        return Session(self._name, self._world, process, lake, process.chance, self._part.is_foreign)
