"""Snapshots that go with ordinary commits, within the limits of rule P18."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import frazil
from frazil import transaction
from frazil.format.properties import RETENTION, RETENTION_MIN_AGE
from frazil.format.retention import MAX_SNAPSHOT_AGE
from frazil.model import Ident

MANY = 70
AT_ONCE = {RETENTION: "true", MAX_SNAPSHOT_AGE: "0", RETENTION_MIN_AGE: "0"}


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    uri = {"memory": f"memory://{uuid.uuid4().hex}", "sqlite": str(tmp_path / "lake")}.get(request.param)
    uri = uri or request.getfixturevalue("postgres_uri")
    warehouse = str(tmp_path / "wh") if request.param == "postgres" else None
    with frazil.connect(uri, warehouse=warehouse) as found:
        found.create_namespace("shop")
        yield found


def made(lake: frazil.Lake, properties: dict[str, str]) -> frazil.Table:
    return lake.create_table("shop.events", "id bigint", properties=properties)


def append_many(table: frazil.Table, count: int = MANY) -> None:
    for number in range(count):
        table.append([{"id": number}])


def dropped(lake: frazil.Lake, table: frazil.Table) -> list[str]:
    found: list[str] = lake.catalog.store.changes.dropped_lists(  # type: ignore[attr-defined]
        lake.catalog.load(Ident.parse(table.name)).metadata.uuid
    )
    return found


def test_old_snapshots_go_with_commits_and_their_lists_are_noted(lake: frazil.Lake) -> None:
    table = made(lake, AT_ONCE)
    append_many(table)
    kept = table.history()
    assert len(kept) < MANY
    assert table.scan().count() == MANY, "rows stay, whatever becomes of old snapshots"
    lists = dropped(lake, table)
    assert len(lists) == len(set(lists)) == MANY - len(kept)
    named = {each.manifest_list for each in lake.catalog.load(Ident.parse(table.name)).metadata.snapshots()}
    assert named.isdisjoint(lists)
    for path in lists:
        lake.storage.read(path)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {MAX_SNAPSHOT_AGE: "0", RETENTION_MIN_AGE: "0"},
        {RETENTION: "true", RETENTION_MIN_AGE: "0"},
        {RETENTION: "true", MAX_SNAPSHOT_AGE: "0"},
    ],
    ids=["nothing asked for", "not asked for", "five days old by default", "an hour old at least"],
)
def test_p18_young_snapshots_stay(lake: frazil.Lake, properties: dict[str, str]) -> None:
    table = made(lake, properties)
    append_many(table)
    assert len(table.history()) == MANY
    assert dropped(lake, table) == []


def test_p18_what_a_ref_needs_stays(lake: frazil.Lake) -> None:
    table = made(lake, AT_ONCE)
    append_many(table, 5)
    table.create_tag("first")
    table.create_branch("side", min_snapshots_to_keep=3)
    append_many(table)
    assert table.scan(ref="first").count() == 5
    assert table.scan(ref="side").count() == 5
    ids = {each.snapshot_id for each in table.history()}
    assert {ref["snapshot-id"] for ref in lake.catalog.load(Ident.parse(table.name)).metadata.refs.values()} <= ids


def test_p18_what_an_open_transaction_needs_stays(lake: frazil.Lake) -> None:
    table = made(lake, AT_ONCE)
    append_many(table, 5)
    reading = lake.transaction()
    seen = reading.table("shop.events")
    pinned = table.snapshot()
    assert pinned is not None
    append_many(table)
    ids = {each.snapshot_id for each in table.history()}
    assert pinned.snapshot_id in ids
    assert len(ids) < MANY, "others have gone"
    assert seen.scan().count() == 5
    reading.rollback()
    append_many(table)
    assert pinned.snapshot_id not in {each.snapshot_id for each in table.history()}


def test_p18_a_transaction_that_died_keeps_nothing_for_ever(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "_PINNED_MS", 0)
    table = made(lake, AT_ONCE)
    append_many(table, 5)
    lake.transaction().table("shop.events")
    pinned = table.snapshot()
    assert pinned is not None
    append_many(table)
    assert pinned.snapshot_id not in {each.snapshot_id for each in table.history()}


def test_a_write_whose_base_has_gone_with_a_commit_still_lands(lake: frazil.Lake) -> None:
    table = made(lake, AT_ONCE)
    append_many(table, 3)
    with lake.transaction() as transaction:
        mine = transaction.table("shop.events")
        assert mine.scan("id = 1").count() == 1
        mine.delete("id = 1")
        for number in range(100, 100 + MANY):
            table.append([{"id": number}])
    assert table.scan("id = 1").count() == 0
    assert table.scan().count() == MANY + 2


def test_p18_retention_that_cannot_be_worked_out_stops_no_commit(lake: frazil.Lake) -> None:
    table = made(lake, {**AT_ONCE, "gc.enabled": "false"})
    append_many(table)
    assert len(table.history()) == MANY


def test_a_bad_property_is_refused_when_it_is_set(lake: frazil.Lake) -> None:
    with pytest.raises(frazil.InvalidInput, match=RETENTION):
        made(lake, {RETENTION: "yes"})
    with pytest.raises(frazil.InvalidInput, match=RETENTION_MIN_AGE):
        made(lake, {RETENTION_MIN_AGE: "1h"})
