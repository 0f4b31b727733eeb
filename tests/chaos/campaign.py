"""One fault after the other for writers that all append to one table, and a check of the resulting table."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing as mp
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

import frazil
from chaos.faults import EVERYWHERE, KILLS_AND_CUTS, ON_DISKS, ON_POSTGRES, RARE, Fault, Switch
from chaos.proxy import PATTERNS, ProxyProcess
from chaos.writer import write
from concurrency.crew import Crew, Violated, wrong_batches
from concurrency.leaders.campaign import missing_files
from concurrency.leaders.orders import Deed, Desk, Moment, Order
from concurrency.leaders.writer import Note, commit_id_of
from concurrency.writers import SCHEMA, Address
from servers import PostgresServer

WRITERS = 5
_LOOK_S = 0.01
_PATIENCE_S = 120.0
_MOMENT_S = 5.0
"""How long an order waits for a writer that reaches its moment."""
_PROGRESS = 3
"""So many batches are acknowledged after each fault."""
_HELD_S = 10.0
_RARE_EVERY = 25
_OFTEN = 3


@dataclass(frozen=True)
class Plan:
    database: str
    """sqlite or postgres"""
    folder: Path
    """New; everything is kept there."""
    faults: int
    seed: int


@dataclass
class Report:
    """What a campaign saw. Several add up."""

    faults: Counter[Fault] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """The outcomes of batches, as their writers got them."""
    held_up: int = 0
    """How often all other writers had to wait for one that was frozen inside its transaction (SQLite)."""
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Report) -> None:
        self.faults += other.faults
        self.outcomes += other.outcomes
        self.held_up += other.held_up
        self.violations += other.violations
        self.seconds += other.seconds

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {what}" for what, count in sorted(self.outcomes.items()))
        hard = sum(self.faults[fault] for fault in KILLS_AND_CUTS)
        lines = [f"{self.faults.total()} faults ({hard} kills and cuts) in {self.seconds:.0f} s; batches: {outcomes}"]
        lines += [f"  {fault:34} {self.faults[fault]:6}" for fault in Fault if self.faults[fault]]
        if self.held_up:
            lines.append(f"  {self.held_up} times all writers had to wait for a frozen one with SQLite's lock")
        lines += [f"VIOLATION {each}" for each in self.violations]
        return "\n".join(lines or ["nothing happened"])


def run_apart(plan: Plan) -> Report:
    """In a fresh process: writers are forked, and must not inherit what this process has open."""
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
        return pool.submit(_run, plan).result()


def _run(plan: Plan) -> Report:
    with contextlib.ExitStack() as stack:
        server = proxy = None
        direct = through = f"sqlite:///{plan.folder}/catalog.db"
        if plan.database == "postgres":
            server = stack.enter_context(contextlib.closing(PostgresServer()))
            direct = server.create_database("chaos")
            proxy = stack.enter_context(contextlib.closing(ProxyProcess(server.port, direct)))
            through = server.uri(urlsplit(direct).path[1:], port=proxy.port)
        campaign = Campaign(plan, direct, through, server, proxy)
        stack.callback(campaign._crew.end_all)
        return campaign.run()


class Campaign:
    def __init__(
        self, plan: Plan, direct: str, through: str, server: PostgresServer | None, proxy: ProxyProcess | None
    ) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._warehouse = f"file://{plan.folder}/warehouse"
        self._direct, self._through = direct, through
        self._server, self._proxy = server, proxy
        self._desk = Desk(plan.folder)
        self._switches = [Switch(plan.folder / f"disk-{writer}") for writer in range(WRITERS)]
        self._crew = Crew(mp.get_context("fork"), plan.folder, WRITERS, self._take, _LOOK_S, _PATIENCE_S)
        self._open: dict[int, int] = {}
        """Batches that writers began and whose outcome they did not get."""
        self._by_outcome: dict[str, set[tuple[int, int]]] = {"acknowledged": set(), "refused": set(), "unknown": set()}
        self._lost: set[tuple[int, int]] = set()
        """Batches whose writers died."""
        self._acks = 0
        self._orders = 0
        self._report = Report()

    def run(self) -> Report:
        began = time.monotonic()
        self._crew.run_once(_create, self._direct, self._warehouse)
        for writer in range(WRITERS):
            self._start(writer, 0)
        try:
            self._progress(WRITERS, "the writers begin")
            for fault in self._faults():
                if self._happens(fault):
                    self._report.faults[fault] += 1
                self._progress(_PROGRESS, f"the writers go on after: {fault}")
            self._crew.finish(self._desk)
            self._report.violations += self._judged()
        except Violated as violated:
            self._report.violations.append(str(violated))
        for what, batches in self._by_outcome.items():
            self._report.outcomes[what] = len(batches)
        self._report.outcomes["lost with their writers"] = len(self._lost)
        self._report.seconds = time.monotonic() - began
        return self._report

    def _faults(self) -> Iterator[Fault]:
        """Kills and cuts more often than the rest, in random order; every so-many-th is one of the rare ones."""
        kinds = EVERYWHERE if self._server is None else ON_POSTGRES
        usual = [fault for fault in kinds for _ in range(_OFTEN if fault in KILLS_AND_CUTS else 1)]
        found = [usual[number % len(usual)] for number in range(self._plan.faults)]
        self._chance.shuffle(found)
        for number, fault in enumerate(found, 1):
            rare = self._server is not None and number % _RARE_EVERY == 0
            yield self._chance.choice(RARE) if rare else fault

    # Faults

    def _happens(self, fault: Fault) -> bool:
        """False: the fault did not strike, because no writer reached its moment."""
        match fault:
            case Fault.KILL:
                time.sleep(self._chance.random() * 0.05)
                return self._killed(self._chance.randrange(WRITERS))
            case Fault.FREEZE:
                return self._frozen(self._chance.randrange(WRITERS))
            case Fault.KILL_AT | Fault.FREEZE_AT:
                return self._at_a_moment(Deed.DIE if fault is Fault.KILL_AT else Deed.FREEZE)
            case Fault.REPEAT:
                return self._at_a_moment(Deed.REPEAT, Moment.SWAPPED)
            case Fault.FULL | Fault.READ_ONLY | Fault.SLOW:
                return self._on_a_disk(fault)
            case Fault.CUT_BEFORE | Fault.CUT_AFTER:
                order = self._chance.choice(PATTERNS), "before" if fault is Fault.CUT_BEFORE else "after"
                return self._by_proxy("cut", order, "cuts")
            case Fault.COPY:
                return self._by_proxy("repeat", None, "copies")
            case _:
                return self._to_the_database(fault)

    def _killed(self, writer: int) -> bool:
        self._crew.processes[writer].kill()
        self._crew.processes[writer].join()
        self._start_again(writer)
        return True

    def _frozen(self, writer: int) -> bool:
        process = self._crew.processes[writer]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        try:
            self._progress(_PROGRESS, f"other writers continue while writer {writer} is frozen", self.are_held_up())
        finally:
            os.kill(process.pid, signal.SIGCONT)
        return True

    def are_held_up(self) -> Callable[[], bool]:
        """Whether, on SQLite, a writer that was frozen inside its transaction holds the database's lock."""
        free_at = time.monotonic()

        def look() -> bool:
            nonlocal free_at
            if self._server is not None or time.monotonic() - free_at < _HELD_S / 2:
                return False
            with contextlib.closing(sqlite3.connect(self._plan.folder / "catalog.db", timeout=0)) as probe:
                try:
                    probe.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    is_held = time.monotonic() - free_at > _HELD_S
                    self._report.held_up += is_held
                    return is_held
            free_at = time.monotonic()
            return False

        return look

    def _at_a_moment(self, deed: Deed, moment: Moment | None = None) -> bool:
        self._orders += 1
        order = Order(self._orders, moment or self._chance.choice(list(Moment)), deed)
        self._desk.give(order)
        end = time.monotonic() + _MOMENT_S
        while (obeyed := self._obeyed(order)) is None and time.monotonic() < end:
            time.sleep(_LOOK_S)
        self._desk.clear()
        if obeyed is None:
            return self._let_off(order)
        if deed is Deed.REPEAT:
            return True
        if deed is Deed.DIE:
            self._crew.processes[obeyed.writer].join()
            self._start_again(obeyed.writer)
            return True
        process = self._crew.processes[obeyed.writer]
        assert process.pid is not None
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        if order.moment is not Moment.INSIDE:
            # A writer that is frozen inside the database's transaction blocks all others.
            return self._frozen(obeyed.writer)
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGCONT)
        return True

    def _let_off(self, order: Order) -> bool:
        """No writer came in time: the order is withdrawn, unless a writer takes it concurrently."""
        taken = self._plan.folder / f"taken-{order.number}"
        with contextlib.suppress(FileExistsError):
            os.close(os.open(taken, os.O_CREAT | os.O_EXCL))
            return False
        obeyed = self._crew.until(lambda: self._obeyed(order), "an order that was taken is obeyed")
        if order.deed is Deed.DIE:
            self._crew.processes[obeyed.writer].join()
            self._start_again(obeyed.writer)
        elif order.deed is Deed.FREEZE:
            process = self._crew.processes[obeyed.writer]
            assert process.pid is not None
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            os.kill(process.pid, signal.SIGCONT)
        return True

    def _obeyed(self, order: Order) -> Note | None:
        self._crew.read_notes()
        return self._crew.obeyed(order)

    def _on_a_disk(self, fault: Fault) -> bool:
        hit = self._chance.sample(range(WRITERS), self._chance.choice((1, WRITERS - 1)))
        for writer in hit:
            self._switches[writer].set(ON_DISKS[fault])
        try:
            self._progress(_PROGRESS, f"other writers continue: {fault}")
        finally:
            for writer in hit:
                self._switches[writer].set("")
        return True

    def _by_proxy(self, what: str, value: object, counter: str) -> bool:
        """Order something that is done to the next message of its kind, and see whether one came."""
        assert self._proxy is not None
        before = self._proxy.ask(counter)
        self._proxy.ask(what, value)
        end = time.monotonic() + _MOMENT_S
        while self._proxy.ask(counter) == before and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return bool(self._proxy.ask(counter) > before)

    def _to_the_database(self, fault: Fault) -> bool:
        assert self._proxy is not None
        assert self._server is not None
        match fault:
            case Fault.CUT_ALL:
                return bool(self._proxy.ask("all"))
            case Fault.DELAY:
                self._proxy.ask("delay", 0.2)
                try:
                    self._progress(_PROGRESS, "the writers go on over a slow network")
                finally:
                    self._proxy.ask("delay", 0.0)
            case Fault.TERMINATE:
                with psycopg.connect(self._direct, autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                        "AND datname = current_database() AND random() < 0.5"
                    )
            case _:
                self._server.stop("fast" if fault is Fault.RESTART else "immediate")
                self._server.start()
        return True

    # Writers

    def _start(self, writer: int, first: int) -> None:
        address = Address(self._through, "ns.t", self._warehouse)
        arguments = (address, writer, first, self._desk, self._crew.path(writer), self._switches[writer])
        self._crew.start(writer, write, *arguments)

    def _start_again(self, writer: int) -> None:
        """The next life sends the same batch again where its commit id makes that safe."""
        self._crew.read_notes()
        last = max(
            (note.batch for note in self._crew.notes if note.writer == writer and note.kind == "began"), default=0
        )
        is_nameless = commit_id_of(writer, last) is None
        if self._open.pop(writer, None) is not None and is_nameless:
            self._lost.add((writer, last))
        is_done = is_nameless or (writer, last) in self._by_outcome["acknowledged"]
        self._start(writer, last + 1 if is_done else last)

    # Notes

    def _take(self, note: Note) -> None:
        if note.kind == "began":
            self._open[note.writer] = note.batch
        elif note.kind in self._by_outcome:
            self._open.pop(note.writer, None)
            self._by_outcome[note.kind].add((note.writer, note.batch))
            self._acks += note.kind == "acknowledged"

    def _progress(self, how_many: int, what: str, excuse: Callable[[], bool] = lambda: False) -> None:
        self._crew.read_notes()
        wanted = self._acks + how_many
        self._crew.until(lambda: self._acks >= wanted or excuse(), what)

    # Checks

    def _judged(self) -> Iterator[str]:
        acknowledged = self._by_outcome["acknowledged"]
        nameless = {each for each in self._by_outcome["refused"] if commit_id_of(*each) is None}
        doubtful = self._lost | self._by_outcome["unknown"]
        with frazil.connect(self._direct, warehouse=self._warehouse, create=False) as lake:
            table = lake.table("ns.t")
            if missing := missing_files(table):
                yield f"{len(missing)} files that the table names are gone: {sorted(missing)[:5]}"
                return
            yield from wrong_batches(table, acknowledged, doubtful, nameless)


def _create(uri: str, warehouse: str) -> None:
    logging.getLogger("frazil").setLevel(logging.ERROR)
    with frazil.connect(uri, warehouse=warehouse) as lake:
        lake.create_namespace("ns")
        lake.create_table("ns.t", SCHEMA)
