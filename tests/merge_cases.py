"""Merges that every engine must run alike: each case gets a table, and a function that makes a source of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

import frazil

Mode = Literal["merge-on-read", "copy-on-write"]
MODES: tuple[Mode, ...] = ("merge-on-read", "copy-on-write")
Source = Callable[[Sequence[tuple[Any, ...]], str], Any]
"""Rows and their columns as DDL → what the engine takes as the source of a merge."""
Case = Callable[[frazil.Lake, frazil.Table, Source, Mode], None]
STOCK = "id bigint, n int, note string"
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def stock(lake: frazil.Lake) -> frazil.Table:
    """Twenty rows with the keys 0 to 19, in two partitions."""
    table = lake.create_table(
        "shop.stock", "id bigint not null, n int, note string", keys=["id"], partition_by=["bucket(2, id)"]
    )
    table.append([{"id": n, "n": 10 * n, "note": "old"} for n in range(20)])
    return table


def found(table: frazil.Table) -> dict[int, tuple[Any, ...]]:
    rows = table.scan().to_arrow().to_pylist()
    by_id = {row["id"]: (row["n"], row["note"]) for row in rows}
    assert len(by_id) == len(rows)
    return by_id


def counts(done: frazil.Commit) -> tuple[int, int, int]:
    return done.rows_updated, done.rows_inserted, done.rows_deleted


def new(source: Source, *ids: int) -> Any:
    return source([(each, each, "new") for each in ids], STOCK)


@case
def update_and_insert(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    before = found(stock)
    done = (
        stock.merge(new(source, 3, 4, 50), on="target.id = source.id", mode=mode)
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    assert counts(done) == (2, 1, 0)
    assert found(stock) == {**before, 3: (3, "new"), 4: (4, "new"), 50: (50, "new")}


@case
def the_first_clause_that_fits_decides(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    done = (
        stock.merge(new(source, 1, 2, 3, 60, 61, 62), on=["id"], mode=mode)
        .when_matched_delete(condition="target.id = 1")
        .when_matched_update({"n": "target.n + source.n", "note": "'second'"}, condition="target.n < 30")
        .when_matched_update({"note": frazil.lit("third")})
        .when_not_matched_insert({"id": "source.id", "n": "-1"}, condition="source.id = 60")
        .when_not_matched_insert_all(condition="source.id = 61")
        .when_not_matched_by_source_update({"note": "'alone'"}, condition="target.id = 10")
        .when_not_matched_by_source_delete(condition="target.id > 17")
        .execute()
    )
    rows = found(stock)
    assert set(rows) == {0, *range(2, 18), 60, 61}
    assert {each: rows[each] for each in (2, 3, 10, 60, 61)} == {
        2: (22, "second"),
        3: (30, "third"),
        10: (100, "alone"),
        60: (-1, None),
        61: (61, "new"),
    }
    assert all(rows[each] == (10 * each, "old") for each in (0, 4, 9, 11, 17))
    assert counts(done) == (3, 2, 3)


@case
def aliases_and_names_without_a_table(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    more = source([(5, 5, "new", 7)], f"{STOCK}, extra int")
    done = (
        stock.merge(more, on="t.id = s.id", source_alias="s", target_alias="t", mode=mode)
        .when_matched_update({"t.n": "extra", "note": "concat(t.note, '-', s.note)"})
        .execute()
    )
    assert done.rows_updated == 1
    assert found(stock)[5] == (7, "old-new")


@case
def a_row_met_twice_is_refused(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    before = stock.metadata_location
    twice = stock.merge(new(source, 3, 3), on=["id"], mode=mode)
    with pytest.raises(frazil.InvalidInput, match="matches 2 rows of the source"):
        twice.when_matched_update_all().execute()
    with pytest.raises(frazil.InvalidInput, match="matches 2 rows of the source"):
        twice.when_matched_delete("source.n > 0").execute()
    assert stock.metadata_location == before
    # Only one of the two source rows would change it.
    differing = stock.merge(source([(4, 1, "a"), (4, 2, "b")], STOCK), on=["id"], mode=mode)
    assert counts(differing.when_matched_update_all("source.n = 2").execute()) == (1, 0, 0)
    assert found(stock)[4] == (2, "b")
    assert counts(twice.when_not_matched_insert_all().execute()) == (0, 0, 0)


@case
def a_row_met_twice_is_deleted_once(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    done = stock.merge(new(source, 3, 3), on=["id"], mode=mode).when_matched_delete().execute()
    assert counts(done) == (0, 0, 1)
    assert set(found(stock)) == {*range(3), *range(4, 20)}


@case
def null_keys_match_nothing(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    table = lake.create_table("shop.n", "id bigint, n int, note string")
    table.append([{"id": 1, "note": "a"}, {"id": None, "note": "b"}])
    given = source([(1, 1, "x"), (None, 2, "y")], STOCK)
    done = table.merge(given, on=["id"], mode=mode).when_matched_update_all().when_not_matched_insert_all().execute()
    assert counts(done) == (1, 1, 0)
    assert sorted(map(str, table.scan().to_arrow()["note"].to_pylist())) == ["b", "x", "y"]
    by_source = table.merge(given, on=["id"], mode=mode).when_not_matched_by_source_delete().execute()
    assert by_source.rows_deleted == 2


@case
def schema_evolution(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    more = source([(5, 5, "new", "red"), (70, 70, "new", "red")], f"{STOCK}, colour string")
    plan = stock.merge(more, on=["id"], mode=mode).when_matched_update_all().when_not_matched_insert_all()
    plan.with_schema_evolution().execute()
    rows = {row["id"]: row["colour"] for row in stock.scan().to_arrow().to_pylist()}
    assert rows == {**dict.fromkeys(range(20)), 5: "red", 70: "red"}


@case
def columns_that_only_the_source_has_are_left_out(
    lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode
) -> None:
    more = source([(5, 5, "new", "red")], f"{STOCK}, colour string")
    assert stock.merge(more, on=["id"], mode=mode).when_matched_update_all().execute().rows_updated == 1
    assert found(stock)[5] == (5, "new")
    assert [each.name for each in stock.schema.fields] == ["id", "n", "note"]


@case
def nothing_matches(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    before = stock.metadata_location
    assert not stock.merge(new(source, 500), on=["id"], mode=mode).when_matched_update_all().execute().changed
    empty = stock.merge(new(source), on=["id"], mode=mode)
    assert not empty.when_matched_delete().when_not_matched_insert_all().execute().changed
    assert stock.metadata_location == before
    assert empty.when_not_matched_by_source_delete().execute().rows_deleted == 20


@case
def a_condition_without_an_equality(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    limits = source([(5, 8)], "low bigint, high bigint")
    plan = stock.merge(limits, on="target.id between source.low and source.high", mode=mode)
    assert plan.when_matched_delete().execute().rows_deleted == 4
    assert set(found(stock)) == {*range(5), *range(9, 20)}


@case
def an_equality_and_more(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    given = source([(1, 10, "x"), (2, 0, "y")], STOCK)
    on = "target.id = source.id and target.n <= source.n"
    done = stock.merge(given, on=on, mode=mode).when_matched_update({"note": "source.note"})
    assert counts(done.when_not_matched_insert({"id": "source.id + 100"}).execute()) == (1, 1, 0)
    rows = found(stock)
    assert (rows[1], rows[2], rows[102]) == ((10, "x"), (20, "old"), (None, None))


@case
def the_default_is_the_tables_keys(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    assert stock.merge(new(source, 7), mode=mode).when_matched_update_all(except_cols=["n"]).execute().rows_updated == 1
    assert found(stock)[7] == (70, "new")


@case
def every_row_of_a_file(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    done = stock.merge(new(source, *range(20)), mode=mode).when_matched_delete("target.id < 19").execute()
    assert counts(done) == (0, 0, 19)
    assert found(stock) == {19: (190, "old")}


@case
def rows_that_were_deleted_before(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    stock.delete("id in (2, 3)", mode="merge-on-read")
    stock.upsert([{"id": 4, "n": 0, "note": "upserted"}], mode="equality")
    done = stock.merge(new(source, 3, 4), mode=mode).when_matched_update({"n": "source.n"})
    assert counts(done.when_not_matched_insert_all().execute()) == (1, 1, 0)
    rows = found(stock)
    assert (rows[3], rows[4]) == ((3, "new"), (4, "upserted"))
    assert set(rows) == {*range(20)} - {2}


@case
def a_merge_conflicts_on_its_keys_only(lake: frazil.Lake, stock: frazil.Table, source: Source, mode: Mode) -> None:
    def run(others: Any) -> None:
        with lake.transaction() as transaction:
            mine = transaction.table("shop.stock").merge(new(source, 3, 80), on=["id"], mode=mode)
            mine.when_matched_update_all().when_not_matched_insert_all().execute()
            others()

    run(lambda: stock.append([{"id": 90, "n": 1, "note": "far"}]))
    run(lambda: stock.update({"n": "n + 1"}, where="id = 4", mode="merge-on-read"))
    with pytest.raises(frazil.ConflictError):
        run(lambda: stock.append([{"id": 80, "n": 1, "note": "near"}]))
    with pytest.raises(frazil.ConflictError):
        run(lambda: stock.update({"n": "n + 1"}, where="id = 3", mode="merge-on-read"))
    with pytest.raises(frazil.ConflictError):
        run(lambda: stock.delete("id = 3", mode="merge-on-read"))


Act = Callable[[frazil.MergeBuilder], object]
BAD: dict[str, tuple[Act, str]] = {
    "no clause": (lambda merge: merge.execute(), "The merge has no clauses"),
    "a clause after one that takes all": (
        lambda merge: merge.when_matched_delete().when_matched_update_all().execute(),
        "has no condition, so the clauses after it are never reached",
    ),
    "an unknown column": (lambda merge: merge.when_matched_update({"m": "1"}).execute(), "'m'"),
    "no column": (lambda merge: merge.when_matched_update({}).execute(), "names no column"),
    "an ambiguous name": (
        lambda merge: merge.when_matched_update({"n": "n + 1"}).execute(),
        "may be target.n or source.n",
    ),
    "a target column for a row that has none": (
        lambda merge: merge.when_not_matched_insert_all(condition="target.n = 1").execute(),
        "has no target row",
    ),
    "chance in a condition": (
        lambda merge: merge.when_matched_delete(condition="rand() < 0.5").execute(),
        "returns a different value each time",
    ),
    "text for a number": (lambda merge: merge.when_matched_update({"n": "'x'"}).execute(), "'n' is int"),
    "a number that does not fit": (
        lambda merge: merge.when_matched_update({"n": "source.id + 3000000000"}).execute(),
        "'n' is int",
    ),
}


def refuses(stock: frazil.Table, source: Source, name: str) -> None:
    """A bad merge is refused, and nothing is written."""
    act, words = BAD[name]
    before = stock.metadata_location
    with pytest.raises(frazil.FrazilError, match=words):
        act(stock.merge(new(source, 3), on=["id"]))
    assert stock.metadata_location == before


def refuses_a_source_without_a_column(stock: frazil.Table, source: Source) -> None:
    short = source([(3, 3)], "id bigint, n int")
    with pytest.raises(frazil.InvalidInput, match="lacks the column 'note'"):
        stock.merge(short, on=["id"]).when_matched_update_all().execute()
    assert stock.merge(short, on=["id"]).when_matched_update_all(except_cols=["note"]).execute().rows_updated == 1
    assert found(stock)[3] == (3, "old")


def explains(stock: frazil.Table, source: Source) -> None:
    text = stock.merge(new(source, 3), on=["id"]).when_matched_delete("target.n > 3").explain()
    assert "by key     id" in text
    assert "when matched and target.n > 3 then delete" in text
