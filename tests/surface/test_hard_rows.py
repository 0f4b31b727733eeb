"""Rows at the edges of what a table can hold, through the public surface: held, or refused with nothing left behind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from concurrency.writers import unreferenced_files

ONE = pa.record_batch({"id": [1]})
UUID = "0f3a0f3a-0f3a-4f3a-8f3a-0f3a0f3a0f3a"


@pytest.fixture
def lake(tmp_path: Path) -> frazil.Lake:
    lake = frazil.connect(str(tmp_path / "lake"))
    lake.create_namespace("ns")
    return lake


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        ("struct<x:int not null>", [None, {"x": 1}]),
        ("struct<x:string not null>", [None]),
        ("array<struct<x:string not null>>", [[None, {"x": "a"}], None, []]),
        ("map<string,struct<x:int not null>>", [[("a", None), ("b", {"x": 1})], None]),
        ("struct<t:struct<x:int not null>>", [None, {"t": None}, {"t": {"x": 1}}]),
        (
            "struct<t:struct<l:array<int> not null, m:map<int,int> not null, d:decimal(9,2) not null, s:int> not null>",
            [None, {"t": {"l": [1], "m": [(1, 1)], "d": Decimal("1.10"), "s": None}}],
        ),
    ],
)
def test_a_null_struct_with_required_fields_is_held(lake: frazil.Lake, ddl: str, values: list[Any]) -> None:
    table = lake.create_table("ns.t", f"i int, c {ddl}")
    table.append([{"i": position, "c": value} for position, value in enumerate(values)])
    table.append([{"i": len(values)}])
    expected = [*values, None]
    assert table.scan().to_arrow().sort_by("i").column("c").to_pylist() == expected
    theirs = lake.pyiceberg().load_table("ns.t").scan().to_arrow().sort_by("i").column("c").to_pylist()
    # PyIceberg reads a null list or map with structs in it as an empty one, whichever engine wrote it.
    assert [value or None for value in theirs] == [value or None for value in expected]


def test_a_required_uuid_under_a_null_struct_is_held(lake: frazil.Lake) -> None:
    table = lake.create_table("ns.t", "s struct<u:uuid not null>")
    table.append([{"s": None}, {"s": {"u": UUID}}])
    found = table.scan().to_arrow().to_pylist()
    assert [row["s"] and str(row["s"]["u"]) for row in found] == [None, UUID]


def test_partitions_and_sorting_by_a_required_field_of_a_null_struct_see_null(lake: frazil.Lake) -> None:
    table = lake.create_table(
        "ns.t", "s struct<x:int not null>", partition_by=["bucket(4, s.x)"], sort_by=["s.x desc nulls last"]
    )
    table.append([{"s": None}, {"s": {"x": 1}}])
    assert {file.partition["s.x_bucket"] is None for file in table.scan().files()} == {True, False}
    assert table.scan("s.x is null").count() == 1


@pytest.mark.parametrize(
    "rows",
    [
        lambda: [None, {"id": 1}],
        lambda: [{"id": 1}, None],
        lambda: [None, ONE],
        lambda: iter([None, ONE]),
        lambda: iter([ONE, None]),
        lambda: [None],
        lambda: [{5: 1}],
        lambda: {5: [1]},
    ],
)
@pytest.mark.parametrize("merge_schema", [True, False])
def test_an_invalid_row_is_refused_and_never_dropped(
    lake: frazil.Lake, rows: Callable[[], object], merge_schema: bool
) -> None:
    table = lake.create_table("ns.t", "id bigint")
    with pytest.raises(frazil.InvalidInput):
        table.append(rows(), merge_schema=merge_schema)
    assert (table.snapshot(), unreferenced_files(table)) == (None, set())


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1, "x": {}}],
        [{"id": 1, "x": {"y": {}}}],
        [{"id": 1, "x": [{}]}],
        [{"id": 1, "x": 2**63}],
        pa.table({"id": [1], "x": pa.array([{}], pa.struct([]))}),
    ],
)
def test_a_column_that_no_table_can_have_does_not_grow_the_table(lake: frazil.Lake, rows: object) -> None:
    table = lake.create_table("ns.t", "id bigint")
    with pytest.raises(frazil.SchemaMismatch, match="'x"):
        table.append(rows, merge_schema=True)
    assert table.scan().schema.names == ["id"]
    table.append([{"id": 2}])
    assert table.scan().count() == 1


def test_a_decimal_without_room_in_its_partition_is_refused_while_staging(lake: frazil.Lake) -> None:
    table = lake.create_table("ns.t", "d decimal(9,2)", partition_by=["truncate(5, d)"])
    with pytest.raises(frazil.SchemaMismatch, match="too large or too small"):
        table.append([{"d": Decimal("-9999999.99")}])
    assert (table.snapshot(), unreferenced_files(table)) == (None, set())
    table.append([{"d": Decimal("-9999999.94")}, {"d": None}])
    assert table.scan().count() == 2


@pytest.mark.parametrize(
    ("kind", "partition", "value", "text"),
    [
        ("date", "d", 9_000_000, "+26611-03-02"),
        ("timestamp", "d", 9_000_000 * 86_400_000_000 + 1, "+26611-03-02 00:00:00.000001"),
        ("timestamp_ntz", "day(d)", 9_000_000 * 86_400_000_000, "+26611-03-02 00:00:00"),
        ("date", "d", -800_000, "-0221-09-04"),
    ],
)
def test_times_beyond_pythons_calendar_are_listed_and_cast(
    lake: frazil.Lake, kind: str, partition: str, value: int, text: str
) -> None:
    table = lake.create_table("ns.t", f"d {kind}", partition_by=[partition])
    arrow = table.scan().schema.field("d").type
    width = pa.int32() if kind == "date" else pa.int64()
    table.append(pa.table({"d": pa.array([value], width).cast(arrow)}))
    (file,) = table.scan().files()
    days = 9_000_000 if partition == "day(d)" else value
    assert list(file.partition.values()) == [days]
    assert table.scan(f"cast(d as string) = '{text}'").count() == 1


def test_partition_values_inside_pythons_calendar_are_dates_and_times(lake: frazil.Lake) -> None:
    table = lake.create_table("ns.t", "d date, t timestamp", partition_by=["d", "t"])
    noon = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
    table.append([{"d": noon.date(), "t": noon}])
    assert [file.partition for file in table.scan().files()] == [{"d": noon.date(), "t": noon}]
