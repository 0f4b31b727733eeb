"""Columns that become required, and keys of existing tables: no null is left, whoever writes beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.commit.context import Phase
from frazil.read import arrow as read_arrow


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        yield lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    table = lake.create_table("s.t", "id bigint, v bigint, place struct<x: bigint, y: bigint>, tags array<string>")
    table.append([row(1), row(2)])
    return table


def row(number: int | None, v: int | None = 0) -> dict[str, Any]:
    return {"id": number, "v": v, "place": {"x": 1, "y": 2}, "tags": ["a"]}


def required(table: frazil.Table) -> list[str]:
    return [each.name for each in table.schema.fields if each.required]


def at_head(act: Callable[[], object]) -> dict[str, Any]:
    """Options with which ``act`` lands after the call has read its base, and before its first attempt builds."""

    def on_phase(now: Phase, attempt: int) -> None:
        if now is Phase.HEAD_READ and attempt == 1:
            act()

    return {"on_phase": on_phase}


def once_required(table: frazil.Table) -> dict[str, Any]:
    return at_head(lambda: table.require_column("v"))


# Required columns


def test_a_column_without_nulls_becomes_required_and_no_file_is_opened(
    table: frazil.Table, lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*_: Any) -> None:
        raise AssertionError("statistics say that there is no null")

    with monkeypatch.context() as patched:
        patched.setattr(read_arrow, "opened", unexpected)
        assert table.require_column("v").changed
    assert required(table) == ["v"]
    assert not table.require_column("v").changed
    with pytest.raises(frazil.SchemaMismatch, match="v"):
        table.append([row(3, None)])
    assert [each.name for each in lake.pyiceberg().load_table("s.t").schema().fields if each.required] == ["v"]
    table.make_optional("v")
    table.append([row(3, None)])
    with pytest.raises(frazil.InvalidInput, match=r"'v'.*'main'.*1 row holds null in .*\.parquet.*v IS NULL"):
        table.require_column("v")
    table.update({"v": "7"}, "v IS NULL")
    assert table.require_column("v", commit_id="strict").changed
    assert table.require_column("v", commit_id="strict").already_committed


def test_nulls_that_were_deleted_do_not_count_and_those_that_are_left_do(table: frazil.Table) -> None:
    table.append([row(3, None), row(4, None), row(5)])
    table.delete("id = 3", mode="merge-on-read")
    with pytest.raises(frazil.InvalidInput, match="1 row holds null"):
        table.require_column("v")
    table.delete("id = 4", mode="merge-on-read")
    table.require_column("v")
    assert required(table) == ["v"]


def test_every_branch_is_checked(table: frazil.Table) -> None:
    table.create_branch("audit")
    table.append([row(3, None)], branch="audit")
    with pytest.raises(frazil.InvalidInput, match="'audit'"):
        table.require_column("v")
    table.drop_branch("audit")
    table.require_column("v")


def test_an_empty_table_and_nested_columns(lake: frazil.Lake, table: frazil.Table) -> None:
    empty = lake.create_table("s.empty", "id bigint")
    empty.require_column("ID")
    assert required(empty) == ["id"]
    with pytest.raises(
        frazil.InvalidInput, match=r"'place\.x' is in 'place', which may be null.*Make 'place' required"
    ):
        table.require_column("place.x")
    table.require_column("place")
    table.require_column("place.x")
    assert table.schema.find_field("place.x").required
    with pytest.raises(frazil.InvalidInput, match="inside a list"):
        table.require_column("tags.element")
    with pytest.raises(frazil.InvalidInput, match="no column 'nope'"):
        table.require_column("nope")


def test_nulls_appended_beside_it_are_a_conflict(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction() as tx:
        tx.table("s.t").require_column("v")
        table.append([row(3)])
    assert required(table) == ["v"], "rows with values do not matter"
    table.make_optional("v")
    tx = lake.transaction()
    tx.table("s.t").require_column("v")
    table.append([row(4, None)])
    with pytest.raises(frazil.ConflictError, match="added rows that match"):
        tx.commit()
    assert required(table) == []
    table.delete("v IS NULL")
    for isolation in ("serializable", "snapshot"):
        tx = lake.transaction(isolation=isolation)
        tx.table("s.t").require_column("v")
        table.update({"v": "null"}, "id = 1")
        with pytest.raises(frazil.ConflictError):
            tx.commit()
        table.update({"v": "1"}, "id = 1")
    assert required(table) == []


def test_an_append_of_nulls_that_was_staged_before_is_refused(table: frazil.Table) -> None:
    table.append([row(3)], **once_required(table))
    assert required(table) == ["v"]
    table.make_optional("v")
    with pytest.raises(frazil.ConflictError, match="v was made required concurrently"):
        table.append([row(4, None), row(5)], **once_required(table))
    assert required(table) == ["v"]
    assert table.scan().count() == 3


def test_a_transaction_fills_and_requires_in_one_commit(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append([row(3, None)])
    with lake.transaction() as tx:
        mine = tx.table("s.t")
        mine.update({"v": "0"}, "v IS NULL")
        mine.require_column("v")
        with pytest.raises(frazil.SchemaMismatch):
            mine.append([row(4, None)])
    assert required(table) == ["v"]
    assert table.scan(where="v IS NULL").count() == 0


def test_sql_requires_and_releases(lake: frazil.Lake, table: frazil.Table) -> None:
    lake.sql("ALTER TABLE s.t ALTER COLUMN v SET NOT NULL")
    assert required(table) == ["v"]
    lake.sql("ALTER TABLE s.t ALTER COLUMN v DROP NOT NULL")
    assert required(table) == []


# Keys


def test_keys_are_set_on_a_table_that_has_rows(table: frazil.Table) -> None:
    done = table.set_keys(["id", "place.x"])
    assert done.changed
    assert (table.keys, required(table)) == (("id", "place.x"), ["id", "place"])
    table.set_keys(["id"])
    table.upsert([row(1, 9), row(3, 9)])
    assert {each["id"]: each["v"] for each in table.scan().to_arrow().to_pylist()} == {1: 9, 2: 0, 3: 9}
    table.set_keys([])
    assert (table.keys, required(table)) == ((), ["id", "place"])
    table.set_keys("id")
    table.set_keys(None)
    assert table.keys == ()


def test_keys_that_are_null_in_a_row_or_of_a_wrong_type_are_refused(lake: frazil.Lake, table: frazil.Table) -> None:
    table.append([row(None)])
    with pytest.raises(frazil.InvalidInput, match=r"'id'.*1 row holds null in"):
        table.set_keys(["id"])
    with pytest.raises(frazil.InvalidInput, match="cannot be a key"):
        table.set_keys(["place"])
    floats = lake.create_table("s.floats", as_=pa.table({"x": [1.5]}))
    with pytest.raises(frazil.InvalidInput, match="double and cannot be a key"):
        floats.set_keys(["x"])
    assert (table.keys, required(table), required(floats)) == ((), [], [])


def test_a_null_key_appended_beside_it_is_a_conflict(lake: frazil.Lake, table: frazil.Table) -> None:
    tx = lake.transaction()
    tx.table("s.t").set_keys(["id"])
    table.append([row(None)])
    with pytest.raises(frazil.ConflictError, match="added rows that match"):
        tx.commit()
    assert table.keys == ()
