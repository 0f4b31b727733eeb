"""One order a round to writers that all append to one table, and a check of the resulting table."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import frazil
from concurrency.crew import Crew, Violated, wrong_batches
from concurrency.leaders.orders import Deed, Desk, Moment, Order
from concurrency.leaders.writer import Note, commit_id_of, write
from concurrency.writers import SCHEMA, Address
from frazil.commit.queued_writer import place_of
from frazil.model import Ident

WRITERS = 6
_LOOK_S = 0.005
_PATIENCE_S = 60.0
_WARM_UP = 3
"""Batches of each writer before the first order."""
_INSIDE_S = 1.0
"""How long a writer is frozen inside the database's transaction, during which it blocks all others."""
_FROZEN_ACKS = 5
"""How many batches of other writers are acknowledged before a frozen writer continues."""
_FREEZE_EVERY = 5


@dataclass(frozen=True)
class Plan:
    uri: str
    warehouse: str
    folder: Path
    """For orders and notes; new."""
    table: str
    rounds: int
    seed: int

    @property
    def address(self) -> Address:
        return Address(self.uri, self.table, self.warehouse)


@dataclass
class Report:
    """The results of a campaign. Reports can be added up."""

    rounds: Counter[tuple[Moment, Deed]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    batches: int = 0
    groups: Counter[int] = field(default_factory=Counter)
    """Swaps that landed, by their number of commits."""
    late: Counter[str] = field(default_factory=Counter)
    """The outcomes of the swaps of frozen leaders."""
    standstills: dict[Deed, list[float]] = field(default_factory=lambda: {deed: [] for deed in Deed})
    """From each deed to the next swap of another writer that landed."""
    seconds: float = 0.0

    def add(self, other: Report) -> None:
        self.rounds += other.rounds
        self.violations += other.violations
        self.batches += other.batches
        self.groups += other.groups
        self.late += other.late
        for deed, found in other.standstills.items():
            self.standstills[deed] += found
        self.seconds += other.seconds

    @property
    def shared(self) -> int:
        """Swaps that held more than one commit."""
        return sum(count for size, count in self.groups.items() if size > 1)

    def __str__(self) -> str:
        largest = max(self.groups, default=0)
        lines = [
            f"{self.rounds.total()} rounds, {self.batches} batches, {self.seconds:.0f} s",
            f"{self.groups.total()} swaps landed, {self.shared} with a group, the largest of {largest}",
        ]
        for moment in Moment:
            died, froze = (self.rounds[moment, deed] for deed in (Deed.DIE, Deed.FREEZE))
            lines.append(f"  {moment:38} {died:5} died {froze:5} froze")
        late = ", ".join(f"{count} {name}" for name, count in sorted(self.late.items()))
        lines.append(f"late swaps of the frozen: {late or 'none'}")
        for deed, found in self.standstills.items():
            if found:
                ordered = sorted(found)
                lines.append(
                    f"until the next swap of another writer, after {deed}: median {ordered[len(ordered) // 2]:.2f} s, "
                    f"longest {ordered[-1]:.2f} s"
                )
        return "\n".join([*lines, *(f"VIOLATION {each}" for each in self.violations)])


def run_apart(plan: Plan) -> Report:
    """In a fresh process: writers are forked, and must not inherit what this process has open."""
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
        return pool.submit(_run, plan).result()


def _run(plan: Plan) -> Report:
    campaign = _Campaign(plan)
    try:
        return campaign.run()
    finally:
        campaign._crew.end_all()


class _Campaign:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._desk = Desk(plan.folder)
        self._crew = Crew(mp.get_context("fork"), plan.folder, WRITERS, self._take, _LOOK_S, _PATIENCE_S)
        self._acknowledged: list[list[int]] = [[] for _ in range(WRITERS)]
        self._doubtful: set[tuple[int, int]] = set()
        """Batches without a commit id whose writers died: in the table once or not at all."""
        self._report = Report()

    def run(self) -> Report:
        began = time.monotonic()
        self._crew.run_once(_create, self._plan)
        for writer in range(WRITERS):
            self._start(writer)
        try:
            self._crew.until(lambda: min(map(len, self._acknowledged)) >= _WARM_UP, "every writer has begun")
            for order in _orders(self._plan.rounds, self._chance):
                self._round(order)
            self._crew.finish(self._desk)
        except Violated as violated:
            self._report.violations.append(f"{self._plan.table}: {violated}")
        self._crew.end_all()
        batches = {(writer, number) for writer, done in enumerate(self._acknowledged) for number in done}
        self._report.batches = len(batches)
        swaps = [note for note in self._crew.notes if _landed(note)]
        self._report.groups.update(note.group_size for note in swaps)
        if not self._report.violations:
            self._report.violations += [
                f"{self._plan.table}: {each}" for each in _judge(self._plan, batches, self._doubtful)
            ]
        self._report.seconds = time.monotonic() - began
        return self._report

    # Rounds

    def _round(self, order: Order) -> None:
        self._desk.give(order)
        obeyed = self._crew.until(lambda: self._crew.obeyed(order), f"a writer reaches {order.moment!s} ({order.deed})")
        writer, process = obeyed.writer, self._crew.processes[obeyed.writer]
        self._report.rounds[order.moment, order.deed] += 1
        if order.deed is Deed.DIE:
            process.join()
            self._start(writer, self._next_batch(obeyed))
        else:
            assert process.pid is not None
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            self._wait_frozen(order, obeyed)
            os.kill(process.pid, signal.SIGCONT)
            self._check_late_swap(order, obeyed)
        after = self._crew.until(lambda: self._next_swap(obeyed), f"another writer commits after round {order}")
        self._report.standstills[order.deed].append(after.at - obeyed.at)

    def _next_swap(self, obeyed: Note) -> Note | None:
        return next((note for note in self._after(obeyed) if note.writer != obeyed.writer and _landed(note)), None)

    def _after(self, obeyed: Note) -> Iterator[Note]:
        # Files are read one after the other, so the list is in order for each writer only.
        return (note for note in self._crew.notes if note.at > obeyed.at)

    def _wait_frozen(self, order: Order, obeyed: Note) -> None:
        if order.moment is Moment.INSIDE:
            time.sleep(_INSIDE_S)
            return

        def others_continue() -> bool:
            swap = self._next_swap(obeyed)
            acks = [note for note in self._crew.notes if note.kind == "acknowledged" and swap and note.at > swap.at]
            return sum(note.writer != obeyed.writer for note in acks) >= _FROZEN_ACKS

        self._crew.until(
            others_continue, f"other writers continue while writer {obeyed.writer} is frozen {order.moment!s}"
        )

    def _check_late_swap(self, order: Order, obeyed: Note) -> None:
        """The late swap of a frozen leader changes nothing: the table has changed."""

        def next_note() -> Note | None:
            notes = (note for note in self._after(obeyed) if note.writer == obeyed.writer)
            return next((note for note in notes if note.kind in ("swapped", "acknowledged")), None)

        if order.moment not in (Moment.BEFORE_FILES, Moment.PREPARED, Moment.INSIDE):
            return
        late = self._crew.until(next_note, f"writer {obeyed.writer} continues after it was frozen {order.moment!s}")
        if late.kind == "acknowledged":
            # It found its commit id before it sent anything: another leader had committed its ticket.
            self._report.late["not sent"] += 1
            expected = order.moment is Moment.BEFORE_FILES
        else:
            self._report.late[late.text] += 1
            expected = (late.text == "Committed") is (order.moment is Moment.INSIDE)
        if not expected:
            raise Violated(f"after a freeze {order.moment!s}, writer {obeyed.writer} noted {late}")

    # Writers

    def _start(self, writer: int, first: int = 0) -> None:
        self._crew.start(writer, write, self._plan.address, writer, first, self._desk, self._crew.path(writer))

    def _next_batch(self, obeyed: Note) -> int:
        """The first batch of a restarted writer: the same batch again if its commit id makes that safe."""
        if commit_id_of(obeyed.writer, obeyed.batch) is not None:
            return obeyed.batch
        self._doubtful.add((obeyed.writer, obeyed.batch))
        return obeyed.batch + 1

    def _take(self, note: Note) -> None:
        if note.kind == "acknowledged":
            self._acknowledged[note.writer].append(note.batch)


def _landed(note: Note) -> bool:
    return note.kind == "swapped" and note.text == "Committed"


def _orders(rounds: int, chance: random.Random) -> Iterator[Order]:
    """Every moment equally often, in random order; one in ``_FREEZE_EVERY`` is a freeze."""
    moments = [moment for _ in range(rounds) for moment in Moment][:rounds]
    deeds = [
        Deed.FREEZE if number // len(Moment) % _FREEZE_EVERY == _FREEZE_EVERY - 1 else Deed.DIE
        for number in range(rounds)
    ]
    pairs = list(zip(moments, deeds, strict=True))
    chance.shuffle(pairs)
    for number, (moment, deed) in enumerate(pairs):
        yield Order(number, moment, deed)


def _create(plan: Plan) -> None:
    with frazil.connect(plan.uri, warehouse=plan.warehouse) as lake:
        namespace = plan.table.split(".")[0]
        if namespace not in lake.namespaces():
            lake.create_namespace(namespace)
        lake.create_table(plan.table, SCHEMA)


# Checks


def _judge(plan: Plan, acknowledged: set[tuple[int, int]], doubtful: set[tuple[int, int]]) -> Iterator[str]:
    with frazil.connect(plan.uri, warehouse=plan.warehouse, create=False) as lake:
        table = lake.table(plan.table)
        missing = missing_files(table)
        if missing:
            yield f"{len(missing)} files of the table are missing: {sorted(missing)[:5]}"
            return
        yield from wrong_batches(table, acknowledged, doubtful)
        queue = lake.catalog.queue
        assert queue is not None
        left = queue.waiting(place_of(lake.catalog.name, Ident.parse(plan.table), table._metadata().uuid), 1000)
        if left:
            yield f"tickets are still waiting: {[each.ticket.commit_id for each in left]}"


def missing_files(table: frazil.Table) -> set[str]:
    """Files that a version of the table lists and that do not exist."""
    from frazil.format.manifests import read_manifest, read_manifest_list
    from frazil.format.storage import local_path

    lake = table._lake
    head = lake.catalog.load(Ident.parse(table.name))
    log = [entry["metadata-file"] for entry in head.metadata.raw.get("metadata-log") or ()]
    named = {head.location, *log}
    seen: set[str] = set()
    for snapshot in head.metadata.snapshots():
        assert snapshot.manifest_list is not None
        named.add(snapshot.manifest_list)
        if not os.path.exists(local_path(snapshot.manifest_list)):
            continue
        for manifest in read_manifest_list(lake.storage, snapshot.manifest_list):
            path = manifest.manifest_path
            if path in seen:
                continue
            seen.add(path)
            named.add(path)
            if os.path.exists(local_path(path)):
                entries = read_manifest(lake.storage, manifest, live_only=True, stats=frozenset())
                named.update(entry.file.file_path for entry in entries)
    return {path for path in named if not os.path.exists(local_path(path))}
