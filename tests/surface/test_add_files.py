"""Parquet files that others wrote become part of a table, in place."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import frazil

DDL = (
    "id bigint not null, name string, price decimal(10,2), ts timestamp, day date, place struct<x: int>, "
    "tags array<int>"
)
NOON = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
X: dict[str, Any] = {"x": pa.int32()}
COLUMNS: dict[str, Any] = {
    "id": pa.int64(),
    "name": pa.string(),
    "price": pa.decimal128(10, 2),
    "ts": pa.timestamp("us", "UTC"),
    "day": pa.date32(),
    "place": pa.struct(X),
    "tags": pa.list_(pa.int32()),
}
ARROW = pa.schema(COLUMNS)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        yield lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    return lake.create_table("s.t", DDL)


def row(number: int, **values: Any) -> dict[str, Any]:
    whole = {
        "id": number,
        "name": f"n{number}",
        "ts": NOON,
        "day": NOON.date(),
        "place": {"x": number},
        "tags": [number],
    }
    return {"price": None, **whole, **values}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes rows or a table into a file outside the lake."""

    def make(name: str, *rows: Any, **options: Any) -> str:
        found = rows[0] if isinstance(rows[0], pa.Table) else pa.Table.from_pylist(list(rows), ARROW)
        path = tmp_path / "elsewhere" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(found, path, **options)
        return str(path)

    return make


def by_id(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda each: int(each["id"]))


def test_files_are_added_in_place_and_read_by_frazil_and_pyiceberg(
    lake: frazil.Lake, table: frazil.Table, write: Callable[..., str]
) -> None:
    table.append([row(0)])
    one, two = write("one", row(1), row(2)), write("two", row(3, name=None))
    done = table.add_files([one, f"file://{two}"])
    assert (done.rows_inserted, done.files_added, done.changed) == (3, 2, True)
    wanted = [row(0), row(1), row(2), row(3, name=None)]
    assert by_id(table.scan().to_arrow()) == wanted
    assert by_id(lake.pyiceberg().load_table("s.t").scan().to_arrow()) == wanted
    assert {each.path for each in table.files()} >= {f"file://{one}", f"file://{two}"}
    assert "schema.name-mapping.default" in table.properties
    assert table.scan(where="id = 3").explain().count("1 to read") == 1, "bounds prune the other files"
    table.update({"name": "'new'"}, "id = 2")
    table.delete("id = 1", mode="merge-on-read")
    table.rename_column("name", "label")
    assert {each["id"]: each["label"] for each in by_id(table.scan().to_arrow())} == {0: "n0", 2: "new", 3: None}
    table.compact()
    assert os.path.exists(one)
    assert os.path.exists(two)
    snapshot = table.snapshot()
    assert snapshot is not None
    assert snapshot.summary["total-records"] == "3"


def test_a_file_is_in_the_table_once(lake: frazil.Lake, table: frazil.Table, write: Callable[..., str]) -> None:
    one, two = write("one", row(1)), write("two", row(2))
    with pytest.raises(frazil.InvalidInput, match="listed twice"):
        table.add_files([one, f"file://{one}"])
    first = table.add_files([one], commit_id="load-1")
    again = table.add_files([one], commit_id="load-1")
    assert (first.already_committed, again.already_committed) == (False, True)
    with pytest.raises(frazil.InvalidInput, match="another operation"):
        table.add_files([two], commit_id="load-1")
    with pytest.raises(frazil.InvalidInput, match=r"one\.parquet is in s\.t already"):
        table.add_files([two, one])
    tx = lake.transaction()
    tx.table("s.t").add_files([two])
    table.add_files([two])
    with pytest.raises(frazil.ConflictError, match="were added to 'main' by another writer"):
        tx.commit()
    assert table.scan().count() == 2
    assert os.path.exists(two), "a failure deletes no file that the write does not own"


def test_nothing_is_committed_and_no_file_deleted_by_a_dry_run(table: frazil.Table, write: Callable[..., str]) -> None:
    one = write("one", row(1), row(2))
    done = table.add_files([one], dry_run=True)
    assert (done.changed, done.rows_inserted) == (False, 2)
    assert (table.scan().count(), os.path.exists(one)) == (0, True)


def test_missing_columns_are_null_and_narrower_types_are_promoted(lake: frazil.Lake, write: Callable[..., str]) -> None:
    table = lake.create_table("s.w", "id bigint not null, x double, d decimal(20,2), more string")
    narrow = pa.table(
        {
            "d": pa.array([None, 5], pa.decimal128(5, 2)),
            "id": pa.array([1, 2], pa.int32()),
            "x": pa.array([1.5, 2.5], pa.float32()),
        }
    )
    table.add_files([write("narrow", narrow)])
    found = by_id(table.scan().to_arrow())
    assert [(each["id"], each["x"], each["more"]) for each in found] == [(1, 1.5, None), (2, 2.5, None)]
    assert table.scan(where="id = 2 and x > 2 and d = 5").count() == 1
    assert lake.pyiceberg().load_table("s.w").scan(row_filter="id = 2").to_arrow().num_rows == 1


def test_files_with_field_ids_need_no_name_mapping(lake: frazil.Lake, write: Callable[..., str]) -> None:
    table = lake.create_table("s.ids", "id bigint, name string")
    table.rename_column("name", "label")

    def with_ids(second: str) -> pa.Table:
        kinds: dict[str, Any] = {"id": pa.int64(), second: pa.string()}
        fields: list[pa.Field[Any]] = [
            pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})
            for number, (name, kind) in enumerate(kinds.items(), 1)
        ]
        return pa.table({"id": [1], second: ["x"]}, schema=pa.schema(fields))

    table.add_files([write("ids", with_ids("name"))])
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "label": "x"}]
    assert "schema.name-mapping.default" not in table.properties
    with pytest.raises(frazil.SchemaMismatch, match="field ids are those of another table"):
        table.add_files([write("foreign", with_ids("country"))])


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (pa.table({"id": [1], "extra": [1]}), r"bad\.parquet has the column 'extra', which the table lacks"),
        (pa.table({"name": ["x"]}), "lacks the column 'id', which the table requires"),
        (pa.table({"id": pa.array([1, None], pa.int64())}), "1 nulls in the column 'id'"),
        (pa.table({"id": ["1"]}), "has the type string, and the table has long"),
        (pa.table({"id": [1], "price": pa.array([1], pa.decimal128(9, 3))}), "'price'.*decimal"),
        (pa.table({"id": [1], "ts": pa.array([NOON], pa.timestamp("ms", "UTC"))}), "'ts'.*timestamp"),
        (pa.table({"id": [1], "ts": pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us"))}), "'ts'.*timestamp"),
        (pa.table({"id": [1], "place": pa.array([{"y": 1}])}), "column 'place.y', which the table lacks"),
        (pa.table({"id": [1], "tags": pa.array([["a"]])}), "'tags.element'"),
    ],
)
def test_files_that_do_not_fit_are_refused_whole(
    table: frazil.Table, write: Callable[..., str], rows: pa.Table, says: str
) -> None:
    location = table.metadata_location
    with pytest.raises(frazil.SchemaMismatch, match=says):
        table.add_files([write("good", row(1)), write("bad", rows)])
    assert table.metadata_location == location


def test_what_is_not_a_parquet_file_is_refused(table: frazil.Table, tmp_path: Path, write: Callable[..., str]) -> None:
    text = tmp_path / "text.parquet"
    text.write_text("no")
    old = pa.table({"id": [1], "ts": pa.array([NOON], pa.timestamp("us"))})
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: table.add_files([str(text)]), "text.parquet cannot be read as Parquet"),
        (lambda: table.add_files([str(tmp_path / "gone.parquet")]), "gone.parquet cannot be read"),
        (lambda: table.add_files("one.parquet"), "must be a list"),
        (lambda: table.add_files([3]), "3 is not the path"),  # type: ignore[list-item]
        (
            lambda: table.add_files([write("old", old, use_deprecated_int96_timestamps=True)]),
            r"old timestamps \(INT96\) in 'ts'",
        ),
    ]
    for call, says in calls:
        with pytest.raises((frazil.InvalidInput, frazil.SchemaMismatch), match=says):
            call()
    assert not table.add_files([]).changed


def test_the_footer_gives_the_partition(lake: frazil.Lake, write: Callable[..., str]) -> None:
    table = lake.create_table("s.p", DDL, partition_by=["name", "day(ts)", "bucket(4, id)", "truncate(10, price)"])
    later = NOON + dt.timedelta(hours=3)
    one = write("one", row(5, name="a", price=Decimal("12.01")), row(5, name="a", ts=later, price=Decimal("12.09")))
    table.append([row(5, name="a", price=Decimal("12.05"))])
    table.add_files([one])
    assert len(table.partitions()) == 1, "the same partition as that of the rows that were appended"
    assert table.scan(where="name = 'a' and ts >= '2026-11-01T14:00:00Z'").count() == 1
    nobody = write("null", row(5, name=None, price=None))
    table.add_files([nobody])
    assert table.scan(where="name is null").count() == 1
    assert lake.pyiceberg().load_table("s.p").scan(row_filter="name = 'a'").to_arrow().num_rows == 3
    for bad, says in (
        ([row(5, name="a"), row(5, name="b")], r"one partition of 'name'.*from 'a' to 'b'"),
        ([row(5, name="a"), row(5, name=None)], "'name' is null in 1 of its rows"),
        ([row(5, name="a"), row(5, name="a", ts=NOON + dt.timedelta(days=1))], "one partition of 'ts_day'"),
        ([row(5, name="a", price=1), row(6, name="a", price=1)], "one partition of 'id_bucket'"),
        ([pa.table({"id": [1]})], "lacks the column 'name'"),
    ):
        with pytest.raises(frazil.InvalidInput, match=says):
            table.add_files([write("bad", *bad)])


def test_files_without_rows_add_nothing(table: frazil.Table, write: Callable[..., str]) -> None:
    assert not table.add_files([write("empty", ARROW.empty_table())]).changed
