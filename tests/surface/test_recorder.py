"""Recording real writers and readers, and checking what they did against the tables' own histories."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil import cli, observe
from frazil.catalog._sql import TABLES, SqlStore
from frazil.commit import conflicts
from frazil.commit.checks import Check
from frazil.commit.context import Phase
from frazil.read.scan import Scan
from frazil.verify.checker import Kind, Level, Outcome, Read, Report, Transaction, Version, Write, check
from frazil.verify.checker.from_lake import versions_of
from frazil.verify.checker.history import History, read_history, with_versions
from frazil.verify.recording import record, recording, stop
from frazil.verify.recording.columns import Named, parse_named
from unit.checker_language import kinds

ROW_CHECKS = {
    Check.NO_ADDED_ROWS,
    Check.NO_REMOVED_ROWS,
    Check.NO_NEW_DELETE_FILES,
    Check.NO_NEW_DELETES,
    Check.ROW_OWNER,
}
VALUES = {"ns.r": ("id", "v"), "ns.s": ("id", "v")}
DDL = "id bigint not null, v bigint, secret string"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("ns")
        lake.create_table("ns.r", DDL, keys=["id"])
        lake.create_table("ns.s", DDL)
        yield lake


def history_of(lake: frazil.Lake, folder: Path) -> History:
    found = read_history(folder)
    named = {table: Named(*columns) for table, columns in found.columns.items()}
    return with_versions(found, [each for name in found.tables for each in versions_of(lake, name, named.get(name))])


def judged(history: History) -> Report:
    return check(history.transactions, history.versions)


def row(key: int, v: int) -> dict[str, Any]:
    return {"id": key, "v": v, "secret": "not for the log"}


class Worker:
    """One thread that does all kinds of things to two tables, at random."""

    def __init__(self, lake: frazil.Lake, seed: int, values: Iterator[int]) -> None:
        self.lake = lake
        self.chance = random.Random(seed)
        self.values = values
        self.r, self.s = lake.table("ns.r"), lake.table("ns.s")

    def run(self, steps: int) -> None:
        actions = (
            self.append, self.upsert, self.read, self.read_all, self.update, self.delete, self.compact, self.transact,
        )  # fmt: skip
        for _ in range(steps):
            with contextlib.suppress(frazil.CommitFailed):
                self.chance.choice(actions)(self.chance.randrange(4))

    def append(self, key: int) -> None:
        self.s.append([row(key, next(self.values))])

    def upsert(self, key: int) -> None:
        self.r.upsert([row(key, next(self.values))], mode=self.chance.choice(["equality", "position"]))

    def read(self, key: int) -> None:
        self.r.scan(f"id = {key}").to_arrow()

    def read_all(self, _key: int) -> None:
        self.s.scan(columns=["v", "id"]).to_arrow()

    def update(self, key: int) -> None:
        self.r.update({"v": next(self.values)}, where=f"id = {key}")

    def delete(self, key: int) -> None:
        self.r.delete(f"id = {key}", mode=self.chance.choice(["merge-on-read", "copy-on-write"]))

    def compact(self, _key: int) -> None:
        self.r.compact()

    def transact(self, key: int) -> None:
        with self.lake.transaction() as tx:
            tx.table("ns.s").scan().to_arrow()
            table = tx.table("ns.r")
            table.scan(f"id in ({key}, {(key + 1) % 4})").to_arrow()
            table.upsert([row((key + 1) % 4, next(self.values))])
            table.scan().to_arrow()


def run_threads(lake: frazil.Lake, folder: Path, threads: int = 4, steps: int = 15) -> History:
    # Each thread takes every n-th number: no value is written twice.
    with recording(folder, VALUES):
        workers = [
            threading.Thread(target=Worker(lake, seed, iter(range(seed, 10**6, threads))).run, args=(steps,))
            for seed in range(threads)
        ]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
    return history_of(lake, folder)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> History:
    """What four threads did."""
    folder = tmp_path_factory.mktemp("recorded")
    with frazil.connect(str(folder / "lake")) as lake:
        lake.create_namespace("ns")
        lake.create_table("ns.r", DDL, keys=["id"])
        lake.create_table("ns.s", DDL)
        return run_threads(lake, folder / "history")


def test_threads_are_strictly_serializable(recorded: History) -> None:
    report = judged(recorded)
    assert report.is_clean, report.anomalies
    assert report.notes == ()
    assert report.figures.committed > 30
    assert report.figures.edges > 20


def test_the_log_holds_what_was_done(recorded: History) -> None:
    ops = [op for each in recorded.transactions for op in each.ops]
    assert {op.kind for op in ops if isinstance(op, Write)} == {"put", "add", "remove"}
    assert any(op.whole and op.seen for op in ops if isinstance(op, Read))
    assert any(op.keys and op.seen for op in ops if isinstance(op, Read))
    several = [each for each in recorded.transactions if len({op.table for op in each.ops}) == 2]
    assert several


def landed(history: History) -> Version:
    told = {each.commit_id for each in history.transactions if each.outcome is Outcome.OK and each.ops}
    wrote = [each for each in history.versions if each.rows and set(each.commits) & told]
    return wrote[len(wrote) // 2]


def changed(history: History, old: Version, *new: Version) -> list[Version]:
    return [each for version in history.versions for each in (new if version is old else (version,))]


def test_a_dropped_commit_is_missed(recorded: History) -> None:
    victim = landed(recorded)
    report = check(recorded.transactions, changed(recorded, victim, replace(victim, commits=("somebody else",))))
    assert Kind.LOST_WRITE in kinds(report)
    assert report.holds(victim.table) is None


def test_dropped_rows_are_missed(recorded: History) -> None:
    victim = next(each for each in recorded.versions if each.table == "ns.s" and each.rows)
    report = check(recorded.transactions, changed(recorded, victim, replace(victim, rows={})))
    assert Kind.LOST_WRITE in kinds(report)


def test_a_commit_that_is_there_twice_is_found(recorded: History) -> None:
    victim = landed(recorded)
    again = replace(victim, id=-1, parent=victim.id)
    assert Kind.DUPLICATE in kinds(check(recorded.transactions, changed(recorded, victim, victim, again)))


def test_an_aborted_write_that_was_seen_is_found(recorded: History) -> None:
    read = next(
        (number, place, op)
        for number, each in enumerate(recorded.transactions)
        for place, op in enumerate(each.ops)
        if isinstance(op, Read) and op.table == "ns.s" and op.seen and not any(isinstance(x, Write) for x in each.ops)
    )
    number, place, op = read
    transactions = list(recorded.transactions)
    key = next(iter(op.seen or {}))
    lie = replace(op, seen={**(op.seen or {}), key: (*(op.seen or {})[key], -5)})
    ops = transactions[number].ops
    transactions[number] = replace(transactions[number], ops=(*ops[:place], lie, *ops[place + 1 :]))
    aborted = Transaction("X", "x", (Write("ns.s", "add", key, -5),), Outcome.FAILED, "x")
    assert Kind.G1A in kinds(check([*transactions, aborted], recorded.versions))


def test_nothing_is_recorded_unless_asked(lake: frazil.Lake, tmp_path: Path) -> None:
    assert observe.recorder is None
    assert type(lake.table("ns.r").scan()) is Scan
    with recording(tmp_path / "h", VALUES):
        assert type(lake.table("ns.r").scan()) is not Scan
        assert type(lake.table("ns.r").scan(limit=1)) is Scan
        with pytest.raises(frazil.InvalidInput):
            record(tmp_path / "other")
    assert observe.recorder is None
    assert type(lake.table("ns.r").scan()) is Scan


def test_a_recorded_scan_returns_what_a_scan_returns(lake: frazil.Lake, tmp_path: Path) -> None:
    table = lake.table("ns.s")
    table.append([row(1, 10), row(2, 20)])
    plain = table.scan()
    with recording(tmp_path / "h", VALUES):
        scan = table.scan()
        assert isinstance(scan, Scan)
        assert scan.to_arrow() == plain.to_arrow()
        assert scan.count() == 2
        assert scan.schema == plain.schema
        assert scan.snapshot_id == plain.snapshot_id
        assert pa.table(scan) == plain.to_arrow()


def test_only_named_columns_get_into_the_log(lake: frazil.Lake, tmp_path: Path) -> None:
    with recording(tmp_path / "h", {"ns.r": ("id", "v")}):
        lake.table("ns.r").upsert([row(1, 4711)])
        lake.table("ns.s").append([row(1, 4712)])
        lake.table("ns.r").scan("secret = 'not for the log'").to_arrow()
        lake.table("ns.r").scan("id = 1").to_arrow()
        lake.table("ns.s").scan("v = 4712").to_arrow()
    text = "".join(each.read_text() for each in (tmp_path / "h").iterdir())
    assert "not for the log" not in text
    assert "4712" not in text
    assert "4711" in text
    assert "a condition on secret" in text
    assert '"id = 1"' in text


def test_writes_are_recorded_as_they_change_keys(lake: frazil.Lake, tmp_path: Path) -> None:
    table = lake.table("ns.r")
    with recording(tmp_path / "h", VALUES):
        table.append([row(1, 10), row(2, 20), row(3, 30)])
        table.upsert([row(1, 11)])
        table.update({"v": 21}, where="id = 2", mode="merge-on-read")
        table.delete("v = 30", mode="copy-on-write")
        table.overwrite([row(2, 22)], where="id = 2")
        table.delete("id = 99")
        table.compact()
    history = history_of(lake, tmp_path / "h")
    told = [[(op.kind, op.key, op.value) for op in each.ops if isinstance(op, Write)] for each in history.transactions]
    assert told == [
        [("add", 1, 10), ("add", 2, 20), ("add", 3, 30)],
        [("put", 1, 11)],
        [("remove", 2, 20), ("add", 2, 21)],
        [("remove", 3, 30)],
        [("put", 2, 22)],
        [],
        [],
    ]
    # What is updated by key has read the key; upserts and overwrites by key do not care what it held.
    reads = [[op.keys for op in each.ops if isinstance(op, Read)] for each in history.transactions]
    assert reads == [[], [], [(2,)], [], [], [], []]
    assert judged(history).is_clean


def test_a_transaction_is_one_with_its_reads_and_writes_in_order(lake: frazil.Lake, tmp_path: Path) -> None:
    table = lake.table("ns.r")
    table.upsert([row(1, 10)])
    before = table.scan().snapshot_id
    with recording(tmp_path / "h", VALUES):
        with lake.transaction(commit_id="mine") as tx:
            mine = tx.table("ns.r")
            mine.scan("id = 1").to_arrow()
            mine.upsert([row(1, 11)])
            mine.scan("id = 1").to_arrow()
        gone = lake.transaction()
        gone.table("ns.r").upsert([row(1, 12)])
        gone.rollback()
        with lake.transaction() as nothing:
            nothing.table("ns.r").scan("id = 1").to_arrow()
    first, second, third = history_of(lake, tmp_path / "h").transactions
    assert (first.outcome, first.commit_id, first.isolation) == (Outcome.OK, "mine", "serializable")
    valued = [op for op in first.ops if isinstance(op, Write) or op.seen is not None]
    assert valued == [
        Read("ns.r", {1: (10,)}, (1,), version=before, filter="id = 1"),
        Write("ns.r", "put", 1, 11),
        Read("ns.r", {1: (11,)}, (1,), version=before, filter="id = 1"),
    ]
    assert second.outcome is Outcome.FAILED
    assert (third.outcome, third.commit_id) == (Outcome.OK, None)


def test_a_read_that_was_broken_off_tells_no_values(lake: frazil.Lake, tmp_path: Path) -> None:
    table = lake.table("ns.s")
    table.append([row(1, 1)])
    table.append([row(2, 2)])
    with recording(tmp_path / "h", VALUES):
        batches = table.scan().to_batches()
        next(batches)
        batches.close()  # type: ignore[attr-defined]
    (only,) = history_of(lake, tmp_path / "h").transactions
    assert [op.seen for op in only.ops if isinstance(op, Read)] == [None]


def test_writers_that_share_a_snapshot_are_found_in_it(lake: frazil.Lake, tmp_path: Path) -> None:
    table = lake.table("ns.s")

    def write(number: int) -> None:
        for step in range(8):
            table.append([row(1, number * 100 + step)])

    with recording(tmp_path / "h", VALUES):
        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        table.scan("id = 1").to_arrow()
    history = history_of(lake, tmp_path / "h")
    report = judged(history)
    assert report.is_clean, report.anomalies
    assert report.figures.committed == 64 + 2
    shared = max(history.versions, key=lambda each: len(each.commits))
    assert len(shared.commits) > 1
    # One of them less, and the others are still there.
    less = check(history.transactions, changed(history, shared, replace(shared, commits=shared.commits[1:])))
    assert less.counts[Kind.LOST_WRITE] >= 1
    assert less.holds("ns.s") is None


def skew(lake: frazil.Lake, isolation: str) -> None:
    """Two transactions that each read what the other one writes."""
    one, other = lake.transaction(isolation=isolation), lake.transaction(isolation=isolation)
    for tx in (one, other):
        tx.table("ns.r").scan("id in (1, 2)").to_arrow()
    one.table("ns.r").upsert([row(1, 100)])
    other.table("ns.r").upsert([row(2, 200)])
    one.commit()
    other.commit()


def test_write_skew_is_found_where_it_is_let_through(lake: frazil.Lake, tmp_path: Path) -> None:
    with recording(tmp_path / "h", VALUES):
        lake.table("ns.r").upsert([row(1, 1), row(2, 2)])
        skew(lake, "snapshot")
    report = judged(history_of(lake, tmp_path / "h"))
    assert kinds(report) == {Kind.WRITE_SKEW}
    assert report.ruled_out() == (Level.SERIALIZABLE, Level.STRICT_SERIALIZABLE)


def test_write_skew_is_refused_at_serializable(lake: frazil.Lake, tmp_path: Path) -> None:
    with recording(tmp_path / "h", VALUES):
        lake.table("ns.r").upsert([row(1, 1), row(2, 2)])
        with pytest.raises(frazil.ConflictError):
            skew(lake, "serializable")
    history = history_of(lake, tmp_path / "h")
    assert [each.outcome for each in history.transactions].count(Outcome.FAILED) == 1
    assert judged(history).is_clean


@pytest.mark.parametrize("is_atomic", [True, False])
def test_a_catalog_that_is_not_atomic_loses_a_write_that_was_acknowledged(
    lake: frazil.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_atomic: bool
) -> None:
    table = lake.table("ns.r")
    swap = SqlStore._swap

    def looks_and_then_writes(self: SqlStore, db: Any, what: Any) -> Any:
        # Whatever the pointer is by now, it is set to what the writer has read.
        (pointer,) = what.pointers
        sql = f"UPDATE {TABLES} SET metadata_location = ? WHERE table_name = ?"
        db.execute(sql, (pointer.expected, pointer.ident.name))
        return swap(self, db, what)

    if not is_atomic:
        monkeypatch.setattr(SqlStore, "_swap", looks_and_then_writes)
    rivals = iter([row(2, 2)])

    def overtaken(phase: Phase, _attempt: int) -> None:
        for rival in rivals if phase is Phase.PREPARED else ():
            table.append([rival])

    with recording(tmp_path / "h", VALUES):
        table.append([row(1, 1)], on_phase=overtaken)
        table.scan().to_arrow()
    report = judged(history_of(lake, tmp_path / "h"))
    assert report.is_clean == is_atomic
    assert (Kind.LOST_WRITE in kinds(report)) == (not is_atomic)
    assert (report.holds("ns.r") is None) == (not is_atomic)


Between = tuple[str, str, Kind]
BETWEEN: dict[str, Between] = {
    "update": ("update", "equality", Kind.LOST_UPDATE),
    "overwrite": ("overwrite", "equality", Kind.RESURRECTED),
    "position": ("position", "equality", Kind.RESURRECTED),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_a_missing_check_lets_through_is_found(
    name: str, lake: frazil.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that another one of the same key overtakes: refused, and found where nothing refuses it."""
    verb, rival, kind = BETWEEN[name]
    table = lake.table("ns.r")
    # A position upsert looks for old rows: of a key that is not there it finds none.
    table.append([row(2, 2)] if name == "position" else [row(1, 1), row(2, 2)])

    def overtaken(value: int) -> None:
        done: list[int] = []

        def phase(_phase: object, _attempt: int) -> None:
            if not done:
                done.append(1)
                table.upsert([row(1, value + 1)], mode=rival)  # type: ignore[arg-type]

        how: dict[str, Any] = {"on_phase": phase, "on_conflict": "abort"}
        if verb == "update":
            table.update({"v": value}, where="id = 1", **how)
        elif verb == "overwrite":
            table.overwrite([row(1, value)], where="id = 1", **how)
        else:
            table.upsert([row(1, value)], mode="position", **how)

    with recording(tmp_path / "right", VALUES), pytest.raises(frazil.ConflictError):
        overtaken(10)
    assert judged(history_of(lake, tmp_path / "right")).is_clean
    table.delete("id = 1")
    if name != "position":
        table.append([row(1, 1)])
    for key, checks in conflicts.REQUIRED.items():
        monkeypatch.setitem(conflicts.REQUIRED, key, tuple(each for each in checks if each not in ROW_CHECKS))
    with recording(tmp_path / "wrong", VALUES):
        overtaken(20)
    report = judged(history_of(lake, tmp_path / "wrong"))
    assert kinds(report) == {kind}, report.anomalies


def do(table: frazil.Table, verb: str, value: int, **options: Any) -> None:
    match verb:
        case "append":
            table.append([row(1, value)], **options)
        case "equality" | "position":
            table.upsert([row(1, value)], mode=verb, **options)
        case "update":
            table.update({"v": value}, where="id = 1", mode="merge-on-read", **options)
        case "update by value":
            table.update({"v": value}, where="v = 1", **options)
        case "delete":
            table.delete("id = 1", **options)
        case "delete by value":
            table.delete("v = 1", mode="merge-on-read", **options)
        case "overwrite":
            table.overwrite([row(1, value)], where="id = 1", **options)
        case "compact":
            table.compact(**options)


VERBS = (
    "append", "equality", "position", "update", "update by value", "delete", "delete by value", "overwrite", "compact",
)  # fmt: skip


@pytest.mark.parametrize("on_conflict", ["abort", "redo"])
@pytest.mark.parametrize("second", VERBS)
def test_one_write_that_another_one_overtakes_is_serializable_or_refused(
    second: str, on_conflict: str, tmp_path: Path
) -> None:
    refused = 0
    for first in VERBS:
        folder = tmp_path / first
        with frazil.connect("memory://") as lake, recording(folder, VALUES):
            lake.create_namespace("ns")
            table = lake.create_table("ns.r", DDL, keys=["id"])
            table.append([row(1, 1), row(2, 2)])
            rival = iter([first])

            def overtake(
                _phase: object, _attempt: int, table: frazil.Table = table, rival: Iterator[str] = rival
            ) -> None:
                for verb in rival:
                    do(table, verb, 10)

            try:
                do(table, second, 20, on_phase=overtake, on_conflict=on_conflict)
            except frazil.ConflictError:
                refused += 1
            table.scan().to_arrow()
            report = judged(history_of(lake, folder))
        assert report.is_clean, (first, second, report.anomalies)
    # An append is refused by a delete of its rows; upserts by key and compactions are never refused.
    assert bool(refused) == (second == "append" or (on_conflict == "abort" and second not in ("equality", "compact")))


def test_versions_that_were_rolled_back_are_no_losses(lake: frazil.Lake, tmp_path: Path) -> None:
    table = lake.table("ns.s")
    with recording(tmp_path / "h", VALUES):
        first = table.append([row(1, 1)])
        table.append([row(1, 2)])
        assert first.snapshot_id is not None
        table.rollback_to(first.snapshot_id)
        table.append([row(1, 3)])
    report = judged(history_of(lake, tmp_path / "h"))
    assert report.is_clean, report.anomalies
    assert any("rolled back versions" in each for each in report.notes)


def test_a_branch_has_a_history_of_its_own(lake: frazil.Lake, tmp_path: Path) -> None:
    table = lake.table("ns.s")
    with recording(tmp_path / "h", VALUES):
        table.append([row(1, 1)])
        table.create_branch("audit")
        table.append([row(2, 2)], branch="audit")
        table.append([row(3, 3)])
        table.scan(ref="audit").to_arrow()
    history = history_of(lake, tmp_path / "h")
    assert history.tables == ("ns.s", "ns.s@audit")
    report = judged(history)
    assert report.is_clean, report.anomalies
    # It begins with rows that were written to main.
    assert any("ns.s@audit has unrecorded changes" in each for each in report.notes)


PROGRAM = """
import sys, frazil
place, number = sys.argv[1], int(sys.argv[2])
table = frazil.connect(place).table("ns.r")
for step in range(8):
    table.scan("id = 1").to_arrow()
    table.upsert([{"id": step % 3, "v": number * 1000 + step, "secret": "x"}])
"""


def test_processes_are_recorded_by_their_environment(lake: frazil.Lake, tmp_path: Path) -> None:
    folder = tmp_path / "h"
    environment = {**os.environ, "FRAZIL_RECORD": str(folder), "FRAZIL_RECORD_VALUES": "ns.r=id:v"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "lake")]
    started = [subprocess.Popen([*command, str(number)], env=environment) for number in (1, 2)]
    assert [each.wait() for each in started] == [0, 0]
    assert len(list(folder.iterdir())) == 2
    history = history_of(lake, folder)
    assert len({each.process for each in history.transactions}) == 2
    report = judged(history)
    assert report.is_clean, report.anomalies
    assert report.figures.writes == 16


def test_a_killed_call_has_no_outcome_and_the_table_decides(lake: frazil.Lake, tmp_path: Path) -> None:
    table = lake.table("ns.r")

    def die(at: str) -> None:
        def phase(phase: object, _attempt: int) -> None:
            if phase == at:
                os.kill(os.getpid(), signal.SIGKILL)

        child = os.fork()
        if not child:
            try:
                table.upsert([row(1, len(at))], on_phase=phase)
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL

    with recording(tmp_path / "h", VALUES):
        table.upsert([row(1, 1)])
        die("prepared")
        die("swapped")
        table.scan("id = 1").to_arrow()
    history = history_of(lake, tmp_path / "h")
    assert [each.outcome for each in history.transactions].count(Outcome.UNKNOWN) == 2
    report = judged(history)
    assert report.is_clean, report.anomalies
    # A call that died after the swap has landed, one that died before it has not.
    assert (report.figures.unknown_landed, report.figures.unknown_absent) == (1, 1)


def test_the_command_reads_the_versions_from_the_lake(
    lake: frazil.Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with recording(tmp_path / "h", VALUES):
        lake.table("ns.s").append([row(1, 1)])
        lake.table("ns.s").scan().to_arrow()
        skew(lake, "snapshot")
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", str(tmp_path / "h"), "--lake", str(tmp_path / "lake"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code == 1
    assert found["counts"] == {"write skew": 1}
    assert found["tables"]["ns.s"] == {"holds": "strict serializable", "ruled_out": []}
    assert found["notes"] == []


def test_columns_are_named_by_text_or_by_tuples() -> None:
    assert parse_named("a.b=id:v, a.c=x+y:z") == {"a.b": Named(("id",), "v"), "a.c": Named(("x", "y"), "z")}
    assert parse_named({"a.b": (["x", "y"], "z")}) == {"a.b": Named(("x", "y"), "z")}
    with pytest.raises(frazil.InvalidInput):
        parse_named("a.b=id")


def test_a_forked_child_has_a_file_of_its_own(lake: frazil.Lake, tmp_path: Path) -> None:
    table = lake.table("ns.s")
    with recording(tmp_path / "h", VALUES):
        table.append([row(1, 1)])
        child = os.fork()
        if not child:
            try:
                table.append([row(1, 2)])
            finally:
                stop()
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        table.append([row(1, 3)])
    assert len(list((tmp_path / "h").iterdir())) == 2
    history = history_of(lake, tmp_path / "h")
    assert len(history.transactions) == 3
    assert judged(history).is_clean
