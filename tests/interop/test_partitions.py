"""Partition transforms give the values that Iceberg Java computes, and specs may change under the data."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from interop.canonical import canonical, in_order
from interop.conftest import Place, ids
from interop.samples import EVERY_ROW, EVERY_TYPE, arrow

pytestmark = pytest.mark.interop

# Truncating the least integers runs out of their range: refused here, wrapped around in Java.
ROWS = [
    {**row, "small": max(row["small"], -7), "big": max(row["big"], -7)} if row["flag"] is not None else row
    for row in EVERY_ROW
]
EXPECTED = canonical(ROWS, EVERY_TYPE)
TIMES = ("day", "local", "instant")

GROUPS: dict[str, list[tuple[str, str]]] = {
    # No fixed column: Java 1.12 puts a length before those values, against the schema of its own manifest.
    "identity": [
        (column, "identity")
        for column in ("flag", "small", "big", "dec_wide", *TIMES, "clock", "text", "token", "blob")
    ],
    "bucket": [
        (column, "bucket[16]")
        for column in ("small", "big", "dec_int", "dec_wide", *TIMES, "clock", "text", "token", "hash", "blob")
    ],
    "truncate": [(column, "truncate[3]") for column in ("small", "big", "dec_int", "dec_wide", "text", "blob")],
    "year": [(column, "year") for column in TIMES],
    "month": [(column, "month") for column in TIMES],
    "day": [(column, "day") for column in TIMES],
    "hour": [(column, "hour") for column in ("local", "instant")],
}


def _as_sql(column: str, transform: str) -> str:
    if transform == "identity":
        return column
    name, _, width = transform.rstrip("]").partition("[")
    return f"{name}({width}, {column})" if width else f"{name}({column})"


@pytest.mark.parametrize("group", GROUPS)
def test_partition_values_equal_javas_for_every_source_type(sqlite_place: Place, group: str) -> None:
    fields = GROUPS[group]
    with sqlite_place.lake() as lake:
        lake.create_namespace("shop")
        events = lake.create_table("shop.every", EVERY_TYPE, partition_by=[_as_sql(c, t) for c, t in fields])
        names = [field.name for field in events.spec.fields]
        for row in ROWS:
            events.append(arrow([row], EVERY_TYPE))
    java, table = sqlite_place.java, sqlite_place.iceberg_java().table("shop.every")
    assert in_order(table.rows(), "id") == EXPECTED
    for row in EXPECTED:
        (file,) = (f for f in table.plan() if f["sequence_number"] == row["id"])
        for (column, transform), name in zip(fields, names, strict=True):
            kind = str(EVERY_TYPE.find_type(column))
            (value,) = java.ask("transform", type=kind, transform=transform, values=[row[column]])
            assert file["partition"][name] == value, (column, transform, row["id"])


def test_filters_on_partition_sources_find_the_same_rows_in_both_engines(sqlite_place: Place) -> None:
    with sqlite_place.lake() as lake:
        lake.create_namespace("shop")
        partitioning = ["bucket(16, token)", "month(instant)", "truncate(5, text)"]
        events = lake.create_table("shop.every", EVERY_TYPE, partition_by=partitioning)
        events.append(arrow(ROWS, EVERY_TYPE))
        table = sqlite_place.iceberg_java().table("shop.every")
        assert len(table.plan()) == len(ROWS)
        pairs: list[tuple[str, dict[str, Any]]] = [
            (
                "token = 'f79c3e09-677c-4bbd-a479-3f349cb785e7'",
                {"type": "eq", "term": "token", "value": EXPECTED[0]["token"]},
            ),
            (
                "instant >= timestamp '2017-11-01 00:00:00'",
                {"type": "gt-eq", "term": "instant", "value": "2017-11-01T00:00:00+00:00"},
            ),
            ("text like 'iceberg%'", {"type": "starts-with", "term": "text", "value": "iceberg"}),
            ("token is null", {"type": "is-null", "term": "token"}),
        ]
        for where, condition in pairs:
            ours = ids(events.scan(where=where))
            assert ours == sorted(row["id"] for row in table.rows(condition)), where
            assert ours, where
            assert len(table.plan(condition)) < len(ROWS), f"{where} prunes"


def test_rows_under_several_specs_are_read_and_written_by_both(place: Place) -> None:
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "ts", TimestamptzType()),
        NestedField(3, "region", StringType()),
    )
    day = 86_400_000_000
    rows = [{"id": n, "ts": n * day, "region": "eu" if n % 2 else None} for n in range(8)]
    catalog = place.iceberg_java()
    catalog.create_namespace("shop")
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="ts_day"))
    table = catalog.create("shop.moving", schema, spec)
    table.append(rows[:2])
    table.update_spec(("add", "bucket", "id", 4))
    with place.lake() as lake:
        events = lake.table("shop.moving")
        events.append(_moving(rows[2:4], schema))
        table.update_spec(("remove", "ts_day"), ("add", "identity", "region"))
        table.append(rows[4:6])
        events.append(_moving(rows[6:8], schema))

        assert in_order(table.rows(), "id") == rows
        assert in_order(canonical(events.scan().to_arrow(), schema), "id") == rows
        assert {file["spec_id"] for file in table.plan()} == {0, 1, 2}
        for where, condition in [
            ("region = 'eu'", {"type": "eq", "term": "region", "value": "eu"}),
            ("ts < timestamp '1970-01-04'", {"type": "lt", "term": "ts", "value": "1970-01-04T00:00:00+00:00"}),
            ("id in (3, 6)", {"type": "in", "term": "id", "values": [3, 6]}),
        ]:
            ours = ids(events.scan(where=where))
            assert ours == sorted(row["id"] for row in table.rows(condition)), where


def _moving(rows: list[dict[str, Any]], schema: Schema) -> Any:
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return arrow([{**row, "ts": epoch + dt.timedelta(microseconds=row["ts"])} for row in rows], schema)
