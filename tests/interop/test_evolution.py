"""Schemas that changed under the data, in either engine, and files that carry no field ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, FloatType, IntegerType, LongType, NestedField, StringType, StructType

from frazil.table.table import Table
from interop.canonical import canonical, in_order
from interop.conftest import Place, ids
from interop.iceberg_java import JavaTable
from interop.samples import arrow

pytestmark = pytest.mark.interop

START = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "count", IntegerType()),
    NestedField(3, "ratio", FloatType()),
    NestedField(4, "price", DecimalType(5, 2)),
    NestedField(5, "name", StringType()),
    NestedField(6, "note", StringType()),
    NestedField(7, "place", StructType(NestedField(8, "city", StringType()), NestedField(9, "zip", IntegerType()))),
)


def _start_row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "count": number,
        "ratio": 0.1,
        "price": "1.25",
        "name": f"n{number}",
        "note": "old",
        "place": {"city": "Riga", "zip": number},
    }


def _check_same_rows(table: JavaTable, events: Table, count: int) -> list[Any]:
    ours = in_order(canonical(events.scan().to_arrow(), events.schema), "id")
    assert ours == in_order(table.rows(), "id")
    assert len(ours) == count
    return ours


def test_a_table_that_java_renamed_dropped_added_and_widened_reads_the_same(place: Place) -> None:
    catalog = place.iceberg_java()
    catalog.create_namespace("shop")
    table = catalog.create("shop.moving", START)
    table.append([_start_row(1)])
    before = table.head()
    table.update_schema(
        ("rename", "name", "title"),
        ("drop", "note"),
        ("widen", "count", "long"),
        ("widen", "ratio", "double"),
        ("widen", "price", "decimal(9, 2)"),
        ("rename", "place.city", "town"),
    )
    # A name that comes back is another column: old files have nothing for it.
    table.update_schema(("add", "name", "int"), ("add", "note", "string"))
    with place.lake() as lake:
        events = lake.table("shop.moving")
        events.append(
            [{"id": 2, "count": 2**40, "ratio": 0.1, "title": "t", "name": 7, "place": {"town": "Oslo", "zip": 1}}]
        )
        rows = _check_same_rows(table, events, 2)
        assert [row["name"] for row in rows] == [None, 7]
        assert [row["note"] for row in rows] == [None, None]
        assert [row["title"] for row in rows] == ["n1", "t"]
        assert [row["place"]["town"] for row in rows] == ["Riga", "Oslo"]
        for where, condition in [
            ("count > 1", {"type": "gt", "term": "count", "value": 1}),
            ("price = 1.25", {"type": "eq", "term": "price", "value": "1.25"}),
            ("note is null", {"type": "is-null", "term": "note"}),
            ("title = 'n1'", {"type": "eq", "term": "title", "value": "n1"}),
            ("name is not null", {"type": "not-null", "term": "name"}),
        ]:
            ours = ids(events.scan(where=where))
            assert ours == sorted(row["id"] for row in table.rows(condition)), where

        old = canonical(events.scan(snapshot=before).to_arrow(), START)
        assert old == canonical([_start_row(1)], START) == table.rows(snapshot=before)


def test_columns_that_frazil_adds_with_merge_schema_are_javas_too(sqlite_place: Place) -> None:
    schema = Schema(NestedField(1, "id", LongType()))
    with sqlite_place.lake() as lake:
        lake.create_namespace("shop")
        events = lake.create_table("shop.growing", schema)
        events.append([{"id": 1}])
        events.append(pa.table({"id": [2], "extra": ["x"]}), merge_schema=True)
        table = sqlite_place.iceberg_java().table("shop.growing")
        rows = _check_same_rows(table, events, 2)
        assert rows == [{"id": 1, "extra": None}, {"id": 2, "extra": "x"}]
        table.update_schema(("rename", "extra", "more"))
        table.append([{"id": 3, "more": "y"}])
        assert [row["more"] for row in _check_same_rows(table, events, 3)] == [None, "x", "y"]


def test_files_without_field_ids_are_read_through_the_name_mapping(sqlite_place: Place, tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"identifier": pa.array([1, 2], pa.int64()), "name": ["a", "b"], "junk": [1, 1]}), plain)
    mapping = [{"field-id": 1, "names": ["id", "identifier"]}, {"field-id": 2, "names": ["name"]}]
    catalog = sqlite_place.iceberg_java()
    catalog.create_namespace("shop")
    table = catalog.create("shop.legacy", schema, properties={"schema.name-mapping.default": json.dumps(mapping)})
    table.add_files(plain.as_uri())
    table.append([{"id": 3, "name": "c"}])
    with sqlite_place.lake() as lake:
        events = lake.table("shop.legacy")
        rows = _check_same_rows(table, events, 3)
        assert rows == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
        assert events.scan(where="id = 2", columns=["name"]).to_arrow()["name"].to_pylist() == ["b"]
        # Equality deletes look the ids up through the mapping as well.
        table.delete_equal(["id"], [{"id": 1}])
        assert [row["id"] for row in _check_same_rows(table, events, 2)] == [2, 3]


def test_tags_and_branches_point_to_the_same_rows_in_both(sqlite_place: Place) -> None:
    schema = Schema(NestedField(1, "id", LongType()))
    with sqlite_place.lake() as lake:
        lake.create_namespace("shop")
        events = lake.create_table("shop.refs", schema)
        first = events.append([{"id": 1}])
        table = sqlite_place.iceberg_java().table("shop.refs")
        assert first.snapshot_id is not None
        table.tag("v1", first.snapshot_id)
        events.append(arrow([{"id": 2}], schema))
        events.create_branch("audit")
        events.append([{"id": 3}], branch="audit")
        table.append([{"id": 4}], branch="audit")
        events.create_tag("v2")

        assert events.scan(ref="v1").to_arrow()["id"].to_pylist() == [1]
        assert ids(events.scan(ref="audit")) == [1, 2, 3, 4]
        assert sorted(row["id"] for row in table.rows()) == [1, 2]
        refs = table.metadata()["refs"]
        assert {name: ref["type"] for name, ref in refs.items()} == {
            "main": "branch",
            "audit": "branch",
            "v1": "tag",
            "v2": "tag",
        }
        assert len(table.plan(tag="v1")) == 1
        audit = table.rows(snapshot=refs["audit"]["snapshot_id"])
        assert sorted(row["id"] for row in audit) == [1, 2, 3, 4]
