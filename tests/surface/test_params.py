"""Bound parameters: ``:name`` in conditions and values, with typed values that no message shows."""

from __future__ import annotations

import datetime as dt
import logging
import pickle
import uuid
from decimal import Decimal
from typing import Any

import pytest

import frazil
from frazil.expr import Filter, parse_filter, with_params
from surface.matrix import rows_of

DDL = (
    "id bigint not null, s string, d double, n decimal(10,2), ok boolean, day date, ts timestamp, local timestamp_ntz, "
    "raw binary"
)
MOMENT = dt.datetime(2026, 11, 1, 12, 30, 0, 5, tzinfo=dt.UTC)


def row(key: int, s: str | None) -> dict[str, Any]:
    return {
        "id": key,
        "s": s,
        "d": key / 2,
        "n": Decimal(key) / 4,
        "ok": key % 2 == 0,
        "day": dt.date(2026, 11, key),
        "ts": MOMENT + dt.timedelta(days=key - 1),
        "local": MOMENT.replace(tzinfo=None) + dt.timedelta(days=key - 1),
        "raw": bytes([key]),
    }


ROWS = [row(1, "it's"), row(2, "a\\b"), row(3, ":u"), row(4, None)]


@pytest.fixture
def table() -> frazil.Table:
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    table = lake.create_table("ns.t", DDL, keys=["id"])
    table.append(ROWS)
    return table


def ids(table: frazil.Table, where: str | None, params: Any) -> list[int]:
    scan = table.scan(where=where, params=params)
    found: list[Any] = scan.to_arrow()["id"].to_pylist()
    assert scan.count() == len(found)
    return sorted(found)


CASES: list[tuple[str, dict[str, Any], list[int]]] = [
    ("id = :u", {"u": 2}, [2]),
    ("id = :u or id = :u + 1", {"u": 2}, [2, 3]),
    ("id in (:ids)", {"ids": [1, 3, 9]}, [1, 3]),
    ("id in :ids", {"ids": (1, 3)}, [1, 3]),
    ("id in (:ids, 4)", {"ids": {1}}, [1, 4]),
    ("id not in (:ids)", {"ids": [1, None]}, []),
    ("id between :low and :high", {"low": 2, "high": 3}, [2, 3]),
    ("s = :s", {"s": "it's"}, [1]),
    ("s = :s", {"s": "a\\b"}, [2]),
    ("s = :s", {"s": ":u"}, [3]),
    ("s = :s", {"s": "x' or 'a' = 'a"}, []),
    ("s like :p", {"p": "it%"}, [1]),
    ("s <=> :s", {"s": None}, [4]),
    ("s = :s", {"s": None}, []),
    ("d >= :d", {"d": 1.5}, [3, 4]),
    ("n = :n", {"n": Decimal("0.75")}, [3]),
    ("ok = :ok", {"ok": True}, [2, 4]),
    (":ok", {"ok": False}, []),
    ("day = :day", {"day": dt.date(2026, 11, 2)}, [2]),
    ("ts = :ts", {"ts": MOMENT}, [1]),
    ("ts = :ts", {"ts": MOMENT.replace(tzinfo=None)}, [1]),
    ("ts = :ts", {"ts": MOMENT.astimezone(dt.timezone(dt.timedelta(hours=5)))}, [1]),
    ("ts = :ts", {"ts": "2026-11-01 12:30:00.000005"}, [1]),
    ("local = :ts", {"ts": MOMENT.replace(tzinfo=None)}, [1]),
    ("ts > :day", {"day": dt.date(2026, 11, 3)}, [3, 4]),
    ("raw = :raw", {"raw": b"\x02"}, [2]),
    ("id < :big", {"big": 2**70}, [1, 2, 3, 4]),
]


@pytest.mark.parametrize(("where", "params", "expected"), CASES)
def test_a_parameter_selects_what_its_literal_would(
    table: frazil.Table, where: str, params: dict[str, Any], expected: list[int]
) -> None:
    assert ids(table, where, params) == expected


@pytest.mark.parametrize(("where", "params", "expected"), CASES)
def test_a_delete_keeps_a_text_that_any_writer_can_evaluate(
    table: frazil.Table, where: str, params: dict[str, Any], expected: list[int]
) -> None:
    schema = table.schema
    (text,) = with_params(params, where)
    condition = parse_filter(text, schema)
    literal = condition.literal_text
    assert literal is not None
    assert ":" not in literal or "'" in literal
    assert parse_filter(literal, schema).condition == condition.condition
    again: Filter = pickle.loads(pickle.dumps(condition))
    assert again.condition == condition.condition
    assert str(again) == where


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_verbs_take_parameters(table: frazil.Table, mode: Any) -> None:
    assert table.delete("id = :u", params={"u": 4}, mode=mode).rows_deleted == 1
    done = table.update({"s": ":s", "d": "d + :by"}, "id = :u", params={"u": 1, "s": "new", "by": 1.5}, mode=mode)
    assert done.rows_updated == 1
    assert [(each["s"], each["d"]) for each in rows_of(table) if each["id"] == 1] == [("new", 2.0)]
    table.overwrite([row(2, "other")], where="s = :s or s = 'other'", params={"s": "a\\b"})
    assert [each["s"] for each in rows_of(table)] == ["new", "other", ":u"]
    with table._source.lake.transaction() as tx:
        tx.table("ns.t").delete("s = :s", params={"s": "other"})
    assert ids(table, None, None) == [1, 3]


def test_a_concurrent_append_of_deleted_rows_is_found_by_a_parameter_too(table: frazil.Table) -> None:
    tx = table._source.lake.transaction()
    tx.table("ns.t").append([row(4, "gone")])
    table.delete("s = :s or id = 1", params={"s": "gone"})
    with pytest.raises(frazil.ConflictError):
        tx.commit()


@pytest.mark.parametrize(
    ("where", "params"),
    [
        ("id = :u", None),
        ("id = :u", {}),
        ("id = :u", {"v": 7}),
        ("id = :u", {"u": 7, "v": 7}),
        ("id = 7", {"u": 7}),
        ("id = ':u'", {"u": 7}),
        (None, {"u": 7}),
        ("id = ?", {"u": 7}),
        ("id = :u", {"u": object()}),
        ("id = :u", {"u": {"a": 1}}),
        ("id = :u", {"u": [1]}),
        ("id in (:u)", {"u": []}),
        ("id in (:u)", {"u": [[1]]}),
        ("id = :u", [("u", 7)]),
        ("id = :u", {7: 7}),
        ("n = :u", {"u": Decimal("NaN")}),
        ("local = :u", {"u": MOMENT}),
        ("id = :u", {"u": "\ud800"}),
    ],
)
def test_what_does_not_fit_is_refused(table: frazil.Table, where: Any, params: Any) -> None:
    with pytest.raises(frazil.InvalidInput):
        table.scan(where=where, params=params)
    if where is not None:
        with pytest.raises(frazil.InvalidInput):
            table.delete(where, params=params)
        with pytest.raises(frazil.InvalidInput):
            table.update({"s": "'x'"}, where, params=params)
    assert table.scan().count() == 4


SECRET = "Erika-Mustermann-1964"


@pytest.mark.parametrize(
    "where",
    ["id = :u", "day = :u", "ts > :u", "cast(:u as int) = 1", "id = cast(:u as int)", "ok = :u"],
)
def test_no_message_shows_a_value(table: frazil.Table, where: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(frazil.FrazilError) as caught:
        table.scan(where=where, params={"u": SECRET})
    assert SECRET not in str(caught.value)
    assert ":u" in str(caught.value)
    with pytest.raises(frazil.FrazilError) as caught:
        table.update({"id": "cast(:u as bigint)"}, params={"u": SECRET})
    assert SECRET not in str(caught.value)
    with pytest.raises(frazil.FrazilError) as caught:
        table.update({"id": "cast(concat(s, :u) as bigint)"}, params={"u": SECRET})
    assert SECRET not in str(caught.value)
    assert SECRET not in caplog.text


def test_plans_and_reprs_show_the_name(table: frazil.Table) -> None:
    scan = table.scan(where="s = :u", params={"u": SECRET})
    assert SECRET not in scan.explain() + repr(scan)
    assert ":u" in scan.explain()


def test_a_commit_id_with_other_values_is_another_operation(table: frazil.Table) -> None:
    table.delete("id = :u", params={"u": 1}, commit_id="d1")
    assert table.delete("id = :u", params={"u": 1}, commit_id="d1").already_committed
    with pytest.raises(frazil.InvalidInput):
        table.delete("id = :u", params={"u": 2}, commit_id="d1")


def test_a_set_is_the_same_operation_in_whatever_order_it_is_iterated(table: frazil.Table) -> None:
    # Numbers that collide are in the order of their insertion; texts are in another order in every process.
    one, other = set([1, 9]), set([9, 1])  # noqa: C405
    assert list(one) != list(other)
    table.delete("id IN (:ids)", params={"ids": one}, commit_id="d1")
    assert table.delete("id IN (:ids)", params={"ids": other}, commit_id="d1").already_committed


def test_uuids_and_times_are_values_too() -> None:
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField, TimeType, UUIDType

    schema = Schema(NestedField(1, "u", UUIDType()), NestedField(2, "t", TimeType()))
    wanted = uuid.UUID(int=7)
    for value in ({"u": wanted}, {"u": str(wanted)}):
        (text,) = with_params(value, "u = :u")
        assert parse_filter(text, schema).condition == parse_filter(f"u = '{wanted}'", schema).condition
        assert parse_filter(text, schema).literal_text is not None
    (text,) = with_params({"t": dt.time(12, 30, 0, 5)}, "t = :t")
    assert parse_filter(text, schema).condition == parse_filter("t = '12:30:00.000005'", schema).condition
