"""Twelve writer processes race appends on one table; afterwards every acknowledged batch is read back.

    frazil race

The check does not trust the writers' counters: it compares the acknowledged batches with the rows that Frazil reads
back, and PyIceberg where it can open a SQLite catalog.
"""

from __future__ import annotations

import collections
import multiprocessing
import queue
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

import frazil
from frazil.cli import _output as out
from frazil.cli._errors import explain
from frazil.runtime import SYSTEM
from frazil.wording import counted

SCHEMA = "writer int not null, batch int not null, line bigint not null, sent timestamp not null, payload string"
# Many tries with short waits: a dozen writers lose a few races each.
RETRY = frazil.Retry(tries=64, base_ms=10, cap_ms=400)
_START_LIMIT_S = 120.0
_SILENCE_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    folder: Path = Path("demo-lake")
    writers: int = 12
    commits: int = 20
    rows: int = 100


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One append that returned."""

    writer: int
    batch: int
    attempts: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class Ready:
    writer: int


@dataclass(frozen=True, slots=True)
class Gone:
    """A writer has ended; ``problem``: why it ended early."""

    writer: int
    problem: str | None = None


@dataclass(slots=True)
class Race:
    """The events that the parent process has received so far."""

    plan: Plan
    acknowledged: list[Acknowledged] = field(default_factory=list)
    ready: set[int] = field(default_factory=set)
    gone: dict[int, str | None] = field(default_factory=dict)
    commits: collections.Counter[int] = field(default_factory=collections.Counter)
    lost: collections.Counter[int] = field(default_factory=collections.Counter)

    def add(self, event: Acknowledged | Ready | Gone) -> None:
        match event:
            case Acknowledged():
                self.acknowledged.append(event)
                self.commits[event.writer] += 1
                self.lost[event.writer] += event.attempts - 1
            case Ready():
                self.ready.add(event.writer)
            case Gone():
                self.gone[event.writer] = event.problem

    @property
    def problems(self) -> list[str]:
        return [f"writer {writer}: {problem}" for writer, problem in sorted(self.gone.items()) if problem]


@dataclass(frozen=True, slots=True)
class Proof:
    """The acknowledged batches compared with the table's rows."""

    acknowledged: int
    missing: tuple[tuple[int, int], ...]
    inexact: tuple[tuple[int, int], ...]
    unexpected: tuple[tuple[int, int], ...]
    stray_files: tuple[str, ...]
    rows: int
    pyiceberg_rows: int | None
    """None: PyIceberg cannot open SQLite catalogs here (it needs its extra sql-sqlite)."""

    @property
    def holds(self) -> bool:
        found = self.missing or self.inexact or self.unexpected or self.stray_files
        return not found and self.pyiceberg_rows in (None, self.rows)


def write(plan: Plan, name: str, writer: int, start: Any, events: Any) -> None:
    """One writer process. All write the same batches, each under its own number."""
    # Ctrl-C reaches every process of the terminal; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with frazil.connect(str(plan.folder), create=False) as lake:
            table = lake.table(name)
            events.put(Ready(writer))
            start.wait(_START_LIMIT_S)
            for batch in range(plan.commits):
                commit = table.append(rows(plan, writer, batch), retry=RETRY, commit_id=f"{name}-{writer}-{batch}")
                events.put(Acknowledged(writer, batch, commit.attempts, commit.snapshot_id or 0))
    except Exception as error:  # noqa: BLE001 - reported to the parent
        events.put(Gone(writer, explain(error)))
    else:
        events.put(Gone(writer))


def rows(plan: Plan, writer: int, batch: int) -> pa.Table:
    count = plan.rows
    sent = pa.scalar(SYSTEM.now_ms() * 1000, pa.timestamp("us", tz="UTC"))
    return pa.table(
        {
            "writer": pa.array([writer] * count, pa.int32()),
            "batch": pa.array([batch] * count, pa.int32()),
            "line": pa.array(range(count), pa.int64()),
            "sent": pa.array([sent.as_py()] * count, sent.type),
            "payload": pa.array([f"{writer}/{batch}/{line}" for line in range(count)]),
        }
    )


def race(plan: Plan, name: str, show: Display) -> tuple[Race, float]:
    """Start the writers together and wait until all have ended. Returns their events and the duration in seconds."""
    # Writers are forked from a server that has imported everything and holds no thread, lock or connection.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["frazil.cli._race"])
    start, events = context.Event(), context.Queue()
    processes = [
        context.Process(target=write, args=(plan, name, writer, start, events), daemon=True)
        for writer in range(plan.writers)
    ]
    for process in processes:
        process.start()
    heard = Race(plan)
    began = SYSTEM.monotonic()
    patience = 0.0
    try:
        for event in _listen(events, processes, heard):
            heard.add(event)
            if not start.is_set() and len(heard.ready | set(heard.gone)) == plan.writers:
                began = SYSTEM.monotonic()
                start.set()
            show.update(heard, SYSTEM.monotonic() - began)
        patience = 5.0
    finally:
        _stop(processes, patience)
    return heard, SYSTEM.monotonic() - began


def _listen(events: Any, processes: Sequence[BaseProcess], heard: Race) -> Iterator[Acknowledged | Ready | Gone]:
    """Yields events until every writer has finished, died, or sent nothing for too long."""
    silent_since = SYSTEM.monotonic()
    while len(heard.gone) < len(processes):
        try:
            yield events.get(timeout=0.25)
            silent_since = SYSTEM.monotonic()
            continue
        except queue.Empty:
            pass
        silent = SYSTEM.monotonic() - silent_since
        for writer, process in enumerate(processes):
            if writer in heard.gone:
                continue
            # The queue was empty, so all events of a dead process have been read.
            if not process.is_alive():
                yield Gone(writer, f"died with exit code {process.exitcode}")
            elif silent > _SILENCE_LIMIT_S:
                yield Gone(writer, f"sent nothing for {silent:.0f} s")


def _stop(processes: Sequence[BaseProcess], patience: float) -> None:
    """End processes that still run: after ``patience`` seconds each, at once after an interrupt."""
    for process in processes:
        process.join(timeout=patience)
        if process.is_alive():
            process.kill()
            process.join()


def prove(lake: frazil.Lake, plan: Plan, name: str, acknowledged: list[Acknowledged]) -> Proof:
    """Read everything back and count."""
    table = lake.table(name)
    found: collections.Counter[tuple[int, int]] = collections.Counter()
    whole = table.scan().to_arrow()
    grouped = whole.group_by(["writer", "batch"]).aggregate([("line", "count"), ("line", "count_distinct")])
    for line in grouped.to_pylist():
        key = (line["writer"], line["batch"])
        # A batch counts as one when each of its lines exists exactly once.
        exact = line["line_count"] == line["line_count_distinct"] == plan.rows
        found[key] = 1 if exact else max(2, line["line_count"])
    promised = {(each.writer, each.batch) for each in acknowledged}
    return Proof(
        acknowledged=len(acknowledged),
        missing=tuple(sorted(promised - set(found))),
        inexact=tuple(sorted(key for key, count in found.items() if count != 1)),
        unexpected=tuple(sorted(set(found) - promised)),
        stray_files=_stray_files(table),
        rows=whole.num_rows,
        pyiceberg_rows=_rows_by_pyiceberg(plan, name),
    )


def _stray_files(table: frazil.Table) -> tuple[str, ...]:
    """Data files on disk that are not in the table: a lost race must leave none behind."""
    live = {Path(_path(each.path)).name for each in table.files()}
    disk = Path(_path(table.location)).rglob("*.parquet")
    return tuple(sorted(str(path) for path in disk if path.name not in live))


def _path(location: str) -> str:
    return location.removeprefix("file://")


def _rows_by_pyiceberg(plan: Plan, name: str) -> int | None:
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError:
        return None
    catalog = SqlCatalog("frazil", uri=f"sqlite:///{plan.folder.resolve() / 'catalog.db'}")
    try:
        return int(catalog.load_table(name).scan().to_arrow().num_rows)
    finally:
        catalog.close()


class Display:
    """Progress on stderr: a live table on a terminal, a line every two seconds elsewhere."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=10) if self._console.is_terminal else None
        self._spoke = 0.0

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, heard: Race, seconds: float) -> None:
        if self._live is not None:
            self._live.update(Group(self._grid(heard), Text(self._line(heard, seconds))))
        elif seconds - self._spoke >= 2 or len(heard.gone) == self._plan.writers:
            self._spoke = seconds
            self._console.print(Text(self._line(heard, seconds)))

    def _line(self, heard: Race, seconds: float) -> str:
        done, total = len(heard.acknowledged), self._plan.writers * self._plan.commits
        if not done:
            return f"{len(heard.ready)} of {counted(self._plan.writers, 'writer')} ready"
        rate = done / seconds if seconds > 0 else 0.0
        lost = counted(heard.lost.total(), "lost race")
        return f"{done} of {counted(total, 'commit')} · {lost} · {rate:.0f} commits/s · {seconds:.1f} s"

    def _grid(self, heard: Race) -> Grid:
        grid = Grid.grid(padding=(0, 2))
        for writer in range(self._plan.writers):
            problem = heard.gone.get(writer)
            state = problem or f"commits {heard.commits[writer]:>3}  lost races {heard.lost[writer]:>3}"
            bar = ProgressBar(total=self._plan.commits, completed=heard.commits[writer], width=30)
            grid.add_row(f"writer {writer:>2}", bar, Text(state))
        return grid


def run(plan: Plan, *, json: bool = False) -> int:
    """The whole race. Returns the exit code: 0 when nothing was lost."""
    total_began = SYSTEM.monotonic()
    with frazil.connect(str(plan.folder)) as lake:
        name = _new_table(lake)
        with Display(plan) as show:
            heard, seconds = race(plan, name, show)
        proof = prove(lake, plan, name, heard.acknowledged)
        total = SYSTEM.monotonic() - total_began
        good = proof.holds and not heard.problems
        if json:
            out.print_json(
                {
                    "table": name,
                    "nothing_lost": good,
                    "commits": len(heard.acknowledged),
                    "lost_races": heard.lost.total(),
                    "race_seconds": seconds,
                    "total_seconds": total,
                    "problems": heard.problems,
                    "proof": asdict(proof),
                }
            )
        else:
            _tell(lake, plan, name, heard, seconds, proof, total)
    return 0 if good else 1


def _new_table(lake: frazil.Lake) -> str:
    """Creates a new table; tables of earlier races are kept."""
    lake.create_namespace("demo", exists_ok=True)
    taken = set(lake.tables("demo"))
    number = next(n for n in range(1, len(taken) + 2) if f"demo.race_{n}" not in taken)
    name = f"demo.race_{number}"
    lake.create_table(name, SCHEMA)
    return name


def _tell(lake: frazil.Lake, plan: Plan, name: str, heard: Race, seconds: float, proof: Proof, total: float) -> None:
    say = out.print_text
    commits, lost = len(heard.acknowledged), heard.lost.total()
    say(
        f"{counted(plan.writers, 'process', 'processes')}, {counted(commits, 'commit')} to {name} "
        f"in {seconds:.1f} s ({commits / seconds:.0f} commits/s)."
    )
    say(f"{counted(lost, 'lost race')} retried; no data file was written twice.")
    for problem in heard.problems:
        say(f"FAILED  {problem}")
    for passed, sentence in _results(proof):
        say(f"{'ok' if passed else 'FAILED':<7} {sentence}")
    out.print_heading("The newest snapshots")
    out.print_grid(
        ["sequence", "snapshot", "operation", "rows added", "total rows"],
        (_history_row(each) for each in lake.table(name).history()[-5:]),
        right=frozenset({"sequence", "snapshot", "rows added", "total rows"}),
    )
    out.print_heading("The same table from PyIceberg (pip install 'pyiceberg[sql-sqlite,pyarrow]')")
    say(
        "from pyiceberg.catalog.sql import SqlCatalog\n"
        f'catalog = SqlCatalog("frazil", uri="sqlite:///{plan.folder.resolve() / "catalog.db"}")\n'
        f'print(catalog.load_table("{name}").scan(limit=10).to_arrow())'
    )
    good = proof.holds and not heard.problems
    say(f"\n{'Nothing was lost.' if good else 'SOMETHING WENT WRONG.'} The race took {total:.1f} s.")


def _history_row(entry: Any) -> list[Any]:
    counts = [entry.summary.get(key) for key in ("added-records", "total-records")]
    return [entry.sequence_number, entry.snapshot_id, entry.operation, *counts]


def _results(proof: Proof) -> Iterator[tuple[bool, str]]:
    """Each check of the race: whether it passed, and the result in words."""
    total = proof.acknowledged
    yield not proof.missing, _result(total, proof.missing, "Acknowledged batches found", "missing")
    yield not proof.inexact, _result(total, proof.inexact, "Batches with exactly their rows", "not exact")
    yield not proof.unexpected, _none_or_count(len(proof.unexpected), "unacknowledged batch", "unacknowledged batches")
    yield not proof.stray_files, _none_or_count(len(proof.stray_files), "stray data file", "stray data files")
    if proof.pyiceberg_rows is None:
        yield True, "Not read by PyIceberg: it needs pip install 'pyiceberg[sql-sqlite]'"
    else:
        same = proof.pyiceberg_rows == proof.rows
        yield same, f"PyIceberg reads {counted(proof.pyiceberg_rows, 'row')}, Frazil {proof.rows}"


def _result(total: int, bad: tuple[tuple[int, int], ...], what: str, problem: str) -> str:
    good = f"{what}: {total - len(bad)} of {total}"
    return f"{good}; {len(bad)} {problem}, the first is {bad[0]}" if bad else good


def _none_or_count(number: int, noun: str, plural: str) -> str:
    return f"{counted(number, noun, plural)} found" if number else f"No {plural} found"
