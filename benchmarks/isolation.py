"""The peers under Frazil's own history checker: one workload on Frazil, PyIceberg, Iceberg Java, delta-rs and DuckLake.

The workload is a table of registers. Clients are processes (of Iceberg Java: threads of one Spark driver). Of 100 times
85 a client reads a key and puts a value there that nobody else ever writes, in one transaction or statement as
the system's users do it, at its default isolation; otherwise it reads the whole table. New keys come up all the time.
What clients were told, and the table at each version of its own history, go to ``frazil.verify.checker``. Each side is
held to what it promises by default, and the peers to the weakest reading of it:

- an upsert or a MERGE that found no row counts as an insert, so that a second row of the key is no fault by itself;
- DuckLake promises snapshot isolation, which lets two transactions insert the same key: that neither of them had seen
  the other's row is not held against it. How many keys ever had two rows is counted for everybody.

``--show`` plays one interleaving step by step, without chance, and ends with 1 if the checker names an anomaly.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import RESULTS
from contention import Side
from frazil.verify.checker import Level, Report, check
from frazil.verify.checker.history import History, write_history
from frazil.verify.checker.report import sentences
from peers.interleavings import compaction_over_delete, sqlite_place, two_upserts
from peers.registers import Place, system_of
from peers.workload import Note, Workload, history_of, play
from servers import PostgresServer

HERE = Path(__file__).resolve().parent
WITNESSES = 3
MODULES = {"delta-rs": ("deltalake",), "ducklake": ("duckdb", "duckdb_extensions")}
"""Of the group bench, by the system that needs them."""


SIDES = {
    side.name: side
    for side in (
        Side("frazil", "sqlite"),
        Side("frazil", "postgres"),
        Side("pyiceberg", "sqlite"),
        Side("pyiceberg", "postgres"),
        Side("iceberg-java", "postgres"),
        Side("delta-rs"),
        Side("ducklake", "postgres"),
    )
}


@dataclass(frozen=True)
class Result:
    """What came of one side."""

    side: str
    claims: str
    told_by: str
    transactions: int
    committed: int
    failed: int
    unknown: int
    writes_committed: int
    writes_failed: int
    versions: int
    anomalies: dict[str, int]
    ruled_out: list[str]
    keeps_its_promise: bool
    keys_with_two_rows: int
    problems: dict[str, int]
    """The kinds of failure, and how often each was seen."""
    notes: list[str]


@dataclass
class Bench:
    work: Path
    workload: Workload
    keep: Path | None
    server: PostgresServer | None
    results: dict[str, Result] = field(default_factory=dict)

    def run(self, side: Side) -> Result:
        folder = self.work / side.name
        (folder / "warehouse").mkdir(parents=True)
        uri = f"sqlite:///{folder}/catalog.db" if side.database == "sqlite" else ""
        if side.database == "postgres":
            assert self.server is not None
            uri = self.server.create_database(side.name)
        place = Place(side.system, uri, str(folder))
        system = system_of(place)
        system.create()
        try:
            notes = play(place, self.workload)
            system.open()
            history, twins = history_of(system, notes)
        finally:
            system.close()
        report = checked(history, self.keep, side.name)
        result = judged(side, system.claims, system.told_by, notes, report, twins)
        self.results[side.name] = result
        return result


def checked(history: History, keep: Path | None, name: str) -> Report:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        write_history(keep / f"{name}.jsonl", history.transactions, history.versions)
    return check(history.transactions, history.versions, witnesses=WITNESSES)


def judged(side: Side, claims: Level, told_by: str, notes: Sequence[Note], report: Report, twins: int) -> Result:
    outcomes = Counter(note.outcome for note in notes)
    writes = Counter(note.outcome for note in notes if note.key is not None)
    holds = report.holds()
    for line in told(report):
        print(f"  {line}", flush=True)
    return Result(
        side=side.name,
        claims=claims.words,
        told_by=told_by,
        transactions=len(notes),
        committed=outcomes["ok"],
        failed=outcomes["failed"],
        unknown=outcomes["unknown"],
        writes_committed=writes["ok"],
        writes_failed=writes["failed"],
        versions=report.figures.versions,
        anomalies={kind.value: count for kind, count in report.counts.items() if count},
        ruled_out=[level.words for level in report.ruled_out()],
        keeps_its_promise=holds is not None and holds >= claims,
        keys_with_two_rows=twins,
        problems=dict(Counter(problem_kind(note.problem) for note in notes if note.problem is not None)),
        notes=list(report.notes),
    )


def problem_kind(problem: str) -> str:
    return problem.partition(":")[0]


def told(report: Report) -> Iterator[str]:
    """The report's sentences, with a few witnesses in all."""
    few = Report(report.anomalies[:WITNESSES], report.counts, report.tables, report.figures, report.notes)
    yield from sentences(few)


# One interleaving


@dataclass(frozen=True)
class Show:
    system: str
    play: Callable[[Place], tuple[list[Note], History]]
    words: str


SHOWS = {
    "pyiceberg-upsert": Show("pyiceberg", two_upserts, "Two clients upsert a key that is not there"),
    "frazil-upsert": Show("frazil", two_upserts, "The same with Frazil"),
    "pyiceberg-compaction": Show(
        "pyiceberg", compaction_over_delete, "Files are put together while a row of them is deleted, and another one"
    ),
    "frazil-compaction": Show("frazil", compaction_over_delete, "The same with Frazil's compaction"),
}


def show(name: str, keep: Path | None) -> int:
    """Play it, tell it, and say whether the checker named an anomaly."""
    chosen = SHOWS[name]
    print(f"{chosen.words}. Serializable isolation, the default.")
    with tempfile.TemporaryDirectory(prefix="frazil-isolation-") as folder:
        notes, history = chosen.play(sqlite_place(chosen.system, Path(folder) / "lake"))
    for note in notes:
        print(f"  {in_words(note)}")
    report = checked(history, keep, name)
    for line in sentences(report):
        print(line)
    return int(not report.is_clean)


def in_words(note: Note) -> str:
    if note.key is None:
        rows = ", ".join(f"{key} = {value}" for key, value in sorted(map(tuple, note.rows)))
        return f"{note.id} reads all rows: {rows}"
    read = "nothing" if not note.seen else ", ".join(map(str, note.seen))
    end = {"ok": "committed", "failed": "refused"}.get(note.outcome, note.outcome)
    why = "" if note.problem is None else f" ({note.problem.splitlines()[0]})"
    return f"{note.id} reads {read} in key {note.key} and puts {note.value} there: {end}{why}"


# Starting


def missing(sides: Sequence[Side]) -> list[str]:
    wanted = {module for side in sides for module in MODULES.get(side.system, ())}
    return sorted(module for module in wanted if importlib.util.find_spec(module) is None)


@contextmanager
def opened(sides: Sequence[Side], workload: Workload, keep: Path | None) -> Iterator[Bench]:
    # Lost races are what this is about.
    logging.disable(logging.CRITICAL)
    work = Path(tempfile.mkdtemp(prefix="frazil-isolation-"))
    server = PostgresServer(durable=True) if any(side.database == "postgres" for side in sides) else None
    try:
        yield Bench(work, workload, keep, server)
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(work, ignore_errors=True)


def table_of(results: Sequence[Result]) -> Iterator[str]:
    yield "| Side | Promises | Writes committed / refused | Versions | Found | Ruled out | Keys with two rows |"
    yield "|---|---|---|---|---|---|---|"
    for each in results:
        found = ", ".join(f"{kind} {count}" for kind, count in each.anomalies.items()) or "nothing"
        ruled_out = f"from {each.ruled_out[0]} on" if each.ruled_out else "–"
        verdict = found if each.keeps_its_promise else f"**{found}**"
        writes = f"{each.writes_committed} / {each.writes_failed}"
        cells = (each.side, each.claims, writes, each.versions, verdict, ruled_out, each.keys_with_two_rows)
        yield f"| {' | '.join(map(str, cells))} |"


def save(bench: Bench) -> None:
    RESULTS.mkdir(exist_ok=True)
    names = ("frazil", "pyiceberg", "deltalake", "duckdb", "pyspark")
    body = {
        "benchmark": "isolation",
        "machine": {"cpus": len(os.sched_getaffinity(0)), "python": platform.python_version()},
        "versions": {name: importlib.metadata.version(name) for name in names},
        "workload": asdict(bench.workload),
        # No figures in the sense of the other benchmarks: nothing here is a time.
        "figures": {},
        "sides": [asdict(result) for result in bench.results.values()],
    }
    (RESULTS / "isolation.json").write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")


def run_all(bench: Bench, sides: Sequence[Side]) -> bool:
    """Whether all of them ran; one that could not be run is said, and the others go on."""
    all_ran = True
    for side in sides:
        print(side.name, flush=True)
        try:
            result = bench.run(side)
        except Exception as problem:
            all_ran = False
            print(f"  did not run: {type(problem).__name__}: {problem}", flush=True)
            continue
        kept = "keeps" if result.keeps_its_promise else "DOES NOT KEEP"
        print(f"  It {kept} its promise ({result.claims}, {result.told_by}).", flush=True)
        if result.problems:
            print(f"  Problems: {result.problems}", flush=True)
    print()
    for line in table_of(list(bench.results.values())):
        print(line)
    return all_ran


def arguments_of() -> Any:
    usual = Workload()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE", help=", ".join(SIDES))
    parser.add_argument("--writers", type=int, default=usual.clients)
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="of each side")
    parser.add_argument("--keys", type=int, default=usual.keys, help="that a client chooses from at any time")
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--most", type=int, default=usual.most, help="transactions of one client")
    parser.add_argument("--keep", type=Path, help="a folder for the histories, which `frazil check` reads")
    parser.add_argument("--show", choices=SHOWS, help="play one interleaving and nothing else")
    return parser.parse_args()


def main() -> int:
    arguments = arguments_of()
    if arguments.show is not None:
        logging.disable(logging.CRITICAL)
        return show(arguments.show, arguments.keep)
    sides = [SIDES[name] for name in arguments.only]
    if lacking := missing(sides):
        sys.exit(
            f"Not installed: {', '.join(lacking)}. Only benchmarks need them: run `make isolation`, or "
            "`uv run --group bench python benchmarks/isolation.py`, or choose other sides with --only."
        )
    workload = Workload(arguments.writers, arguments.seconds, arguments.keys, arguments.seed, arguments.most)
    with opened(sides, workload, arguments.keep) as bench:
        all_ran = run_all(bench, sides)
        # A run of some sides or with other numbers is for looking at them.
        if all_ran and set(arguments.only) == set(SIDES) and workload == Workload():
            save(bench)
    ours = [result for result in bench.results.values() if result.side.startswith("frazil")]
    return int(not all(result.keeps_its_promise for result in ours))


if __name__ == "__main__":
    sys.exit(main())
