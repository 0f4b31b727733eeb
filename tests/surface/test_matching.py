"""Upserts and deletes by columns that the caller names, and upserts in which the latest row of a key wins."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import frazil
from surface.matrix import files_of, named_files, rows_of

MODES = ["position", "copy-on-write"]


def row(key: int | None, ts: int | None, v: str = "old") -> dict[str, Any]:
    return {"id": key, "ts": ts, "v": v}


def table_of(rows: list[dict[str, Any]], keys: list[str] | None = None, **options: Any) -> frazil.Table:
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    ddl = "id bigint, ts bigint, v string" if keys is None else "id bigint not null, ts bigint, v string"
    table = lake.create_table("ns.t", ddl, keys=keys, **options)
    table.append(rows)
    return table


def shown(table: frazil.Table) -> list[tuple[Any, ...]]:
    found = [(each["id"], each["ts"], each["v"]) for each in rows_of(table)]
    return sorted(found, key=lambda each: tuple((part is not None, part) for part in each))


@pytest.mark.parametrize("mode", [None, *MODES])
def test_an_upsert_on_columns_that_are_not_declared(mode: Any) -> None:
    table = table_of([row(1, 1), row(2, 1), row(2, 2), row(None, 1)])
    done = table.upsert([row(2, 9, "new"), row(3, 9, "new")], on=["ID"], mode=mode)
    assert shown(table) == [(None, 1, "old"), (1, 1, "old"), (2, 9, "new"), (3, 9, "new")]
    assert (done.rows_inserted, done.rows_updated, done.rows_deleted) == (1, 1, 1)
    table.upsert([row(1, 1, "both"), row(1, 2, "both")], on=["id", "ts"], mode=mode)
    assert shown(table) == [(None, 1, "old"), (1, 1, "both"), (1, 2, "both"), (2, 9, "new"), (3, 9, "new")]
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize("mode", MODES)
def test_a_null_key_equals_nothing(mode: Any) -> None:
    table = table_of([row(1, 1), row(None, 1)])
    table.upsert([row(None, 2, "new"), row(None, 3, "new"), row(1, 2, "new")], on=["id"], mode=mode)
    assert shown(table) == [(None, 1, "old"), (None, 2, "new"), (None, 3, "new"), (1, 2, "new")]
    assert table.delete_keys([{"id": None}], on=["id"], mode=mode).rows_deleted == 0
    assert len(shown(table)) == 4


@pytest.mark.parametrize("kind", ["double", "float"])
@pytest.mark.parametrize("mode", MODES)
def test_0_and_minus_0_are_one_key_and_nan_is_equal_to_itself(mode: Any, kind: str) -> None:
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    table = lake.create_table("ns.d", f"d {kind}, v bigint")
    table.append([{"d": each, "v": 1} for each in (0.0, float("nan"), None, 1.5)])
    given = [{"d": each, "v": 2} for each in (-0.0, float("nan"), None)]
    done = table.upsert(given, on=["d"], mode=mode)
    assert (done.rows_inserted, done.rows_updated, done.rows_deleted) == (1, 2, 0)
    with pytest.raises(frazil.InvalidInput, match="2 of the rows have the same key"):
        table.upsert([{"d": 0.0, "v": 3}, {"d": -0.0, "v": 3}], on=["d"], mode=mode)
    table.upsert([{"d": 0.0, "v": 3}], on=["d"], latest_by="v", mode=mode)
    assert sorted(row["v"] for row in rows_of(table)) == [1, 1, 2, 2, 3]
    assert table.delete_keys([{"d": -0.0}, {"d": float("nan")}], on=["d"], mode=mode).rows_deleted == 2


@pytest.mark.parametrize("keys", [None, ["id"]])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_the_latest_row_of_a_key_wins(keys: Any, mode: Any) -> None:
    table = table_of([row(1, 5), row(2, 5), row(3, 5), row(4, None), row(5, 5)], keys)
    incoming = [
        row(1, 4, "older"),
        row(2, 5, "equal"),
        row(3, 7, "newest"),
        row(3, 6, "newer"),
        row(4, 0, "after null"),
        row(5, None, "null"),
        row(6, 1, "first"),
        row(6, 1, "tie"),
        row(7, None, "none"),
    ]
    done = table.upsert(incoming, on=None if keys else ["id"], latest_by="ts", mode=mode)
    assert shown(table) == [
        (1, 5, "old"),
        (2, 5, "equal"),
        (3, 7, "newest"),
        (4, 0, "after null"),
        (5, 5, "old"),
        (6, 1, "tie"),
        (7, None, "none"),
    ]
    assert (done.rows_inserted, done.rows_updated, done.rows_deleted) == (2, 3, 0)
    assert files_of(table) == named_files(table)
    assert not table.upsert([row(1, 4, "older")], on=["id"], latest_by="ts", mode=mode).changed


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_and_in_any_batches_the_latest_rows_remain(seed: int) -> None:
    chance = random.Random(seed)
    rows = [row(chance.randrange(6), number, str(number)) for number in range(40)]
    expected = {each["id"]: each["v"] for each in rows}
    chance.shuffle(rows)
    table = table_of([], partition_by=["bucket(3, id)"])
    while rows:
        size = chance.randrange(1, 15)
        table.upsert(rows[:size], on=["id"], latest_by="ts", mode=chance.choice(MODES))  # type: ignore[arg-type]
        rows = rows[size:]
    assert {each["id"]: each["v"] for each in rows_of(table)} == expected


@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_decided_must_not_change_meanwhile(mode: Any) -> None:
    table = table_of([row(1, 5), row(2, 5)])
    changes: list[Callable[[], frazil.Commit]] = [
        lambda: table.append([row(1, 7, "newer")]),
        lambda: table.update({"ts": "9"}, "id = 1"),
        lambda: table.delete("id = 1"),
    ]
    for change in changes:
        tx = table._source.lake.transaction()
        tx.table("ns.t").upsert([row(1, 4, "older"), row(2, 6, "new")], on=["id"], latest_by="ts", mode=mode)
        change()
        with pytest.raises(frazil.ConflictError):
            tx.commit()
    tx = table._source.lake.transaction()
    tx.table("ns.t").upsert([row(2, 6, "new")], on=["id"], mode=mode)
    table.append([row(9, 1)])
    tx.commit()
    assert (2, 6, "new") in shown(table)


@pytest.mark.parametrize("keys", [None, ["id"]])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_keys_are_deleted(keys: Any, mode: Any) -> None:
    table = table_of([row(1, 1), row(2, 1), row(2, 2), row(3, 1)], keys)
    table.delete_keys([{"id": 2}, {"id": 2}, {"id": 9}], on=None if keys else ["id"], mode=mode)
    assert shown(table) == [(1, 1, "old"), (3, 1, "old")]
    table.delete_keys([{"id": 1, "ts": 2}, {"id": 3, "ts": 1}], on=["ts", "id"], mode=mode)
    assert shown(table) == [(1, 1, "old")]
    assert table.delete_keys([], on=["id"], mode="position").changed is False


def test_by_declared_keys_nothing_is_read() -> None:
    table = table_of([row(1, 1), row(2, 1)], ["id"])
    assert _deletes(table) == []
    table.delete_keys([{"id": 2}])
    assert [each.content for each in _deletes(table)] == [2]


def _deletes(table: frazil.Table) -> list[Any]:
    from frazil.format.manifests import read_manifest, read_manifest_list

    metadata, storage = table._metadata(), table._storage
    snapshot = metadata.head_snapshot("main")
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    found = []
    for manifest in read_manifest_list(storage, snapshot.manifest_list):
        found += [each.file for each in read_manifest(storage, manifest) if each.file.content != 0]
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"on": "id"},
        {"on": []},
        {"on": ["nope"]},
        {"on": [7]},
        {"on": ["id"], "mode": "equality"},
        {"on": ["id"], "latest_by": "nope"},
        {"on": ["id"], "latest_by": "d"},
        {"on": ["id"], "latest_by": 7},
        {"on": ["s"]},
        {},
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any]) -> None:
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    table = lake.create_table("ns.t", "id bigint, d double, s struct<a: int>")
    with pytest.raises(frazil.InvalidInput):
        table.upsert([{"id": 1}], **options)
    if "latest_by" not in options:
        with pytest.raises(frazil.InvalidInput):
            table.delete_keys([{"id": 1}], **options)
    assert table.snapshot() is None


def test_equality_is_refused_with_latest_by_and_two_rows_of_one_key_without_it() -> None:
    table = table_of([row(1, 1)], ["id"])
    with pytest.raises(frazil.InvalidInput, match="latest_by"):
        table.upsert([row(1, 2)], latest_by="ts", mode="equality")
    with pytest.raises(frazil.InvalidInput, match="id=1"):
        table.upsert([row(1, 2), row(1, 3)], on=["id", "v"], mode="position")
    assert shown(table) == [(1, 1, "old")]
