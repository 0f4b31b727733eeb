"""Position and equality deletes that Iceberg Java writes, over its own files and over Frazil's."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from frazil.table.table import Table
from interop.canonical import canonical, in_order
from interop.conftest import Place
from interop.iceberg_java import JavaTable
from interop.samples import arrow

pytestmark = pytest.mark.interop

PEOPLE = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "name", StringType()), NestedField(3, "region", StringType())
)
BY_REGION = PartitionSpec(PartitionField(source_id=3, field_id=1000, transform=IdentityTransform(), name="region"))


def _person(number: int | None, name: str | None = None, region: str = "eu") -> dict[str, Any]:
    return {"id": number, "name": name or f"p{number}", "region": region}


def _table(place: Place, spec: PartitionSpec | None = None) -> JavaTable:
    catalog = place.iceberg_java()
    catalog.create_namespace("shop")
    return catalog.create("shop.people", PEOPLE, spec)


def _check_both_read(table: JavaTable, events: Table, expected: list[dict[str, Any]]) -> None:
    keys = ("id", "region", "name")
    assert in_order(table.rows(), *keys) == in_order(expected, *keys)
    assert in_order(canonical(events.scan().to_arrow(), PEOPLE), *keys) == in_order(expected, *keys)
    assert events.scan().count() == len(expected)
    batches = [row for batch in events.scan().to_batches() for row in batch.to_pylist()]
    assert in_order(canonical(batches, PEOPLE), *keys) == in_order(expected, *keys)


@pytest.mark.parametrize("writer", ["java", "frazil"])
def test_position_deletes_take_exactly_their_rows(sqlite_place: Place, writer: str) -> None:
    table = _table(sqlite_place)
    first, second = [_person(n) for n in range(4)], [_person(n) for n in range(4, 8)]
    with sqlite_place.lake() as lake:
        events = lake.table("shop.people")
        for rows in (first, second):
            if writer == "java":
                table.append(rows)
            else:
                events.append(arrow(rows, PEOPLE))
        files = in_order(table.plan(), "sequence_number")
        table.delete_positions({files[0]["path"]: [0, 3], files[1]["path"]: [1]})
        _check_both_read(table, events, [first[1], first[2], second[0], second[2], second[3]])
        table.delete_positions({files[1]["path"]: [0]})
        _check_both_read(table, events, [first[1], first[2], second[2], second[3]])
        assert events.scan(where="id in (0, 1, 5)").to_arrow()["id"].to_pylist() == [1]


@pytest.mark.parametrize("writer", ["java", "frazil"])
def test_equality_deletes_take_what_came_before_them_and_nothing_after(sqlite_place: Place, writer: str) -> None:
    table = _table(sqlite_place)
    with sqlite_place.lake() as lake:
        events = lake.table("shop.people")

        def append(*rows: dict[str, Any]) -> None:
            if writer == "java":
                table.append(rows)
            else:
                events.append(arrow(list(rows), PEOPLE))

        append(_person(1), _person(2), _person(None, "nobody"))
        append(_person(3), _person(2, "again"))
        table.delete_equal(["id"], [{"id": 2}])
        _check_both_read(table, events, [_person(1), _person(None, "nobody"), _person(3)])
        append(_person(2, "reborn"))
        _check_both_read(table, events, [_person(1), _person(None, "nobody"), _person(3), _person(2, "reborn")])
        table.delete_equal(["id"], [{"id": None}])
        _check_both_read(table, events, [_person(1), _person(3), _person(2, "reborn")])
        table.delete_equal(["id", "name"], [{"id": 1, "name": "p1"}, {"id": 3, "name": "other"}])
        _check_both_read(table, events, [_person(3), _person(2, "reborn")])
        # The columns the deletes need are not the ones asked for.
        assert set(events.scan(columns=["name"]).to_arrow()["name"].to_pylist()) == {"p3", "reborn"}


def test_equality_deletes_stay_in_their_partition(sqlite_place: Place) -> None:
    table = _table(sqlite_place, BY_REGION)
    with sqlite_place.lake() as lake:
        events = lake.table("shop.people")
        events.append(arrow([_person(1), _person(1, region="us"), _person(2)], PEOPLE))
        table.delete_equal(["id"], [_person(1)])
        _check_both_read(table, events, [_person(1, region="us"), _person(2)])


def test_position_and_equality_deletes_on_a_partitioned_table_add_up(place: Place) -> None:
    table = _table(place, BY_REGION)
    people = [_person(n, region="eu" if n % 2 else "us") for n in range(6)]
    with place.lake() as lake:
        events = lake.table("shop.people")
        events.append(arrow(people, PEOPLE))
        by_region = {file["partition"]["region"]: file["path"] for file in table.plan()}
        table.delete_positions({by_region["us"]: [0]})
        table.delete_equal(["id"], [_person(3)])
        _check_both_read(table, events, [p for p in people if p["id"] not in (0, 3)])
        head = table.head()
        events.append(arrow([_person(0, region="us"), _person(3)], PEOPLE))
        _check_both_read(table, events, people)
        before = canonical(events.scan(snapshot=head).to_arrow(), PEOPLE)
        assert in_order(before, "id") == [p for p in people if p["id"] not in (0, 3)]
