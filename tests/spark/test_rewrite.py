"""Compaction on Spark: bin-packing, sorting and curves give the rows that Arrow gives, beside other writers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import frazil
from frazil.commit.context import Phase
from frazil.model import Content
from surface.test_compaction import MANY_TYPES, many_types, rows_of

QUICK = frazil.Retry(tries=6, base_ms=0)


@pytest.fixture
def bound(spark: Any, tmp_path: Any) -> Any:
    with frazil.connect(str(tmp_path / "lake"), spark=spark) as lake:
        lake.create_namespace("s")
        yield lake


def at_head(act: Callable[[], object]) -> Callable[[Phase, int], None]:
    left = [act]

    def on_phase(found: Phase, _attempt: int) -> None:
        if found is Phase.HEAD_READ and left:
            left.pop()()

    return on_phase


@pytest.mark.everywhere
@pytest.mark.parametrize("strategy", ["sort", "hilbert"])
def test_every_type_is_rewritten_in_order(bound: frazil.Lake, strategy: Any) -> None:
    table = bound.create_table("s.many", MANY_TYPES)
    rows = many_types(400)
    for start in (0, 200):
        table.append(rows.slice(start, 200))
    table.delete("i = 5", mode="merge-on-read", engine="arrow")
    before = rows_of(table)
    names = [*rows.schema.names[:-1], "o.x"] if strategy == "hilbert" else ["d desc nulls last", "s"]
    done = table.compact(strategy=strategy, by=names)
    assert (done.engine, done.changed) == ("spark", True)
    assert rows_of(table) == before
    assert not any(task.deletes for task in table.scan().tasks())
    if strategy == "sort":
        (values,) = [table.scan().to_arrow()["d"].to_pylist()]
        there = [each for each in values if each is not None]
        assert there == sorted(there, reverse=True)
        assert values == [*there, *[None] * (len(values) - len(there))]


@pytest.fixture
def numbers(bound: frazil.Lake) -> frazil.Table:
    table = bound.create_table("s.t", "id bigint not null, p string, v bigint", partition_by=["p"], keys=["id"])
    for first in (0, 10):
        table.append([{"id": each, "p": "ab"[each % 2], "v": 7 * each % 20} for each in range(first, first + 10)])
    return table


def content(table: frazil.Table) -> dict[int, int]:
    return {each["id"]: each["v"] for each in table.scan().to_arrow().to_pylist()}


@pytest.mark.parametrize("strategy", ["binpack", "zorder"])
@pytest.mark.parametrize("lineage", ["500000", "0"])
def test_a_delete_that_arrives_during_a_rewrite_is_kept(numbers: frazil.Table, strategy: Any, lineage: str) -> None:
    numbers.set_properties({"frazil.lineage.max-runs": lineage})
    numbers.upsert([{"id": 4, "p": "a", "v": 100}], mode="equality", engine="arrow")
    by = None if strategy == "binpack" else ["v", "id"]
    late = at_head(lambda: numbers.delete("id in (3, 7)", mode="merge-on-read", engine="arrow"))
    numbers.compact(strategy=strategy, by=by, retry=QUICK, on_phase=late)
    expected = {each: 100 if each == 4 else 7 * each % 20 for each in range(20) if each not in (3, 7)}
    assert content(numbers) == expected
    numbers.compact(strategy=strategy, by=by)
    assert content(numbers) == expected
    assert not any(task.deletes for task in numbers.scan().tasks())


def test_rows_are_moved_to_another_spec(numbers: frazil.Table) -> None:
    before = content(numbers)
    numbers.set_partitioning(["truncate(10, id)"])
    numbers.compact(options={"output-spec-id": str(numbers.spec.spec_id)})
    assert content(numbers) == before
    assert {task.file.spec_id for task in numbers.scan().tasks()} == {numbers.spec.spec_id}
    assert len(numbers.scan("id < 10").files()) == 2


def test_a_sorted_table_is_split_into_ranges(bound: frazil.Lake, spark: Any) -> None:
    table = bound.create_table("s.r", "id bigint, v bigint", properties={"write.target-file-size-bytes": "30000"})
    table.append(spark.range(0, 20_000).selectExpr("id", "(id * 7919) % 20000 as v"))
    table.compact(strategy="sort", by=["v"])
    assert len(table.files()) > 2
    share = len(table.scan("v between 5000 and 5100").files()) / len(table.files())
    assert share < 0.5
    assert table.scan().count() == 20_000


def test_equality_deletes_become_positions(numbers: frazil.Table) -> None:
    numbers.upsert([{"id": each, "p": "ab"[each % 2], "v": -1} for each in (3, 4)], mode="equality", engine="arrow")
    numbers.delete("id = 5", mode="merge-on-read", engine="arrow")
    before = content(numbers)
    done = numbers.resolve_deletes()
    assert (done.engine, done.changed) == ("spark", True)
    assert content(numbers) == before
    assert {ref.file.content for task in numbers.scan().tasks() for ref in task.deletes} == {Content.POSITION_DELETES}
    assert not numbers.resolve_deletes().changed
