"""MERGE on Arrow: the cases of every engine, and what is this one's own."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.dml import merge_match
from frazil.dml.merge import Clause, Merge
from frazil.dml.merge import Source as MergeSource
from frazil.dml.merge_arrow import merge
from frazil.dml.view import Settings, View
from frazil.format.schemas import arrow_schema, to_schema
from frazil.model import Ident
from frazil.read import positions
from frazil.runtime import SYSTEM
from merge_cases import (
    BAD,
    CASES,
    MODES,
    Mode,
    Source,
    counts,
    explains,
    found,
    refuses,
    refuses_a_source_without_a_column,
)
from merge_cases import stock as made_stock
from surface.matrix import files_of, named_files

NO_FILES = Settings()


@pytest.fixture
def lake() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as lake:
        lake.create_namespace("shop")
        yield lake


@pytest.fixture
def stock(lake: frazil.Lake) -> frazil.Table:
    return made_stock(lake)


@pytest.fixture
def source() -> Source:
    def make(rows: Sequence[tuple[Any, ...]], columns: str) -> pa.Table:
        schema = arrow_schema(to_schema(columns))
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)

    return make


# The cases of every engine


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_merges(lake: frazil.Lake, stock: frazil.Table, source: Source, name: str, mode: Mode) -> None:
    CASES[name](lake, stock, source, mode)


@pytest.mark.parametrize("name", BAD)
def test_bad_merges_are_refused_before_anything_is_written(stock: frazil.Table, source: Source, name: str) -> None:
    refuses(stock, source, name)


def test_a_source_without_a_column_is_refused(stock: frazil.Table, source: Source) -> None:
    refuses_a_source_without_a_column(stock, source)


def test_explain_says_how_it_would_be_run(stock: frazil.Table, source: Source) -> None:
    explains(stock, source)


# Sources


NEW: list[dict[str, Any]] = [{"id": 3, "n": 1, "note": "new"}, {"id": 30, "n": None, "note": None}]
SOURCES: dict[str, Any] = {
    "dicts": lambda: NEW,
    "columns": lambda: {"id": [3, 30], "n": [1, None], "note": ["new", None]},
    "a generator": lambda: iter([pa.RecordBatch.from_pylist(NEW)]),
    "dictionaries": lambda: pa.table(
        {"id": [3, 30], "n": pa.array([1, None], pa.int8()), "note": pa.array(["new", None]).dictionary_encode()}
    ),
    "many batches": lambda: pa.concat_tables([pa.Table.from_pylist(NEW).slice(at, 1) for at in (0, 1)]),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_may_be_rows_of_any_kind(stock: frazil.Table, kind: str) -> None:
    done = stock.merge(SOURCES[kind]()).when_matched_update_all().when_not_matched_insert_all().execute()
    assert (done.engine, *counts(done)) == ("arrow", 1, 1, 0)
    assert (found(stock)[3], found(stock)[30]) == ((1, "new"), (None, None))


def test_a_column_of_nulls_has_the_type_that_the_table_gives_it(stock: frazil.Table) -> None:
    nothing = pa.table({"id": [3], "n": pa.nulls(1), "note": ["x"], "other": pa.nulls(1)})
    stock.merge(nothing).when_matched_update_all().execute()
    assert found(stock)[3] == (None, "x")


def test_an_empty_list_changes_nothing(stock: frazil.Table) -> None:
    assert not stock.merge([]).when_matched_update_all().when_not_matched_insert_all().execute().changed


def test_engine_arrow_may_be_asked_for(stock: frazil.Table) -> None:
    done = stock.merge([{"id": 3}], engine="arrow").when_matched_delete().execute()
    assert (done.engine, done.rows_deleted) == ("arrow", 1)


def test_a_dry_run_counts_and_changes_nothing(stock: frazil.Table) -> None:
    before, files = stock.metadata_location, files_of(stock)
    rows = [{"id": 3, "n": 1, "note": "x"}, {"id": 30, "n": 1, "note": "x"}]
    done = stock.merge(rows, dry_run=True).when_matched_update_all().when_not_matched_insert_all().execute()
    assert counts(done) == (1, 1, 0)
    assert stock.metadata_location == before
    assert files_of(stock) == files


def test_a_failed_merge_leaves_no_file(stock: frazil.Table) -> None:
    rows = [{"id": 1, "n": 1, "note": "x"}, {"id": 30, "n": 1, "note": "x"}, {"id": 31, "n": 0, "note": "x"}]
    plan = stock.merge(rows).when_matched_update_all()
    with pytest.raises(frazil.InvalidInput, match="divi"):
        plan.when_not_matched_insert({"id": "source.id div source.n"}).execute()
    assert files_of(stock) == named_files(stock)


def test_rows_of_required_columns_must_have_values(stock: frazil.Table) -> None:
    plan = stock.merge([{"id": 40, "n": None, "note": "x"}])
    with pytest.raises(frazil.SchemaMismatch, match="'id'"):
        plan.when_not_matched_insert({"n": "source.n"}).execute()
    with pytest.raises(frazil.SchemaMismatch, match="'id' is required"):
        plan.when_not_matched_insert({"id": "source.n"}).execute()


def test_a_value_may_not_name_a_side_that_the_clause_has_not(stock: frazil.Table) -> None:
    plan = stock.merge([{"id": 40}])
    with pytest.raises(frazil.InvalidInput, match="has no target row"):
        plan.when_not_matched_insert({"id": "target.id"}).execute()
    with pytest.raises(frazil.InvalidInput, match="has no source row"):
        plan.when_not_matched_by_source_update({"n": "source.id"}).execute()


# How values are compared


def compared(lake: frazil.Lake, column: str, old: Any, given: Any) -> list[tuple[int, int]]:
    """Which row of the table each source row matches."""
    table = lake.create_table(f"shop.t{uuid.uuid4().hex}", f"k {column}, i int, met int")
    for number, value in enumerate(old):
        # A file each, so that files must not be left out wrongly.
        table.append([{"k": value, "i": number}])
    rows = pa.table({"k": given, "j": pa.array(range(len(given)), pa.int32())})
    table.merge(rows, on=["k"], mode="merge-on-read").when_matched_update({"met": "source.j"}).execute()
    return sorted((row["i"], row["met"]) for row in table.scan().to_arrow().to_pylist() if row["met"] is not None)


UTC = dt.UTC
DAY = dt.date(2026, 11, 1)
NOON = dt.datetime(2026, 11, 1, 12, tzinfo=UTC)
MIDNIGHT = dt.datetime(2026, 11, 1)  # noqa: DTZ001 - for columns without a zone
ONE = uuid.UUID(int=1)
COMPARED: dict[str, tuple[str, list[Any], Any, list[tuple[int, int]]]] = {
    "NaN and zero": ("double", [math.nan, -0.0, 1.5, None], pa.array([0.0, math.nan, None]), [(0, 1), (1, 0)]),
    "a float's digits": ("float", [0.1, 0.5], pa.array([0.1, 0.5]), [(1, 1)]),
    "int and long": ("int", [1, 2], pa.array([2**40, 2]), [(1, 1)]),
    "int and double": ("bigint", [1, 2**53 - 1], pa.array([1.0, 1.5, math.nan, 2.0**53 - 1]), [(0, 0), (1, 3)]),
    "large doubles": ("bigint", [2**53 + 1, 7], pa.array([2.0**53]), [(0, 0)]),
    "decimals": (
        "decimal(6,2)",
        [Decimal("1.50"), Decimal("2.00")],
        pa.array([Decimal("1.500"), Decimal("1.501"), Decimal("99999999.000")], pa.decimal128(12, 3)),
        [(0, 0)],
    ),
    "decimal and int": ("decimal(6,2)", [Decimal("1.50"), Decimal("2.00")], pa.array([2, 10**9]), [(1, 0)]),
    "int and decimal": ("int", [1, 2], pa.array([Decimal("1.5"), Decimal("2.0")], pa.decimal128(5, 1)), [(1, 1)]),
    "decimal and double": ("decimal(6,2)", [Decimal("1.50"), Decimal("2.25")], pa.array([2.25]), [(1, 0)]),
    "text": ("string", ["a", "b", ""], pa.array(["b", "", None], pa.string_view()), [(1, 0), (2, 1)]),
    "bool": ("boolean", [True, None], pa.array([False, True]), [(0, 1)]),
    "date and timestamp": (
        "date",
        [DAY, dt.date(2026, 11, 2)],
        pa.array([MIDNIGHT, NOON.replace(tzinfo=None)], pa.timestamp("ms")),
        [(0, 0)],
    ),
    "timestamp and zone": (
        "timestamp",
        [NOON, None],
        pa.array([NOON.replace(tzinfo=None)], pa.timestamp("s")),
        [(0, 0)],
    ),
    "timestamp and date": ("timestamp_ntz", [MIDNIGHT], pa.array([DAY], pa.date64()), [(0, 0)]),
    "uuid": ("uuid", [ONE, uuid.UUID(int=2)], pa.array([ONE.bytes], pa.uuid()), [(0, 0)]),
    "binary": ("binary", [b"a", b"b"], pa.array([b"b"], pa.large_binary()), [(1, 0)]),
    "fixed": ("fixed(2)", [b"aa", b"bb"], pa.array([b"b", b"bb"]), [(1, 1)]),
}


@pytest.mark.parametrize("name", COMPARED)
def test_values_are_compared_as_sql_does(lake: frazil.Lake, name: str) -> None:
    column, old, given, expected = COMPARED[name]
    assert compared(lake, column, old, given) == expected


def test_values_of_types_that_do_not_compare_are_refused(lake: frazil.Lake) -> None:
    lists = lake.create_table("shop.lists", "id int, k array<int>")
    with pytest.raises(frazil.InvalidInput, match="nested column as a whole"):
        lists.merge([{"k": [1]}], on=["k"]).when_matched_delete().execute()
    with pytest.raises(frazil.InvalidInput, match="Cannot compare"):
        lists.merge([{"id": "1"}], on=["id"]).when_matched_delete().execute()


def test_several_equalities_and_expressions(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.pairs", "a int, b string, n int")
    table.append([{"a": a, "b": b, "n": 0} for a in (1, 2, None) for b in ("x", "y", None)])
    rows = [{"a": 1, "b": "X", "v": 7}, {"a": 2, "b": "Q", "v": 8}, {"a": None, "b": "X", "v": 9}]
    on = "source.a + 0 = target.a and upper(target.b) = source.b"
    done = table.merge(rows, on=on).when_matched_update({"n": "v"}).when_not_matched_insert({"n": "v"}).execute()
    assert counts(done) == (1, 2, 0)
    assert {(row["a"], row["b"], row["n"]) for row in table.scan(where="n > 0").to_arrow().to_pylist()} == {
        (1, "x", 7),
        (None, None, 8),
        (None, None, 9),
    }


def test_null_safe_equality(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.nulls", "a int, n int")
    table.append([{"a": 1, "n": 0}, {"a": None, "n": 0}])
    table.merge([{"a": None}], on="target.a <=> source.a").when_matched_update({"n": "1"}).execute()
    assert {row["a"]: row["n"] for row in table.scan().to_arrow().to_pylist()} == {1: 0, None: 1}


NESTED = "id int, s struct<a: int, b: struct<c: string>>, l array<int>, m map<string, int>"


def test_nested_columns_are_taken_over_whole_or_set_in_part(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.deep", NESTED)
    old = {"id": 1, "s": {"a": 1, "b": {"c": "x"}}, "l": [1], "m": [("k", 1)]}
    table.append([old, {**old, "id": 2}])
    new = [{**old, "id": 1, "l": [2, 3]}, {**old, "id": 2, "s": None, "m": None}, {**old, "id": 3}]
    plan = table.merge(new, on=["id"]).when_matched_update_all("source.id = 1")
    done = plan.when_matched_update({"s.b": "source.s.b", "s.a": "9"}).when_not_matched_insert({"id": "3", "s.a": "5"})
    assert counts(done.execute()) == (2, 1, 0)
    rows = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    assert rows[1] == new[0]
    assert rows[2]["s"] == {"a": 9, "b": None}
    assert rows[3] == {"id": 3, "s": {"a": 5, "b": None}, "l": None, "m": None}
    with pytest.raises(frazil.SchemaMismatch):
        table.merge([{"id": 1, "l": ["x"]}], on=["id"]).when_matched_update({"l": "source.l"}).execute()


# What is read


def test_files_without_a_key_are_not_read(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create_table("shop.wide", "id bigint, n int")
    for start in range(0, 50, 10):
        table.append([{"id": start + n, "n": n} for n in range(10)])
    read: list[str] = []
    real: Any = vars(positions)["opened"]

    def opened(storage: Any, file: Any) -> Any:
        read.append(file.file_path)
        return real(storage, file)

    monkeypatch.setattr(positions, "opened", opened)
    plan = table.merge([{"id": 13}, {"id": 17}], on=["id"], mode="merge-on-read").when_matched_update({"n": "-1"})
    assert plan.execute().rows_updated == 2
    assert len(read) == 1


def view_of(lake: frazil.Lake, table: frazil.Table) -> View:
    metadata = lake.catalog.load(Ident.parse(table.name)).metadata
    return View(lake.storage, SYSTEM, metadata, "main", table.name)


def test_the_read_of_a_merge_is_its_keys(lake: frazil.Lake, stock: frazil.Table) -> None:
    plan = Merge(["id"], (Clause("matched", "update", {"n": "1"}),))
    write = merge(view_of(lake, stock), MergeSource([{"id": 3}, {"id": 99}]), plan, NO_FILES, "merge-on-read")
    (read,) = write.reads
    assert read.keys is not None
    assert read.keys.holds([pa.array([3, 4, 99])]).to_pylist() == [True, False, True]
    assert {path: list(rows) for path, rows in write.moved.items()} == {
        path: list(rows) for path, rows in write.positions.items()
    }


# Limits


def test_too_many_comparisons_are_refused(stock: frazil.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_match, "MOST_COMPARED", 99)
    rows = [{"low": n} for n in range(5)]
    with pytest.raises(frazil.Unsupported, match=r"no equality .* Add one"):
        stock.merge(rows, on="target.id < source.low").when_matched_delete().execute()


def test_a_source_that_is_too_large_is_refused(stock: frazil.Table) -> None:
    stock.set_properties({"frazil.arrow.max-bytes": "10000"})
    rows = pa.table({"id": range(10_000)})
    with pytest.raises(frazil.Unsupported, match=r"source rows in this process\. Run it on Spark"):
        stock.merge(rows).when_matched_delete().execute()


def test_a_table_that_is_too_large_is_refused(stock: frazil.Table) -> None:
    stock.set_properties({"frazil.arrow.max-bytes": "100"})
    with pytest.raises(frazil.Unsupported, match="Run it on Spark"):
        stock.merge([{"id": 1}, {"id": 2}, {"id": 3}]).when_not_matched_by_source_delete().execute()


@pytest.mark.parametrize("at_once", [1, 3])
def test_rows_are_matched_in_parts(stock: frazil.Table, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(merge_match, "BATCH_ROWS", at_once)
    monkeypatch.setattr(merge_match, "_PAIRS_AT_ONCE", at_once)
    rows = [{"id": 2, "n": 1}, {"id": 5, "n": 2}, {"id": 5, "n": 3}, {"id": 33, "n": 4}]
    plan = stock.merge(rows).when_matched_update({"n": "source.n"}, "source.n <> 3")
    done = plan.when_not_matched_insert({"id": "source.id"}).when_not_matched_by_source_delete("target.id > 9")
    assert counts(done.execute()) == (2, 1, 10)
    assert {each: n for each, (n, _) in found(stock).items() if each in (2, 5, 33)} == {2: 1, 5: 2, 33: None}
    with pytest.raises(frazil.InvalidInput, match="matches 2 rows"):
        stock.merge(rows).when_matched_update({"n": "source.n"}).execute()
