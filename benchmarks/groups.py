"""Committing together, over time: many kinds of operation on one table beside a model, and a table that grows old.

``mixed``: writer processes draw from appends, upserts by key, deletes, and changes of columns and properties. A true
conflict is an answer, any other error a failure. At the end a sequential model replays what was acknowledged, in the
order that the commits themselves name, and must have the rows that the table has.

``ageing``: writers append ten rows at a time, end to end, until so many commits are acknowledged in all. Snapshots go
with the commits as they grow old (``frazil.retention.in-commit``): the last seconds must be about as fast as the first
minute.

Every run has a fresh database and folder. Commits per second are those acknowledged within the seconds.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

import frazil
from common import RESULTS, Report
from contention import PATIENCE_S, Server, many
from frazil.format.manifests import read_manifest_list
from frazil.model import Commit, Ident
from peers.contend import CATALOG, FINISH_S, OPEN_S, PER_WRITER, TABLE, Request
from peers.contend import _fork as fork
from peers.contend import _wait as wait_for

MIXED, AGEING = "mixed", "ageing"
PARTS = {MIXED: ("postgres", "sqlite"), AGEING: ("postgres",)}
"""And the databases that each is measured on unless others are asked for."""
DATABASES = ("postgres", "sqlite")
WRITERS = 30
SECONDS = 30.0
COMMITS = 50_000
SEED = 6
RATE_WANTED = 100
AGEING_WANTED = 0.8
OLD_MS = "30000"
SLICE_S, FIRST_S, LAST_S = 10.0, 60.0, 20.0

APPEND, UPSERT, DELETE, COLUMN, PROPERTY = "append", "upsert", "delete", "add column", "set property"
SHARES = {APPEND: 80, UPSERT: 10, DELETE: 5, PROPERTY: 4.5, COLUMN: 0.5}
"""In percent. Few of the changes are columns: a schema of hundreds would be another measurement."""
ROWS = 10
KEYS = range(-100, 0)
"""What upserts share. Ids of appended rows are not negative, and of one writer each."""
SHARED_DELETES = 0.2
"""The share of deletes that take a key that upserts write, too; the others take a row of the writer's own."""
SHOWN = 10
T = TypeVar("T")


@dataclass(frozen=True)
class Job(Request):
    seed: int = SEED
    commits: int = 0
    """Of all writers, after which they stop; none: only the seconds count."""

    def lake(self) -> frazil.Lake:
        return frazil.connect(self.uri, warehouse=f"file://{self.warehouse}", name=CATALOG)


@dataclass(frozen=True)
class Operation:
    kind: str
    label: str
    """The value that rows get, or a property; every operation's own."""
    ids: tuple[int, ...] = ()
    """The rows that it adds, puts in or deletes."""
    name: str = ""
    """Of the column or the property."""

    def run(self, table: frazil.Table) -> Commit:
        if self.kind == APPEND:
            return table.append(self.rows())
        if self.kind == UPSERT:
            return table.upsert(self.rows())
        if self.kind == DELETE:
            (key,) = self.ids
            return table.delete(f"id = {key}")
        if self.kind == COLUMN:
            return table.add_column(self.name, "string")
        return table.set_properties({self.name: self.label})

    def rows(self) -> pa.Table:
        return pa.table({"id": pa.array(self.ids, pa.int64()), "x": [self.label] * len(self.ids)})


@dataclass(frozen=True)
class Note:
    """An operation and what came of it."""

    operation: Operation
    began: float
    ended: float
    problem: str | None = None
    checks: tuple[str, ...] | None = None
    """Those that found a true conflict; None: there was none."""
    snapshot_id: int | None = None
    sequence_number: int = 0
    group_index: int = 0
    changed: bool = False

    @staticmethod
    def read(line: str) -> Note:
        body = json.loads(line)
        operation = body.pop("operation")
        ids, checks = tuple(operation.pop("ids")), body.pop("checks")
        found = None if checks is None else tuple(checks)
        return Note(Operation(**operation, ids=ids), checks=found, **body)

    @property
    def place(self) -> tuple[int, int]:
        """In the order of commits. Those that share a snapshot only append: any order of them is the same."""
        return self.sequence_number, self.group_index

    def __str__(self) -> str:
        fate = self.problem or f"sequence number {self.sequence_number}, {self.group_index} of its group"
        return f"{self.operation.kind} {self.operation.label} ({fate})"


# One run, in a program of its own: who starts writers has used nothing of Frazil, only imported it


class Writer:
    """Draws one operation after another, the same ones for the same seed as long as the outcomes are the same."""

    def __init__(self, job: Job, number: int) -> None:
        self._only_appends = job.form == AGEING
        self._number = number
        self._random = random.Random(f"{job.seed}-{number}")
        self._count = self._appended = 0
        self._own: list[int] = []

    def draw(self) -> Operation:
        (kind,) = (APPEND,) if self._only_appends else self._random.choices([*SHARES], [*SHARES.values()])
        return self.make(kind)

    def make(self, kind: str) -> Operation:
        self._count += 1
        operation = Operation(kind, f"{self._number}-{self._count}")
        if kind == APPEND:
            first = self._number * PER_WRITER + self._appended
            self._appended += ROWS
            return replace(operation, ids=tuple(range(first, first + ROWS)))
        if kind == UPSERT:
            return replace(operation, ids=tuple(self._random.sample(KEYS, ROWS)))
        if kind == DELETE:
            shared = self._random.random() < SHARED_DELETES or not self._own
            return replace(operation, ids=(self._random.choice(KEYS if shared else self._own),))
        name = f"column_{self._number}_{self._count}" if kind == COLUMN else property_of(self._number)
        return replace(operation, name=name)

    def landed(self, operation: Operation) -> None:
        if self._only_appends:
            return
        if operation.kind == APPEND:
            self._own.extend(operation.ids)
        elif operation.kind == DELETE and operation.ids[0] in self._own:
            self._own.remove(operation.ids[0])


def property_of(number: int) -> str:
    return f"bench.writer-{number}"


def attempt(operation: Operation, table: frazil.Table, start: float) -> Note:
    began = time.perf_counter() - start
    try:
        done = operation.run(table)
    except Exception as error:
        checks = None
        if isinstance(error, frazil.ConflictError):
            checks = tuple(sorted({str(each.check) for each in error.conflicts}))
        problem = f"{type(error).__name__}: {error}"[:1000]
        return Note(operation, began, time.perf_counter() - start, problem=problem, checks=checks)
    return Note(
        operation,
        began,
        time.perf_counter() - start,
        snapshot_id=done.snapshot_id,
        sequence_number=done.sequence_number,
        group_index=done.group_index,
        changed=done.changed,
    )


def work(folder: Path) -> None:
    """The folder holds ``request.json`` and gets ``answer.json``."""
    logging.disable(logging.CRITICAL)
    job = Job(**json.loads((folder / "request.json").read_text()))
    notes = folder / "notes"
    notes.mkdir()
    for module in apart(begin, job):
        # What the first operations have loaded is loaded once, not by each writer inside its seconds.
        with suppress(Exception):
            importlib.import_module(module)
    # Writers do not copy, page by page, what their collectors find of the modules loaded here.
    gc.freeze()
    barrier, counted = fork.Barrier(job.writers), fork.Value("q")
    processes = [fork.Process(target=write, args=(job, n + 1, barrier, counted)) for n in range(job.writers)]
    for process in processes:
        process.start()
    crashed = wait_for(processes, OPEN_S + job.seconds + FINISH_S)
    answer = {"crashed": crashed, "found": apart(found, job)}
    (folder / "answer.json").write_text(json.dumps(answer))


def apart(act: Callable[[Job], T], job: Job) -> T:
    """Run in a process of its own: this one must stay fit to fork."""
    with ProcessPoolExecutor(1, fork) as pool:
        return pool.submit(act, job).result()


def begin(job: Job) -> list[str]:
    properties = {}
    if job.form == AGEING:
        properties = {
            "frazil.retention.in-commit": "true",
            "frazil.retention.min-age-ms": OLD_MS,
            "history.expire.max-snapshot-age-ms": OLD_MS,
        }
    keys = ["id"] if job.form == MIXED else []
    # Nobody counts these; they are in the model, as they are in the table.
    writer, kinds = Writer(job, 0), (APPEND, UPSERT, DELETE, PROPERTY, APPEND) if job.form == MIXED else (APPEND,)
    with job.lake() as lake, open(Path(job.folder, "notes", "0"), "w") as notes:
        lake.create_namespace("bench")
        table = lake.create_table(TABLE, writer.make(APPEND).rows().schema, keys=keys, properties=properties)
        for kind in kinds:
            note = attempt(writer.make(kind), table, time.perf_counter())
            if note.problem is not None:
                raise RuntimeError(note.problem)
            print(json.dumps(asdict(note)), file=notes)
    return list(sys.modules)


def write(job: Job, number: int, barrier: Barrier, counted: Synchronized[int]) -> None:
    # One write for each line: what was acknowledged is noted before the next operation begins.
    with open(Path(job.folder, "notes", str(number)), "w", buffering=1) as notes:
        try:
            table = job.lake().table(TABLE)
        finally:
            # Also without a table: the others shall not wait for this one.
            barrier.wait(OPEN_S)
        start, writer = time.perf_counter(), Writer(job, number)
        while time.perf_counter() - start < job.seconds and not (job.commits and counted.value >= job.commits):
            note = attempt(writer.draw(), table, start)
            print(json.dumps(asdict(note)), file=notes)
            if note.problem is None:
                writer.landed(note.operation)
                with counted.get_lock():
                    counted.value += 1


def found(job: Job) -> dict[str, Any]:
    """The table as Frazil reads it. An old one has tens of thousands of files, which are counted and not opened."""
    with job.lake() as lake:
        table = lake.table(TABLE)
        head = lake.catalog.load(Ident.parse(TABLE))
        newest = head.metadata.head_snapshot()
        assert newest is not None
        assert newest.manifest_list is not None
        state: dict[str, Any] = {
            "snapshots": sum(1 for _ in head.metadata.snapshots()),
            "metadata_bytes": os.path.getsize(head.location.removeprefix("file://")),
            "manifests": len(read_manifest_list(lake.storage, newest.manifest_list)),
        }
        if job.form == AGEING:
            return state | {"row_count": sum(file.rows for file in table.files())}
        rows = table.scan(columns=["id", "x"]).to_arrow()
        return state | {
            "rows": list(zip(rows.column("id").to_pylist(), rows.column("x").to_pylist(), strict=True)),
            "columns": [each.name for each in table.schema.fields],
            "properties": table.properties,
        }


# The model


@dataclass(frozen=True)
class Model:
    rows: dict[int, str]
    columns: frozenset[str]
    properties: dict[str, str]


def replayed(notes: Sequence[Note]) -> Model:
    """What the acknowledged operations come to, one after another."""
    rows: dict[int, str] = {}
    columns, properties = {"id", "x"}, {}
    # Changes of columns and properties have no place of their own. Each writer's are its own, and in its order here.
    for note in sorted((note for note in notes if note.problem is None), key=lambda note: note.place):
        operation = note.operation
        if operation.kind in (APPEND, UPSERT):
            rows.update(dict.fromkeys(operation.ids, operation.label))
        elif operation.kind == COLUMN:
            columns.add(operation.name)
        elif operation.kind == PROPERTY:
            properties[operation.name] = operation.label
        elif note.changed:
            for key in operation.ids:
                rows.pop(key, None)
    return Model(rows, frozenset(columns), properties)


def differences(notes: Sequence[Note], state: dict[str, Any]) -> list[str]:
    """Where the table is not what the model says, with everything that was done about it."""
    model = replayed(notes)
    wanted, there = Counter(model.rows.items()), Counter((key, value) for key, value in state["rows"])
    said = [
        *(f"row {row} is not in the table{_about(row[0], notes)}" for row in wanted - there),
        *(f"row {row} is in the table{_about(row[0], notes)}" for row in there - wanted),
    ]
    said += [f"column {each} is not in the table" for each in model.columns - {*state["columns"]}]
    said += [f"column {each} is in the table" for each in {*state["columns"]} - model.columns]
    for key, value in model.properties.items():
        if state["properties"].get(key) != value:
            said.append(f"property {key} is {state['properties'].get(key)!r}, not {value!r}")
    return said


def _about(key: int, notes: Sequence[Note]) -> str:
    return "".join(
        f"\n      {note}" for note in sorted(notes, key=lambda note: note.place) if key in note.operation.ids
    )


# What came of a run


@dataclass(frozen=True)
class Latency:
    p50_ms: float
    p99_ms: float

    @staticmethod
    def of(notes: Sequence[Note]) -> Latency:
        found = sorted(1000 * (note.ended - note.began) for note in notes) or [0.0]
        return Latency(statistics.median(found), found[int(len(found) * 0.99)])

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:7.1f} ms   p99 {self.p99_ms:7.1f} ms"


@dataclass(frozen=True)
class Answer:
    """Of a run's program."""

    job: Job
    before: list[Note]
    """What was done before the writers started."""
    notes: list[Note]
    crashed: int
    state: dict[str, Any]

    @property
    def committed(self) -> list[Note]:
        """In the order of time. A delete that found nothing to delete is acknowledged, and no commit."""
        return sorted((note for note in self.notes if note.changed), key=lambda note: note.ended)

    @property
    def conflicts(self) -> list[Note]:
        return [note for note in self.notes if note.checks is not None]

    @property
    def failures(self) -> Counter[str]:
        return Counter(note.problem for note in self.notes if note.problem is not None and note.checks is None)

    @property
    def group_size(self) -> float:
        """How many commits a swap has, on average: the first of each group swaps for all."""
        return len(self.committed) / max(1, sum(note.group_index == 0 for note in self.committed))


@dataclass
class Groups(Report):
    """A report that keeps every run's details beside the figures that a page shows."""

    runs: list[dict[str, Any]] = field(default_factory=list)

    def save(self) -> None:
        super().save()
        path = RESULTS / f"{self.name}.json"
        body = json.loads(path.read_text())
        body["runs"] = self.runs
        path.write_text(json.dumps(body, indent=2) + "\n")

    def say(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def failures(self, answer: Answer) -> dict[str, Any]:
        """Those that are not conflicts."""
        for problem, times in answer.failures.most_common(SHOWN):
            self.say(f"failed {times} times: {problem}")
        if answer.crashed:
            self.say(f"{answer.crashed} writers crashed")
        return {"failed": answer.failures.total(), "crashed": answer.crashed, "problems": dict(answer.failures)}


def judge_mixed(report: Groups, database: str, answer: Answer) -> None:
    side, job = f"frazil-{database}", answer.job
    in_time = [note for note in answer.committed if note.ended <= job.seconds]
    for kind in SHARES:
        some = [note for note in in_time if note.operation.kind == kind]
        key = f"{many(job.writers)}, mixed: rows, {side}, {kind}"
        report.figures[key] = round(len(some) / job.seconds, 2)
        report.say(f"{kind:<14} {len(some) / job.seconds:8.1f} commits/s   {Latency.of(some)}")
    checks = Counter(check for note in answer.conflicts for check in note.checks or ())
    kinds = Counter(note.operation.kind for note in answer.conflicts)
    report.say(f"{len(answer.conflicts)} true conflicts, by operation {dict(kinds)}, by check {dict(checks)}")
    report.say(f"{answer.group_size:.1f} commits in a group, {answer.state['snapshots']} snapshots")
    failures = report.failures(answer)
    differing = differences([*answer.before, *answer.notes], answer.state)
    for each in differing[:SHOWN]:
        report.say(f"DIFFERS: {each}")
    if not differing:
        report.say(f"{len(answer.state['rows'])} rows, {len(answer.state['columns'])} columns: as the model has them")
    key = f"{many(job.writers)}, mixed: {side}"
    rate = len(in_time) / job.seconds
    report.ratio(f"{key}, commits/s over {RATE_WANTED}", rate, RATE_WANTED, wanted=1)
    # A writer that crashed did not say what it tried last.
    tried = max(1, len(answer.notes) + answer.crashed)
    kept = len(answer.notes) - failures["failed"]
    report.ratio(f"{key}, acknowledged or in conflict over tried", kept, tried, wanted=1)
    compared = max(1, len(answer.state["rows"]), len(differing))
    report.ratio(f"{key}, rows as the model has them over rows", compared - len(differing), compared, wanted=1)
    report.runs.append(
        {
            "part": MIXED,
            "side": side,
            "writers": job.writers,
            "seconds": job.seconds,
            "commits_per_s": round(rate, 2),
            "acknowledged": len(answer.committed),
            "conflicts": len(answer.conflicts),
            "conflicts_by_check": dict(checks),
            **failures,
            "group_size": round(answer.group_size, 2),
            "rows": len(answer.state["rows"]),
            "differences": len(differing),
        }
    )


def judge_ageing(report: Groups, database: str, answer: Answer) -> None:
    side, job, committed, state = f"frazil-{database}", answer.job, answer.committed, answer.state
    # Then it is over; what the other writers had under way comes after it, from fewer and fewer of them.
    end = max((note.ended for note in committed[: job.commits]), default=0.0)
    slices = [_between(committed, began, min(began + SLICE_S, end)) for began in _steps(end)]
    for number, (rate, latency) in enumerate(slices):
        report.say(f"{number * SLICE_S:5.0f} s {rate:8.1f} commits/s   {latency}")
    failures = report.failures(answer)
    key = f"{many(job.writers)}, ageing: {side}"
    (first, early), (last, late) = _between(committed, 0, min(FIRST_S, end)), _between(committed, end - LAST_S, end)
    for name, rate, latency in (("first minute", first, early), ("last 20 seconds", last, late)):
        report.figures[f"{many(job.writers)}, ageing: rows, {side}, {name}"] = round(rate, 2)
        report.figures[f"{key}, {name}, p50"] = round(latency.p50_ms, 2)
        report.figures[f"{key}, {name}, p99"] = round(latency.p99_ms, 2)
        report.say(f"{name:<16} {rate:8.1f} commits/s   {latency}")
    if len(committed) < job.commits:
        report.say(f"stopped after {job.seconds:.0f} s, before its {job.commits} commits were made")
    if end < FIRST_S + LAST_S:
        report.say(f"over after {end:.0f} s: what is first and what is last overlap, and nothing has grown old")
    rows = state["row_count"] - sum(len(note.operation.ids) for note in answer.before)
    report.say(
        f"{len(committed)} commits in {end:.0f} s, {answer.group_size:.1f} in a group; at the end "
        f"{state['snapshots']} snapshots, {state['metadata_bytes'] / 1024:.0f} KiB of metadata, "
        f"{state['manifests']} manifests, {rows} rows"
    )
    report.ratio(f"{key}, last 20 seconds over first minute", last, max(first, 1 / FIRST_S), wanted=AGEING_WANTED)
    tried = max(1, len(answer.notes) + answer.crashed)
    report.ratio(f"{key}, acknowledged over tried", len(committed), tried, wanted=1)
    # More rows than acknowledged are those of a writer that crashed, or of a commit that landed twice.
    acknowledged = max(1, ROWS * len(committed))
    report.ratio(
        f"{key}, rows found over acknowledged", acknowledged - abs(acknowledged - rows), acknowledged, wanted=1
    )
    report.runs.append(
        {
            "part": AGEING,
            "side": side,
            "writers": job.writers,
            "seconds": round(end, 1),
            "commits": len(committed),
            **failures,
            "group_size": round(answer.group_size, 2),
            "slices": [round(rate, 1) for rate, _ in slices],
            "snapshots": state["snapshots"],
            "metadata_bytes": state["metadata_bytes"],
            "manifests": state["manifests"],
        }
    )


def _steps(end: float) -> Iterator[float]:
    began = 0.0
    while began < end:
        yield began
        began += SLICE_S


def _between(committed: Sequence[Note], began: float, ended: float) -> tuple[float, Latency]:
    """Commits per second, and how long they took."""
    began = max(0.0, began)
    some = [note for note in committed if began < note.ended <= ended]
    return len(some) / max(ended - began, 0.001), Latency.of(some)


JUDGES = {MIXED: judge_mixed, AGEING: judge_ageing}


# Starting


@dataclass
class Bench:
    work: Path
    server: Server | None
    """Only where it is asked for."""
    arguments: argparse.Namespace

    def run(self, part: str, database: str) -> Answer:
        name = f"{part}_{database}"
        folder = self.work / name
        (folder / "warehouse").mkdir(parents=True)
        uri = f"sqlite:///{folder}/catalog.db" if self.server is None or database == "sqlite" else ""
        asked = self.arguments
        seconds, commits = (asked.seconds, 0) if part == MIXED else (float(PATIENCE_S), asked.commits)
        try:
            uri = uri or self._database(name)
            job = Job("frazil", part, uri, str(folder), asked.writers, seconds, asked.seed, commits)
            return self._answer(job, folder)
        finally:
            if self.server is not None and database == "postgres":
                self.server.drop_database(name)

    def _database(self, name: str) -> str:
        assert self.server is not None
        return self.server.create_database(name)

    def _answer(self, job: Job, folder: Path) -> Answer:
        (folder / "request.json").write_text(json.dumps(asdict(job)))
        command = [sys.executable, __file__, "--work", str(folder)]
        patience = job.seconds + PATIENCE_S
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
        if done.returncode or not (folder / "answer.json").exists():
            raise RuntimeError(f"its program ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
        answer = json.loads((folder / "answer.json").read_text())
        notes = {
            int(path.name): [Note.read(line) for line in path.read_text().splitlines()]
            for path in (folder / "notes").iterdir()
        }
        before = notes.pop(0)
        return Answer(
            job, before, [note for some in notes.values() for note in some], answer["crashed"], answer["found"]
        )


@contextmanager
def opened(databases: set[str], arguments: argparse.Namespace) -> Iterator[Bench]:
    logging.disable(logging.CRITICAL)
    work = Path(tempfile.mkdtemp(prefix="frazil-bench-", dir=arguments.folder))
    try:
        server = Server() if "postgres" in databases else None
        try:
            yield Bench(work, server, arguments)
        finally:
            if server is not None:
                server.close()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def measure(bench: Bench, report: Groups, asked: dict[str, Sequence[str]]) -> bool:
    """Whether all of them ran; one that could not be run is said, and the others go on."""
    all_ran = True
    for part, databases in asked.items():
        for database in databases:
            print(f"{many(bench.arguments.writers)}, {part}, {database}", flush=True)
            try:
                answer = bench.run(part, database)
            except Exception as problem:
                all_ran = False
                print(f"  did not run: {type(problem).__name__}: {problem}", flush=True)
            else:
                JUDGES[part](report, database, answer)
    return all_ran


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--database", nargs="+", choices=DATABASES, help="mixed: both, ageing: postgres")
    parser.add_argument("--writers", type=int, default=WRITERS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of mixed")
    parser.add_argument("--commits", type=int, default=COMMITS, help="of ageing")
    parser.add_argument("--seed", type=int, default=SEED, help="of mixed")
    parser.add_argument("--folder", help="where the tables are made, and removed at the end")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work)
        return
    asked = {part: arguments.database or PARTS[part] for part in PARTS if part in arguments.only}
    report = Groups("groups")
    with opened({database for some in asked.values() for database in some}, arguments) as bench:
        all_ran = measure(bench, report, asked)
    # A run of one part, other databases, other writers or few commits is for looking at them.
    is_long = arguments.seconds >= SECONDS and arguments.commits >= COMMITS
    if all_ran and asked == PARTS and arguments.writers == WRITERS and is_long:
        report.save()


if __name__ == "__main__":
    main()
