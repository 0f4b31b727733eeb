"""Which rows came and went: replayed over the rows before, the changes give the rows after."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil import InvalidInput
from frazil.read.changes import DELETE, INSERT, ORDINAL, SNAPSHOT, TYPE

DDL = "id bigint not null, k int, name string, amount double, ts timestamp"
FACTS = (TYPE, ORDINAL, SNAPSHOT)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("shop")
        yield lake


def rows(*ids: int, name: str = "new") -> list[dict[str, Any]]:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return [
        {
            "id": number,
            "k": number % 5 if number % 7 else None,
            "name": name,
            "amount": number * 0.5,
            "ts": start + dt.timedelta(number),
        }
        for number in ids
    ]


def bag(table: pa.Table) -> Counter[str]:
    """Rows as a multiset."""
    return Counter(repr(tuple(row.values())) for row in table.to_pylist())


def replayed(before: Counter[str], changes: pa.Table) -> Counter[str]:
    found = Counter(before)
    shown = [name for name in changes.column_names if name not in FACTS]
    for row in changes.to_pylist():
        values = repr(tuple(row[name] for name in shown))
        if row[TYPE] == DELETE:
            assert found[values] > 0, f"{values} went, and was not there"
            found[values] -= 1
        else:
            assert row[TYPE] == INSERT
            found[values] += 1
    return +found


def told(table: frazil.Table, since: int | None, until: int | None = None) -> list[tuple[str, int, Any, Any]]:
    found = table.changes(since, until).to_arrow().to_pylist()
    return sorted((row[TYPE], row[ORDINAL], row["id"], row["name"]) for row in found)


def now(table: frazil.Table) -> int:
    snapshot = table.snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


# Each verb


def test_appended_rows_come(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append(rows(1, 2))
    first = now(table)
    table.append(rows(3))
    table.append(rows(4))
    assert told(table, first) == [(INSERT, 0, 3, "new"), (INSERT, 1, 4, "new")]
    found = table.changes(first)
    assert found.snapshots == tuple(each.snapshot_id for each in table.history()[1:])
    assert found.count() == 2
    assert [row[SNAPSHOT] for row in found.to_arrow().to_pylist()] == list(found.snapshots)
    assert found.schema.names == [*table.scan().schema.names, TYPE, ORDINAL, SNAPSHOT]
    assert pa.table(found).equals(found.to_arrow())


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_deleted_rows_go_and_no_other(lake: frazil.Lake, mode: Any) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append(rows(*range(10)))
    first = now(table)
    table.delete("id in (3, 4)", mode=mode)
    assert told(table, first) == [(DELETE, 0, 3, "new"), (DELETE, 0, 4, "new")]
    second = now(table)
    table.delete("id > 7", mode=mode)
    assert told(table, second) == [(DELETE, 0, 8, "new"), (DELETE, 0, 9, "new")]
    table.delete("true")
    assert table.changes(second).count() == 8


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_an_updated_row_goes_and_comes(lake: frazil.Lake, mode: Any) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append(rows(*range(10)))
    first = now(table)
    table.update({"name": "'other'"}, where="id = 3", mode=mode)
    assert told(table, first) == [(DELETE, 0, 3, "new"), (INSERT, 0, 3, "other")]
    assert [row[TYPE] for row in table.changes(first).to_arrow().to_pylist()] == [DELETE, INSERT]


@pytest.mark.parametrize("mode", ["equality", "position", "copy-on-write"])
def test_an_upserted_row_goes_and_comes(lake: frazil.Lake, mode: Any) -> None:
    table = lake.create_table("shop.t", DDL, keys=["id"], partition_by=["bucket(3, id)"])
    table.append(rows(*range(10)))
    first = now(table)
    table.upsert(rows(3, 30, name="up"), mode=mode)
    assert told(table, first) == [(DELETE, 0, 3, "new"), (INSERT, 0, 3, "up"), (INSERT, 0, 30, "up")]
    second = now(table)
    table.upsert(rows(3, name="again"), mode=mode)
    assert told(table, second) == [(DELETE, 0, 3, "up"), (INSERT, 0, 3, "again")]


def test_an_overwrite_of_some_rows_leaves_the_others_alone(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append(rows(*range(10)))
    first = now(table)
    table.overwrite(rows(1, name="over"), where="id < 2")
    assert told(table, first) == [(DELETE, 0, 0, "new"), (DELETE, 0, 1, "new"), (INSERT, 0, 1, "over")]


def test_a_compaction_changes_nothing_and_has_no_ordinal(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", DDL)
    for number in range(6):
        table.append(rows(number))
    table.delete("id = 1", mode="merge-on-read")
    first = now(table)
    table.compact()
    assert table.snapshot().operation == "replace"  # type: ignore[union-attr]
    assert told(table, first) == []
    table.delete("id = 2")
    assert told(table, first) == [(DELETE, 0, 2, "new")]


def test_rows_of_a_copy_that_an_earlier_delete_took_out_do_not_go_twice(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", DDL, keys=["id"])
    table.append(rows(*range(10)))
    table.delete("id = 5", mode="merge-on-read")
    table.upsert(rows(6, name="up"), mode="equality")
    first = now(table)
    table.delete("id = 0", mode="copy-on-write")
    assert told(table, first) == [(DELETE, 0, 0, "new")]


# Which snapshots


def test_since_none_begins_with_nothing(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", DDL)
    assert table.changes(None).count() == 0
    table.append(rows(1, 2))
    table.delete("id = 1")
    assert told(table, None) == [(DELETE, 1, 1, "new"), (INSERT, 0, 1, "new"), (INSERT, 0, 2, "new")]


def test_since_none_after_an_expiry_begins_with_the_oldest_rows(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", DDL)
    for number in range(3):
        table.append(rows(number))
    table.compact()
    table.expire_snapshots(older_than=dt.datetime.now(dt.UTC) + dt.timedelta(days=1), retain_last=1)
    assert [each.operation for each in table.history()] == ["replace"]
    assert told(table, None) == [(INSERT, 0, number, "new") for number in range(3)]


def test_until_ends_it_and_times_name_snapshots(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", DDL)
    for number in range(4):
        table.append(rows(number))
    history = table.history()
    ids = [each.snapshot_id for each in history]
    assert told(table, ids[0], ids[2]) == [(INSERT, 0, 1, "new"), (INSERT, 1, 2, "new")]
    assert told(table, ids[2], ids[2]) == []
    moment = history[1].committed_at
    at = table.scan(as_of=moment).snapshot_id
    assert table.changes(moment.isoformat()).count() == table.changes(moment).count() == 3 - ids.index(at)  # type: ignore[arg-type]


def test_a_snapshot_that_is_no_ancestor_is_refused(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append(rows(1))
    first = now(table)
    table.append(rows(2))
    second = now(table)
    with pytest.raises(InvalidInput, match="is not a descendant of snapshot"):
        table.changes(second, first)
    with pytest.raises(InvalidInput, match="The table has no snapshot 7"):
        table.changes(7)
    with pytest.raises(InvalidInput, match="names no time zone"):
        table.changes("2026-01-01 00:00:00")
    table.rollback_to(first)
    table.append(rows(3))
    with pytest.raises(InvalidInput, match="rolled back"):
        table.changes(second)


def test_an_expired_snapshot_between_is_refused(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", DDL)
    for number in range(3):
        table.append(rows(number))
    ids = [each.snapshot_id for each in table.history()]
    table.create_tag("first", snapshot=ids[0])
    table.expire_snapshots(older_than=dt.datetime.now(dt.UTC) + dt.timedelta(days=1), retain_last=1)
    with pytest.raises(InvalidInput, match="expired"):
        table.changes(ids[0])


def test_the_current_schema_shows_old_rows(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", "id bigint, name string")
    table.append([{"id": 1, "name": "a"}])
    table.append([{"id": 2, "name": "b", "extra": 5}], merge_schema=True)
    found = table.changes(None).to_arrow().select(["id", "name", "extra", TYPE]).to_pylist()
    assert [tuple(row.values()) for row in found] == [(1, "a", None, INSERT), (2, "b", 5, INSERT)]


def test_a_column_with_one_of_our_names_is_refused(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", f"id bigint, {TYPE} string")
    with pytest.raises(InvalidInput, match="Rename the column"):
        table.changes(None)


# Other engines


def test_rows_that_another_engine_copied_are_no_changes(lake: frazil.Lake) -> None:
    lake.create_table("shop.t", "id bigint, name string, x double, tags array<string>")
    table = lake.table("shop.t")
    same = {"id": 1, "name": "a", "x": float("nan"), "tags": ["p", None]}
    table.append([same, same, {"id": 2, "name": "b", "x": -0.0, "tags": None}])
    first = now(table)
    # PyIceberg copies the rest of a file and leaves no record of it.
    table.pyiceberg().delete("id = 2")
    assert told(table, first) == [(DELETE, 0, 2, "b")]


def test_without_its_record_a_copy_is_found_by_its_values(lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", DDL)
    table.append(rows(*range(10)))
    first = now(table)
    table.delete("id = 3", mode="copy-on-write")
    path = table.snapshot().summary["frazil.lineage"]  # type: ignore[union-attr]
    Path(path.removeprefix("file://")).unlink()
    assert told(table, first) == [(DELETE, 0, 3, "new")]


# Any history


Verb = Callable[[frazil.Table, random.Random], object]


def _some(choose: random.Random) -> str:
    return choose.choice(["k = 1", "k is null", "id % 4 = 1", "id < 12", "amount > 7 and name = 'new'", "id = 3"])


def _new(choose: random.Random) -> list[dict[str, Any]]:
    return rows(*sorted(choose.sample(range(30), choose.randint(1, 8))), name=choose.choice(["new", "b", "c"]))


def _over(table: frazil.Table, choose: random.Random) -> object:
    bound = choose.randint(1, 30)
    return table.overwrite([row for row in _new(choose) if row["id"] < bound], where=f"id < {bound}")


VERBS: list[Verb] = [
    lambda table, choose: table.append(_new(choose)),
    lambda table, choose: table.delete(_some(choose), mode="merge-on-read"),
    lambda table, choose: table.delete(_some(choose), mode="copy-on-write"),
    lambda table, choose: table.update({"amount": "amount + 1"}, where=_some(choose), mode="merge-on-read"),
    lambda table, choose: table.update({"name": "'u'"}, where=_some(choose), mode="copy-on-write"),
    lambda table, choose: table.upsert(_new(choose), mode="equality"),
    lambda table, choose: table.upsert(_new(choose), mode="position"),
    lambda table, choose: table.upsert(_new(choose), mode="copy-on-write"),
    _over,
    lambda table, _: table.compact(),
]


def grown(lake: frazil.Lake, choose: random.Random, steps: int, name: str = "shop.t") -> frazil.Table:
    """A table with a random history."""
    spec = choose.choice([[], ["bucket(2, id)"], ["k"]])
    table = lake.create_table(name, DDL, keys=["id"], partition_by=spec)
    table.append(rows(*range(20)))
    for _ in range(steps):
        choose.choice(VERBS)(table, choose)
    return table


@pytest.mark.parametrize("seed", range(8))
def test_replaying_the_changes_gives_the_rows(lake: frazil.Lake, seed: int) -> None:
    choose = random.Random(seed)
    table = grown(lake, choose, 12)
    ids = [each.snapshot_id for each in table.history()]
    seen = {each: bag(table.scan(snapshot=each).to_arrow()) for each in ids}
    for before, after in pairwise(ids):
        assert replayed(seen[before], table.changes(before, after).to_arrow()) == seen[after]
    for _ in range(4):
        first, last = sorted(choose.sample(range(len(ids)), 2)) if len(ids) > 1 else (0, 0)
        found = table.changes(ids[first], ids[last])
        assert replayed(seen[ids[first]], found.to_arrow()) == seen[ids[last]]
        assert found.count() == found.to_arrow().num_rows
    assert replayed(Counter(), table.changes(None).to_arrow()) == seen[ids[-1]]


@pytest.mark.parametrize("seed", range(4))
def test_our_record_of_copies_and_the_values_agree(lake: frazil.Lake, seed: int) -> None:
    """What the record says stays is, as rows, what comparing values finds: the two differ at most by equal pairs."""
    table = grown(lake, random.Random(100 + seed), 8)
    found = table.changes(None)
    by_value = type(found)(found.table, found.steps, found.columns, found.storage, found.metadata, lambda _: None, None)
    exact, guessed = found.to_arrow(), by_value.to_arrow()
    for ordinal in range(len(found.steps)):
        nets = [_net(each.filter(pa.compute.equal(each[ORDINAL], pa.scalar(ordinal)))) for each in (exact, guessed)]
        assert nets[0] == nets[1]


def _net(changes: pa.Table) -> dict[str, int]:
    net: Counter[str] = Counter()
    for row in changes.to_pylist():
        values = json.dumps({key: str(value) for key, value in row.items() if key not in FACTS})
        net[values] += 1 if row[TYPE] == INSERT else -1
    return {key: count for key, count in net.items() if count}
