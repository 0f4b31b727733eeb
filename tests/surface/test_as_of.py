"""The whole lake at a time, and the history of all its tables (rule P41)."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.commit.context import Phase
from frazil.model import Ident
from frazil.transaction import Course, Transaction

DDL = "id bigint, v bigint"
MS = dt.timedelta(milliseconds=1)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    if request.param == "postgres":
        uri, warehouse = request.getfixturevalue("postgres_uri"), str(tmp_path / "warehouse")
    else:
        uri, warehouse = "memory://" if request.param == "memory" else str(tmp_path / "lake"), None
    with frazil.connect(uri, warehouse=warehouse, app="nightly") as lake:
        lake.create_namespace("s")
        lake.create_table("s.a", DDL)
        lake.create_table("s.b", DDL)
        yield lake


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        yield lake


def row(key: int) -> dict[str, int]:
    return {"id": key, "v": key}


def ids(snapshot: frazil.Lake | Any, name: str) -> list[int]:
    return sorted(snapshot.table(name).scan().to_arrow()["id"].to_pylist())


def next_ms(lake: frazil.Lake) -> None:
    """Until the catalog's clock has moved on, so that the next commit has a time of its own."""
    newest = lake.history(limit=1)[0].committed_at
    while dt.datetime.now(dt.UTC) - newest < 2 * MS:
        pass


def last(lake: frazil.Lake) -> dt.datetime:
    """The time of the newest commit."""
    at = lake.history(limit=1)[0].committed_at
    next_ms(lake)
    return at


def test_p41_the_lake_is_read_as_it_was_after_each_commit(lake: frazil.Lake) -> None:
    empty = last(lake)
    lake.table("s.a").append([row(1)])
    one = last(lake)
    with lake.transaction() as tx:
        tx.table("s.a").append([row(2)])
        tx.table("s.b").append([row(2)])
    both = last(lake)
    lake.table("s.a").delete("id = 1")
    for as_of, a, b in ((empty, [], []), (one, [1], []), (both, [1, 2], [2]), (both - MS, [1], [])):
        then = lake.snapshot(as_of=as_of)
        assert (ids(then, "s.a"), ids(then, "s.b")) == (a, b)
    text, number = both.isoformat(), int(both.timestamp() * 1000)
    assert [ids(lake.snapshot(as_of=each), "s.a") for each in (text, number)] == [[1, 2], [1, 2]]
    assert ids(lake.snapshot(), "s.a") == [2]


def test_p41_names_are_those_of_the_time(lake: frazil.Lake) -> None:
    lake.table("s.b").append([row(1)])
    before = last(lake)
    lake.rename_table("s.b", "s.c")
    renamed = last(lake)
    lake.drop_table("s.a")
    dropped = last(lake)
    lake.create_table("s.a", "other string")
    made = last(lake)
    names = [lake.snapshot(as_of=each).tables() for each in (before, renamed, dropped, made)]
    assert names == [["s.a", "s.b"], ["s.a", "s.c"], ["s.c"], ["s.a", "s.c"]]
    assert ids(lake.snapshot(as_of=before), "s.b") == ids(lake.snapshot(as_of=renamed), "s.c") == [1]
    assert lake.snapshot(as_of=dropped - MS).table("s.a").schema.column_names == ["id", "v"]
    assert lake.snapshot(as_of=made).table("s.a").schema.column_names == ["other"]
    with pytest.raises(frazil.NoSuchTable, match=r"There was no table s\.b at "):
        lake.snapshot(as_of=renamed).table("s.b").scan()
    assert lake.snapshot().tables() == ["s.a", "s.c"]


def test_p41_the_history_has_every_commit_once(lake: frazil.Lake) -> None:
    append = lake.table("s.a").append([row(1)], commit_id="first")
    with lake.transaction(commit_id="both") as tx:
        tx.table("s.b").append([row(2)])
        tx.table("s.a").delete("id = 1")
    assert isinstance(tx.result, frazil.TransactionCommit)
    lake.table("s.a").add_column("w", "int")
    lake.rename_table("s.b", "s.c")
    lake.drop_table("s.a")
    made, _, first, both, column, rename, drop = lake.history()
    assert (made.verb, made.tables[0].table, made.tables[0].action) == ("create", "s.a", "create")
    assert (first.verb, first.commit_id, first.app) == ("append", "first", "nightly")
    assert first.tables[0].snapshot_ids == (append.snapshot_id,)
    assert [each.commit_id for each in first.tables[0].commits] == ["first"]
    assert (both.verb, both.commit_id, both.app) == ("transaction", "both", "nightly")
    changed = {each.table: each.snapshot_ids for each in both.tables}
    assert changed == {name: (commit.snapshot_id,) for name, commit in tx.result.tables.items()}
    assert (column.verb, column.tables[0].snapshot_ids) == ("add schema", ())
    assert (rename.verb, rename.tables[0].table, rename.tables[0].renamed_from) == ("rename", "s.c", "s.b")
    assert (drop.verb, drop.tables[0].metadata_location) == ("drop", None)
    times = [each.committed_at for each in lake.history()]
    assert times == sorted(times)
    assert lake.history(limit=2) == [rename, drop]
    assert lake.history(limit=0) == []
    with pytest.raises(frazil.InvalidInput, match="limit must be a number"):
        lake.history(limit=-1)


def test_p41_at_no_phase_of_a_commit_is_half_of_it_there(lake: frazil.Lake) -> None:
    """A reader asks for the present at every phase of a transaction over two tables, and for the same times again."""
    seen: dict[tuple[Phase, int], tuple[list[int], list[int]]] = {}

    def both(as_of: int) -> tuple[list[int], list[int]]:
        then = lake.snapshot(as_of=as_of)
        return ids(then, "s.a"), ids(then, "s.b")

    def look(phase: Phase, _attempt: int) -> None:
        at = lake.catalog.load(Ident.parse("s.a")).now_ms
        seen[phase, at] = both(at)

    course = Course(before_pin=lambda _ident: None, on_phase=look, is_named=True)
    with Transaction(lake, isolation="serializable", retry=None, commit_id=None, course=course) as tx:
        tx.table("s.a").append([row(1)])
        tx.table("s.b").append([row(1)])
    assert {phase for phase, _ in seen} >= {Phase.HEAD_READ, Phase.TABLE_PREPARED, Phase.PREPARED, Phase.SWAPPED}
    for (phase, at), found in seen.items():
        assert found == (([1], [1]) if phase is Phase.SWAPPED else ([], []))
        assert both(at) == found


def test_the_tables_of_a_time_can_only_be_read(lake: frazil.Lake) -> None:
    lake.table("s.a").append([row(1)])
    then = lake.snapshot(as_of=last(lake))
    with pytest.raises(frazil.InvalidInput, match="can only be read"):
        then.table("s.a").append([row(2)])
    lake.table("s.a").append([row(2)])
    assert ids(then, "s.a") == [1], "it stays as it is"


def test_times_that_cannot_be_answered_are_refused(lake: frazil.Lake) -> None:
    first = lake.history()[0].committed_at
    refused: list[tuple[object, str]] = [
        (first - MS, "begins later. It begins at"),
        ("2126-01-01T00:00:00Z", "lies in the future"),
        (dt.datetime(2026, 1, 1), "names no time zone"),  # noqa: DTZ001 - what is refused
        (True, "is not a time"),
    ]
    for as_of, words in refused:
        with pytest.raises(frazil.InvalidInput, match=words):
            lake.snapshot(as_of=as_of)  # type: ignore[arg-type]
    with pytest.raises(frazil.InvalidInput) as same:
        lake.table("s.a").scan(as_of=dt.datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(frazil.InvalidInput) as own:
        lake.snapshot(as_of=dt.datetime(2026, 1, 1))  # noqa: DTZ001
    assert str(own.value) == str(same.value)


def test_sql_as_of_is_for_queries(lake: frazil.Lake) -> None:
    for text in ("DELETE FROM s.a", "INSERT INTO s.a VALUES (1, 1)", "DROP TABLE s.a", "SHOW TABLES IN s"):
        with pytest.raises(frazil.InvalidInput, match=rf"as_of belongs to queries, and {text.split()[0]} is not one"):
            lake.sql(text, as_of="2026-11-01T00:00:00Z")
    with pytest.raises(frazil.InvalidInput, match="and INSERT is not one"):
        lake.sql("WITH x AS (SELECT 1) INSERT INTO s.a SELECT * FROM x", as_of="2026-11-01T00:00:00Z")
    assert lake.exists("s.a")


def test_expired_versions_are_refused(embedded: frazil.Lake) -> None:
    lake = embedded
    table = lake.create_table("s.a", DDL)
    table.append([row(1)])
    expired = last(lake)
    assert ids(lake.snapshot(as_of=expired), "s.a") == [1]
    table.overwrite([row(2)], where="true")
    kept = last(lake)
    table.expire_snapshots(older_than=dt.datetime.now(dt.UTC), retain_last=1)
    with pytest.raises(frazil.InvalidInput, match=r"was current at .* has expired. Its snapshot \d+ has expired"):
        ids(lake.snapshot(as_of=expired), "s.a")
    assert ids(lake.snapshot(as_of=kept), "s.a") == [2]
    path = lake.history()[1].tables[0].metadata_location
    assert path is not None
    os.remove(path.removeprefix("file://"))
    words = r"was current at .* has expired. The metadata of the table"
    with frazil.connect(lake.uri) as again, pytest.raises(frazil.InvalidInput, match=words):
        ids(again.snapshot(as_of=expired), "s.a")


# Commits of other engines, on the same rows


def foreign(lake: frazil.Lake, name: str) -> Any:
    return lake.pyiceberg().load_table(name)


def arrow(key: int) -> pa.Table:
    return pa.table({"id": pa.array([key], pa.int64()), "v": pa.array([key], pa.int64())})


def test_commits_of_pyiceberg_are_placed_by_their_own_times(embedded: frazil.Lake) -> None:
    lake = embedded
    lake.create_table("s.a", DDL).append([row(1)])
    ours = last(lake)
    foreign(lake, "s.a").append(arrow(2))
    theirs = written(lake, "s.a")
    foreign(lake, "s.a").append(arrow(3))
    again = written(lake, "s.a")
    for as_of, found in ((ours, [1]), (theirs - MS, [1]), (theirs, [1, 2]), (again - MS, [1, 2]), (again, [1, 2, 3])):
        assert ids(lake.snapshot(as_of=as_of), "s.a") == found
    lake.table("s.a").append([row(4)])
    after = last(lake)
    for as_of, found in (
        (ours, [1]),
        (theirs, [1, 2]),
        (again, [1, 2, 3]),
        (after - MS, [1, 2, 3]),
        (after, [1, 2, 3, 4]),
    ):
        assert ids(lake.snapshot(as_of=as_of), "s.a") == found
    assert len(lake.history()) == 3, "only Frazil's commits are in it"


def written(lake: frazil.Lake, name: str) -> dt.datetime:
    """The time in the newest metadata of a table; the present is later."""
    ms = lake.catalog.load(Ident.parse(name)).metadata.last_updated_ms
    at = dt.datetime.fromtimestamp(ms / 1000, tz=dt.UTC)
    while dt.datetime.now(dt.UTC) - at < 2 * MS:
        pass
    return at


def test_tables_of_pyiceberg_are_found_and_those_it_removed_are_not_guessed(embedded: frazil.Lake) -> None:
    lake = embedded
    lake.create_table("s.a", DDL).append([row(1)])
    ours = last(lake)
    lake.pyiceberg().create_table("s.theirs", schema=arrow(1).schema).append(arrow(7))
    theirs = written(lake, "s.theirs")
    assert lake.snapshot(as_of=ours).tables() == ["s.a"]
    assert lake.snapshot(as_of=theirs).tables() == ["s.a", "s.theirs"]
    assert ids(lake.snapshot(as_of=theirs), "s.theirs") == [7]
    lake.pyiceberg().drop_table("s.a")
    with pytest.raises(frazil.InvalidInput, match=r"not known whether there was a table s\.a at .*Another engine"):
        ids(lake.snapshot(as_of=ours), "s.a")
    assert lake.snapshot(as_of=ours).tables() == []


def test_a_catalog_without_an_order_refuses(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/theirs.db"}
    with frazil.connect("pyiceberg:other", warehouse=(tmp_path / "wh").as_uri(), properties=properties) as lake:
        lake.create_namespace("s")
        lake.create_table("s.a", DDL)
        with pytest.raises(frazil.Unsupported, match=r"cannot read the whole lake.*table\.scan\(as_of=…\)"):
            lake.snapshot(as_of=dt.datetime.now(dt.UTC))
        with pytest.raises(frazil.Unsupported, match="does not record the order of all commits"):
            lake.history()
        assert lake.snapshot().tables() == ["s.a"]
