"""Recording transactions over several tables and readers of one instant, and checking them across the tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import frazil
from frazil.model import Ident
from frazil.verify.checker import Kind, Level, Outcome, Read, Report, Version, Write, check
from frazil.verify.checker.from_lake import versions_of
from frazil.verify.checker.history import History, read_history, with_versions
from frazil.verify.recording import recording
from frazil.verify.recording.columns import Named
from unit.checker_language import kinds

R, S = Ident(("ns",), "r"), Ident(("ns",), "s")
VALUES = {str(R): ("id", "v"), str(S): ("id", "v")}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("ns")
        for ident in (R, S):
            lake.create_table(str(ident), "id bigint not null, v bigint", keys=["id"])
        yield lake


def put(tx: frazil.Transaction | frazil.Lake, ident: Ident, v: int) -> None:
    tx.table(str(ident)).upsert([{"id": 1, "v": v}])


def put_both(lake: frazil.Lake, v: int) -> None:
    with lake.transaction(commit_id=f"both-{v}") as tx:
        put(tx, R, v)
        put(tx, S, v + 1)


def history_of(lake: frazil.Lake, folder: Path) -> History:
    found = read_history(folder)
    named = {table: Named(*columns) for table, columns in found.columns.items()}
    return with_versions(found, [each for name in found.tables for each in versions_of(lake, name, named.get(name))])


def judged(history: History) -> Report:
    return check(history.transactions, history.versions)


def read_both(lake: frazil.Lake) -> None:
    instant = lake.snapshot()
    for ident in (R, S):
        instant.table(str(ident)).scan("id = 1").to_arrow()


def test_a_transaction_over_two_tables_is_one(lake: frazil.Lake, tmp_path: Path) -> None:
    with recording(tmp_path / "h", VALUES):
        put_both(lake, 10)
        put_both(lake, 20)
    history = history_of(lake, tmp_path / "h")
    assert [each.commit_id for each in history.transactions] == ["both-10", "both-20"]
    for v, each in zip((10, 20), history.transactions, strict=True):
        assert each.outcome is Outcome.OK
        assert [op for op in each.ops if isinstance(op, Write)] == [
            Write(str(R), "put", 1, v),
            Write(str(S), "put", 1, v + 1),
        ]
    assert [each.commits for each in history.versions] == [("both-10",), ("both-20",)] * 2
    assert judged(history).is_clean


def test_a_commit_that_one_of_its_tables_lacks_is_missed(lake: frazil.Lake, tmp_path: Path) -> None:
    with recording(tmp_path / "h", VALUES):
        put_both(lake, 10)
    history = history_of(lake, tmp_path / "h")
    report = check(history.transactions, [each for each in history.versions if each.table == str(R)])
    assert kinds(report) == set()  # the versions of the other table are not known
    (version,) = (each for each in history.versions if each.table == str(S))
    other = [each for each in history.versions if each.table == str(R)]
    report = check(history.transactions, [*other, Version(str(S), version.id, ("of another",))])
    assert kinds(report) == {Kind.LOST_WRITE}
    assert report.anomalies[0].tables == (str(S),)


def test_reads_at_one_instant_are_one_transaction_of_any_age(lake: frazil.Lake, tmp_path: Path) -> None:
    with recording(tmp_path / "h", VALUES):
        put_both(lake, 10)
        instant = lake.snapshot()
        put_both(lake, 20)
        for ident in (S, R):
            instant.table(str(ident)).scan("id = 1").to_arrow()
        read_both(lake)
    history = history_of(lake, tmp_path / "h")
    readers = [each for each in history.transactions if each.commit_id is None]
    assert [[op.table for op in each.ops if isinstance(op, Read) and op.seen] for each in readers] == [
        [str(S), str(R)],
        [str(R), str(S)],
    ]
    assert judged(history).is_clean


def test_half_of_a_commit_at_one_instant_is_found(
    lake: frazil.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording(tmp_path / "h", VALUES):
        put_both(lake, 10)
        before = lake.catalog.instant()
        assert before is not None
        put_both(lake, 20)
        after = lake.catalog.instant()
        assert after is not None
        # A catalog that does not read all pointers at one moment.
        monkeypatch.setattr(lake.catalog, "instant", lambda: {R: after[R], S: before[S]})
        read_both(lake)
        monkeypatch.undo()
    report = judged(history_of(lake, tmp_path / "h"))
    assert kinds(report) == {Kind.G_SINGLE}
    assert report.anomalies[0].tables == (str(R), str(S))
    assert report.holds(str(R)) is report.holds(str(S)) is Level.STRICT_SERIALIZABLE
    assert report.holds() is Level.READ_COMMITTED


def skew(lake: frazil.Lake, isolation: str) -> None:
    one, other = lake.transaction(isolation=isolation), lake.transaction(isolation=isolation)
    one.table(str(R)).scan("id = 1").to_arrow()
    other.table(str(S)).scan("id = 1").to_arrow()
    put(one, S, 100)
    put(other, R, 200)
    one.commit()
    other.commit()


def test_write_skew_over_two_tables_is_found_where_it_is_let_through(lake: frazil.Lake, tmp_path: Path) -> None:
    with recording(tmp_path / "h", VALUES):
        put_both(lake, 10)
        skew(lake, "snapshot")
    report = judged(history_of(lake, tmp_path / "h"))
    assert kinds(report) == {Kind.WRITE_SKEW}
    assert report.anomalies[0].tables == (str(R), str(S))
    assert report.ruled_out() == (Level.SERIALIZABLE, Level.STRICT_SERIALIZABLE)


def test_write_skew_over_two_tables_is_refused_at_serializable(lake: frazil.Lake, tmp_path: Path) -> None:
    with recording(tmp_path / "h", VALUES):
        put_both(lake, 10)
        with pytest.raises(frazil.ConflictError):
            skew(lake, "serializable")
    history = history_of(lake, tmp_path / "h")
    assert [each.outcome for each in history.transactions].count(Outcome.FAILED) == 1
    assert judged(history).is_clean
