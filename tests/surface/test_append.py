"""Appends through the public surface: idempotency, durability, evolution, races at exact moments."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import frazil
from concurrency.writers import unreferenced_files
from frazil.commit.context import Phase


@pytest.fixture
def lake(tmp_path: Path) -> frazil.Lake:
    lake = frazil.connect(str(tmp_path / "lake"))
    lake.create_namespace("ns")
    return lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    return lake.create_table("ns.t", "a string, b string, n bigint", partition_by=["a"])


def rows(table: frazil.Table, **scan: Any) -> list[dict[str, Any]]:
    return sorted(table.scan(**scan).to_arrow().to_pylist(), key=str)


def once(phase: Phase, act: Callable[[], object]) -> Callable[[Phase, int], None]:
    """Do something at one moment of the first attempt."""

    def on_phase(now: Phase, attempt: int) -> None:
        if now is phase and attempt == 1:
            act()

    return on_phase


def test_rows_come_from_a_generator_a_dataset_and_a_lazy_frame(lake: frazil.Lake, table: frazil.Table) -> None:
    done = table.append({"a": "x", "n": n} for n in range(3))
    assert done.rows_inserted == 3
    table.append(ds.dataset(pa.table({"a": ["y"], "n": [3]})))
    table.append(pl.LazyFrame({"a": ["z", "w"], "n": [4, 9]}).filter(pl.col("n") < 5))
    table.append(({"a": "v", "n": n, "new": n / 2} for n in range(5, 7)), merge_schema=True)
    assert [(row["n"], row["new"]) for row in sorted(rows(table), key=lambda row: row["n"])] == [
        *((n, None) for n in range(5)),
        (5, 2.5),
        (6, 3.0),
    ]
    with pytest.raises(frazil.SchemaMismatch, match="nope"):
        table.append({"nope": n} for n in range(3))
    made = lake.create_table("ns.made", as_=({"id": n} for n in range(2)))
    assert made.scan().count() == 2


def test_a_commit_tells_what_it_did(table: frazil.Table) -> None:
    done = table.append([{"a": "x", "n": 1}, {"a": "y", "n": 2}])
    assert (done.rows_inserted, done.files_added, done.attempts, done.engine) == (2, 2, 1, "arrow")
    assert done.bytes_written > 0
    assert done.changed
    snapshot = table.snapshot()
    assert snapshot is not None
    assert (snapshot.snapshot_id, snapshot.sequence_number) == (done.snapshot_id, done.sequence_number)
    assert snapshot.summary["total-records"] == "2"


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t,
        lambda t: t.to_reader(),
        lambda t: t.to_pylist(),
        lambda t: t.to_pandas(),
        pl.from_arrow,
        lambda t: t.to_batches()[0],
    ],
    ids=["table", "reader", "dicts", "pandas", "polars", "batch"],
)
def test_rows_come_in_many_forms(table: frazil.Table, make: Callable[[pa.Table], Any]) -> None:
    given = pa.table({"n": pa.array([1, 2], pa.int64()), "a": ["x", "y"], "b": pa.array([None, "z"], pa.string())})
    table.append(make(given))
    assert rows(table) == [{"a": "x", "b": None, "n": 1}, {"a": "y", "b": "z", "n": 2}]


def test_a_pandas_index_is_not_a_column(table: frazil.Table) -> None:
    frame = pd.DataFrame({"a": ["x"], "n": [1]}, index=pd.Index([7], name="idx"))
    table.append(frame)
    assert rows(table) == [{"a": "x", "b": None, "n": 1}]


def test_nothing_to_append_makes_no_snapshot_and_keeps_the_id(table: frazil.Table) -> None:
    first = table.append([], commit_id="empty")
    assert (first.changed, first.snapshot_id, table.snapshot()) == (False, None, None)
    assert table.append([], commit_id="empty").already_committed
    with pytest.raises(frazil.InvalidInput, match="0 rows"):
        table.append([{"a": "x"}], commit_id="empty")
    assert rows(table) == []


def test_a_commit_id_is_found_by_another_lake_before_any_file_is_written(table: frazil.Table, tmp_path: Path) -> None:
    done = table.append([{"a": "x", "n": 1}], commit_id="order-7")
    other = frazil.connect(str(tmp_path / "lake")).table("ns.t")
    before = sorted((tmp_path / "lake").rglob("*.*"))
    again = other.append([{"a": "x", "n": 1}], commit_id="order-7")
    assert again.already_committed
    assert (again.snapshot_id, again.rows_inserted) == (done.snapshot_id, 1)
    assert sorted((tmp_path / "lake").rglob("*.*")) == before
    assert len(rows(table)) == 1


def test_one_id_for_two_operations_is_refused(table: frazil.Table) -> None:
    table.append([{"a": "x"}], commit_id="order-7")
    with pytest.raises(frazil.InvalidInput, match="another operation"):
        table.set_properties({"k": "v"}, commit_id="order-7")
    assert "k" not in table.properties


def test_a_dry_run_checks_the_rows_and_writes_nothing(table: frazil.Table, tmp_path: Path) -> None:
    before = sorted((tmp_path / "lake").rglob("*.*"))
    done = table.append([{"a": "x"}, {"a": "y"}], dry_run=True)
    assert (done.changed, done.rows_inserted) == (False, 2)
    with pytest.raises(frazil.SchemaMismatch):
        table.append([{"zzz": 1}], dry_run=True)
    grown = table.append([{"a": "x", "more": 1}], dry_run=True, merge_schema=True)
    assert (grown.changed, grown.rows_inserted) == (False, 1)
    assert "more" not in table.schema.column_names
    assert sorted((tmp_path / "lake").rglob("*.*")) == before


def test_a_bad_table_property_is_found_before_anything_is_staged(table: frazil.Table, tmp_path: Path) -> None:
    with table.pyiceberg().transaction() as transaction:
        transaction.set_properties({"commit.retry.total-timeout-ms": "0"})
    before = sorted((tmp_path / "lake").rglob("*.parquet"))
    with pytest.raises(frazil.InvalidInput):
        table.append([{"a": "x"}])
    assert sorted((tmp_path / "lake").rglob("*.parquet")) == before


def test_p6_every_referenced_file_and_its_folder_is_durable_before_the_swap(
    table: frazil.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def spy(fd: int) -> None:
        real(fd)
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", spy)
    before_swap: list[str] = []
    table.append([{"a": "x"}, {"a": "y"}], on_phase=once(Phase.PREPARED, lambda: before_swap.extend(synced)))
    snapshot = table.snapshot()
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    entries = [file for file in Path(table.location.removeprefix("file://")).rglob("*") if file.is_file()]
    new = {str(path) for path in entries if "00000-" not in path.name or path.suffix == ".parquet"}
    assert len(new) >= 5, "two data files, a manifest, a list and a metadata file"
    assert new <= set(before_swap)
    assert {os.path.dirname(path) for path in new} <= set(before_swap)


def test_p15_files_stay_under_the_spec_they_were_staged_with(table: frazil.Table) -> None:
    def evolve() -> None:
        with table.pyiceberg().update_spec() as update:
            update.remove_field("a")
            update.add_identity("b")

    done = table.append([{"a": "x", "b": "y", "n": 1}], on_phase=once(Phase.PREPARED, evolve))
    assert done.attempts == 2
    table.append([{"a": "x", "b": "z", "n": 2}])
    for where in ("b = 'y'", "a = 'x' and n = 1", "b <> 'z'"):
        assert rows(table, where=where) == [{"a": "x", "b": "y", "n": 1}], where
    assert table.pyiceberg().scan("b = 'y'").to_arrow().num_rows == 1


def test_p16_two_writers_that_add_different_columns_keep_their_values_apart(
    table: frazil.Table, tmp_path: Path
) -> None:
    other = frazil.connect(str(tmp_path / "lake")).table("ns.t")

    def theirs() -> None:
        other.append([{"a": "t", "theirs": 1}], merge_schema=True)

    table.append([{"a": "m", "mine": "x"}], merge_schema=True, on_phase=once(Phase.PREPARED, theirs))
    assert rows(table, columns=["a", "mine", "theirs"]) == [
        {"a": "m", "mine": "x", "theirs": None},
        {"a": "t", "mine": None, "theirs": 1},
    ]


def test_p16_a_written_column_dropped_concurrently_aborts(table: frazil.Table) -> None:
    def drop() -> None:
        with table.pyiceberg().update_schema() as update:
            update.delete_column("n")

    with pytest.raises(frazil.ConflictError, match="dropped") as caught:
        table.append([{"a": "x", "n": 1}], on_phase=once(Phase.PREPARED, drop))
    assert [each.check for each in caught.value.conflicts] == ["schema still compatible"]
    assert unreferenced_files(table) == set()


def test_p16_a_column_without_values_may_be_dropped_concurrently(table: frazil.Table) -> None:
    table.append([{"a": "x"}, {"a": "y", "n": None}], on_phase=once(Phase.PREPARED, lambda: table.drop_column("n")))
    assert rows(table) == [{"a": "x", "b": None}, {"a": "y", "b": None}]


def test_p16_a_nested_column_dropped_concurrently_aborts(lake: frazil.Lake) -> None:
    table = lake.create_table("ns.nested", "s struct<x: int, y: int>")

    def drop() -> None:
        with table.pyiceberg().update_schema() as update:
            update.delete_column(("s", "y"))

    with pytest.raises(frazil.ConflictError, match=r"s\.y"):
        table.append([{"s": {"x": 1, "y": 2}}], on_phase=once(Phase.PREPARED, drop))


def test_p16_a_column_that_must_not_be_null_any_more_refuses_nulls_and_takes_values(table: frazil.Table) -> None:
    def require() -> None:
        with table.pyiceberg().update_schema(allow_incompatible_changes=True) as update:
            update._set_column_requirement("n", required=True)

    with pytest.raises(frazil.ConflictError, match="null"):
        table.append([{"a": "x", "n": None}], on_phase=once(Phase.PREPARED, require))
    table.append([{"a": "x", "n": 1}])
    assert len(rows(table)) == 1


def test_a_column_renamed_concurrently_keeps_its_values(table: frazil.Table) -> None:
    def rename() -> None:
        with table.pyiceberg().update_schema() as update:
            update.rename_column("n", "number")

    table.append([{"a": "x", "n": 7}], on_phase=once(Phase.PREPARED, rename))
    assert rows(table) == [{"a": "x", "b": None, "number": 7}]


def test_merge_schema_adds_and_widens(lake: frazil.Lake) -> None:
    table = lake.create_table("ns.w", "id int, s struct<x: int>")
    table.append([{"id": 1, "s": {"x": 1}}])
    table.append(pa.table({"id": pa.array([2**40]), "s": [{"x": 2, "y": "new"}], "extra": [1.5]}), merge_schema=True)
    assert str(table.schema.find_field("id").field_type) == "long"
    assert rows(table) == [
        {"id": 1, "s": {"x": 1, "y": None}, "extra": None},
        {"id": 2**40, "s": {"x": 2, "y": "new"}, "extra": 1.5},
    ]
    with pytest.raises(frazil.SchemaMismatch, match="extra"):
        table.append([{"id": 3, "extra": "text"}], merge_schema=True)


def test_a_race_with_pyiceberg_loses_nothing_and_leaves_no_file(table: frazil.Table) -> None:
    def theirs() -> None:
        table.pyiceberg().append(pa.table({"a": ["p"], "b": ["p"], "n": pa.array([0], pa.int64())}))

    done = table.append([{"a": "x", "n": 1}], on_phase=once(Phase.PREPARED, theirs))
    assert (done.attempts, done.rebased_over) == (2, 1)
    assert [row["a"] for row in rows(table)] == ["p", "x"]
    assert unreferenced_files(table) == set()


def test_branches_and_tags(table: frazil.Table) -> None:
    table.append([{"a": "base"}])
    table.create_branch("audit")
    table.create_tag("v1")
    table.append([{"a": "audited"}], branch="audit")
    table.append([{"a": "main"}])
    assert [row["a"] for row in rows(table)] == ["base", "main"]
    assert [row["a"] for row in rows(table, ref="audit")] == ["audited", "base"]
    assert [row["a"] for row in rows(table, ref="v1")] == ["base"]
    assert set(table.refs) == {"main", "audit", "v1"}
    with pytest.raises(frazil.InvalidInput, match="tag"):
        table.append([{"a": "x"}], branch="v1")


def test_properties_of_different_keys_commute(table: frazil.Table) -> None:
    table.set_properties({"a": "1", "b": "2"})
    table.remove_properties("a", "never-there")
    assert "a" not in table.properties
    assert table.properties["b"] == "2"
    assert not table.set_properties({"b": "2"}).changed


def test_snapshot_properties_are_kept(table: frazil.Table) -> None:
    table.append([{"a": "x"}], snapshot_properties={"job": "nightly"})
    snapshot = table.snapshot()
    assert snapshot is not None
    assert snapshot.summary["job"] == "nightly"


def test_the_argument_beats_the_tables_retry_properties(table: frazil.Table) -> None:
    table.set_properties({"commit.retry.num-retries": "0"})

    def theirs() -> None:
        table.append([{"a": "theirs"}])

    with pytest.raises(frazil.RetriesExhausted):
        table.append([{"a": "mine"}], on_phase=once(Phase.PREPARED, theirs))
    table.append([{"a": "mine"}], on_phase=once(Phase.PREPARED, theirs), retry=frazil.Retry(tries=3))
    assert [row["a"] for row in rows(table)] == ["mine", "theirs", "theirs"]
