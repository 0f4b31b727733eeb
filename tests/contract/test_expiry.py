"""Expiry on every kind of catalog: ours fence it by the swap, those of others by a requirement for every ref (P29)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import frazil
from contract.openers import Address

FUTURE = 10**15
NAME = "shop.events"


@pytest.fixture
def lake(address: Address) -> Iterator[frazil.Lake]:
    with frazil.connect(
        address.uri, warehouse=address.warehouse, name=address.name, properties=dict(address.properties)
    ) as lake:
        lake.create_namespace("shop")
        yield lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    table = lake.create_table(NAME, "id bigint")
    for number in range(3):
        table.append([{"id": number}])
    return table


def ids(table: frazil.Table) -> list[int]:
    return [each.snapshot_id for each in table.history()]


def rows(table: frazil.Table) -> list[int]:
    return sorted(row["id"] for row in table.scan().to_arrow().to_pylist())


def test_expiry_lands_once_per_commit_id(table: frazil.Table) -> None:
    newest = ids(table)[-2:]
    assert table.expire_snapshots(FUTURE, retain_last=2, commit_id="nightly").changed
    assert ids(table) == newest
    assert table.expire_snapshots(FUTURE, retain_last=2, commit_id="nightly").already_committed
    assert not table.expire_snapshots(FUTURE, retain_last=2).changed
    assert not table.expire_snapshots(FUTURE, retain_last=2, commit_id="again").changed
    assert table.expire_snapshots(FUTURE, retain_last=2, commit_id="again").already_committed
    assert (ids(table), rows(table)) == (newest, [0, 1, 2])


def test_r10_expiry_keeps_what_was_tagged_concurrently(lake: frazil.Lake, table: frazil.Table) -> None:
    old, *_, newest = ids(table)
    late = lake.transaction()
    late.table(NAME).expire_snapshots(FUTURE)
    table.create_tag("audit", old)
    late.commit()
    assert ids(table) == [old, newest]


def test_r10_an_expired_snapshot_is_not_tagged(lake: frazil.Lake, table: frazil.Table) -> None:
    old = ids(table)[0]
    late = lake.transaction()
    late.table(NAME).create_tag("audit", old)
    table.expire_snapshots(FUTURE)
    with pytest.raises(frazil.ConflictError, match="has expired"):
        late.commit()
    assert "audit" not in table.refs


def test_two_expiries_of_one_snapshot_both_succeed(lake: frazil.Lake, table: frazil.Table) -> None:
    late = lake.transaction()
    late.table(NAME).expire_snapshots(FUTURE)
    table.expire_snapshots(FUTURE)
    late.commit()
    assert len(ids(table)) == 1


def test_p18_a_delete_lands_over_its_expired_base(lake: frazil.Lake, table: frazil.Table) -> None:
    late = lake.transaction()
    late.table(NAME).delete("id = 1")
    for number in range(10, 15):
        table.append([{"id": number}])
    table.expire_snapshots(FUTURE)
    late.commit()
    assert rows(table) == [0, 2, *range(10, 15)]


def test_p18_a_delete_over_its_expired_base_does_not_land_unchecked(lake: frazil.Lake, table: frazil.Table) -> None:
    late = lake.transaction()
    late.table(NAME).delete("id = 1")
    table.append([{"id": 1}])
    table.append([{"id": 10}])
    table.expire_snapshots(FUTURE)
    with pytest.raises(frazil.ConflictError, match="match what this"):
        late.commit()
    assert rows(table) == [0, 1, 1, 2, 10]
