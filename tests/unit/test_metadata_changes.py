"""Changes without rows, in tables: mine × theirs → lands, is nothing to do, or conflicts; and what a call refuses.

Mine is made on the base, theirs lands first, then mine is replayed on the head that theirs left.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from frazil.commit import binding as make
from frazil.commit.checks import Check
from frazil.commit.intents import (
    AddColumn,
    Intent,
    IntentConflict,
    NewRef,
    PropertyChange,
    SchemaUnion,
    SinkMark,
    UnpartitionedSpec,
)
from frazil.commit.metadata_changes import metadata_change, pin
from frazil.commit.operations import Identity, MetadataChange, Write, digest
from frazil.commit.retry import Retry
from frazil.errors import InvalidInput, SchemaMismatch, Unsupported
from frazil.expr import Filter
from frazil.format.evolution import bind
from frazil.format.metadata import TableMetadata
from frazil.format.updates import apply
from frazil.model import Commit, Ident, SharedCommit
from frazil.table import changes
from frazil.table.call import Statement
from frazil.table.handle import TableHandle
from frazil.table.options import WriteOptions
from frazil.table.source import Source
from unit.samples import metadata, snapshot, with_snapshots

UUID = metadata().uuid
FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "id", "type": "long", "required": True},
    {"id": 2, "name": "n", "type": "int", "required": False},
    {"id": 3, "name": "ts", "type": "timestamptz", "required": False},
    {"id": 4, "name": "code", "type": "string", "required": True},
    {
        "id": 5,
        "name": "place",
        "required": False,
        "type": {
            "type": "struct",
            "fields": [
                {"id": 6, "name": "city", "type": "string", "required": False},
                {"id": 7, "name": "zip", "type": "int", "required": False},
            ],
        },
    },
    {"id": 8, "name": "price", "type": "decimal(5, 2)", "required": False},
]
BASE = with_snapshots(
    snapshot(1),
    snapshot(2, 1),
    snapshot(3, 2),
    main=2,
    last_column_id=8,
    schemas=[{"type": "struct", "schema-id": 0, "fields": FIELDS, "identifier-field-ids": [1]}],
    partition_specs=[
        {
            "spec-id": 0,
            "fields": [{"source-id": 1, "field-id": 1000, "transform": "bucket[4]", "name": "id_bucket"}],
        }
    ],
    last_partition_id=1000,
    sort_orders=[
        {"order-id": 0, "fields": []},
        {
            "order-id": 1,
            "fields": [{"source-id": 3, "transform": "identity", "direction": "desc", "null-order": "nulls-last"}],
        },
    ],
    default_sort_order_id=1,
)
BASE = TableMetadata(
    {
        **BASE.raw,
        "refs": {
            "main": {"snapshot-id": 2, "type": "branch", "min-snapshots-to-keep": 5},
            "audit": {"snapshot-id": 3, "type": "branch"},
            "v1": {"snapshot-id": 1, "type": "tag"},
        },
    }
)

Make = Callable[[TableMetadata], Intent]


def landed(head: TableMetadata, intent: Intent) -> TableMetadata:
    """The table after the intent, checked to be what PyIceberg reads and what nobody's ids clash in."""
    change = metadata_change(MetadataChange(UUID, intent), head)
    assert change is not None
    updates, requirements = change
    assert {"type": "assert-table-uuid", "uuid": UUID} in requirements
    after = apply(head, updates, now_ms=2_000, previous_location=None)
    theirs = TableMetadataUtil.parse_raw(after.to_json().decode())
    assert theirs.last_column_id >= max(schema.highest_field_id for schema in theirs.schemas)
    for known in ("schemas", "partition-specs", "sort-orders"):
        key = {"schemas": "schema-id", "partition-specs": "spec-id", "sort-orders": "order-id"}[known]
        ids = [each[key] for each in after.raw[known]]
        assert len(ids) == len(set(ids))
    theirs.spec().check_compatible(theirs.schema())
    theirs.sort_order().check_compatible(theirs.schema())
    return after


def after(*makes: Make, head: TableMetadata = BASE) -> TableMetadata:
    for each in makes:
        head = landed(head, each(head))
    return head


def verdict(mine: Make, *theirs: Make) -> str | TableMetadata:
    intent = mine(BASE)
    head = after(*theirs)
    try:
        change = metadata_change(MetadataChange(UUID, intent), head)
    except IntentConflict as conflict:
        return str(conflict)
    return "nothing to do" if change is None else landed(head, intent)


def names(table: TableMetadata) -> list[str]:
    return [field.name for field in table.schema().fields]


def ids(table: TableMetadata) -> dict[str, int]:
    return {name: table.schema().find_field(name).field_id for name in table.schema().column_names}


# Short words for the rows


def add(name: Any, kind: str, **options: Any) -> Make:
    return lambda base: make.make_add_column(base, name, kind, **options)


def drop(*columns: Any) -> Make:
    return lambda base: make.make_drop_columns(base, columns)


def rename(old: Any, new: str) -> Make:
    return lambda base: make.make_rename_column(base, old, new)


def widen(name: Any, kind: str) -> Make:
    return lambda base: make.make_widen_column(base, name, kind)


def move(name: Any, **where: Any) -> Make:
    return lambda base: make.make_move_column(base, name, **where)


def optional(name: Any) -> Make:
    return lambda base: make.make_make_optional(base, name)


def doc(name: Any, text: str | None) -> Make:
    return lambda base: make.make_set_doc(base, name, text)


def keys(*columns: Any) -> Make:
    return lambda base: make.make_set_keys(base, columns)


def partition(*terms: str) -> Make:
    return lambda base: make.make_set_partitioning(base, terms)


def sort(*terms: str) -> Make:
    return lambda base: make.make_set_sort_order(base, terms)


def props(**updates: str) -> Make:
    return lambda base: make.make_property_change(base, updates)


def unset(*gone: str) -> Make:
    return lambda base: make.make_property_change(base, removals=gone)


def branch(name: str, at: Any = None, **retention: int) -> Make:
    return lambda base: make.make_new_ref(base, name, "branch", at, **retention)


def tag(name: str, at: Any = None, **retention: int) -> Make:
    return lambda base: make.make_new_ref(base, name, "tag", at, **retention)


def drop_branch(name: str) -> Make:
    return lambda base: make.make_remove_ref(base, name, "branch")


def drop_tag(name: str) -> Make:
    return lambda base: make.make_remove_ref(base, name, "tag")


def forward(name: str, to: Any) -> Make:
    return lambda base: make.make_fast_forward(base, name, to)


def back(to: Any) -> Make:
    return lambda base: make.make_rollback(base, to)


def current(to: Any) -> Make:
    return lambda base: make.make_set_current(base, to)


def expire(older_than: int | None = None, retain_last: int | None = None) -> Make:
    return lambda base: make.make_expire_snapshots(base, older_than, retain_last)


def union(**columns: pa.DataType) -> Make:
    return lambda base: make.make_schema_union(base, pa.schema(list(columns.items())))


NONE: tuple[Make, ...] = ()

# What lands: mine × theirs → what the table then shows.
LANDS: list[tuple[str, Make, tuple[Make, ...], Callable[[TableMetadata], object], object]] = [
    ("add", add("x", "int"), NONE, lambda t: (ids(t)["x"], t.last_column_id), (9, 9)),
    ("add × another column", add("x", "int"), (add("y", "int"),), lambda t: (ids(t)["y"], ids(t)["x"]), (9, 10)),
    ("add × dropped column", add("x", "int"), (drop("n"),), lambda t: (ids(t)["x"], "n" in ids(t)), (9, False)),
    ("add × same name dropped again", add("x", "int"), (add("x", "int"), drop("x")), lambda t: ids(t)["x"], 10),
    ("add into a renamed struct", add("place.x", "int"), (rename("place", "spot"),), lambda t: ids(t)["spot.x"], 9),
    ("add after a column", add("x", "int", after="n"), NONE, lambda t: names(t)[:3], ["id", "n", "x"]),
    ("add after a renamed one", add("x", "int", after="n"), (rename("n", "m"),), lambda t: names(t)[1:3], ["m", "x"]),
    ("add after a dropped one", add("x", "int", after="n"), (drop("n"),), lambda t: names(t)[:3], ["id", "x", "ts"]),
    ("add first × add first", add("x", "int", first=True), (add("y", "int", first=True),), lambda t: names(t)[0], "x"),
    ("union × another column", union(x=pa.int32()), (add("y", "int"),), lambda t: (ids(t)["y"], ids(t)["x"]), (9, 10)),
    ("drop", drop("n"), NONE, lambda t: ("n" in ids(t), t.last_column_id), (False, 8)),
    ("drop × another dropped", drop("n", "price"), (drop("n"),), lambda t: {"n", "price"} & set(ids(t)), set()),
    ("drop × renamed", drop("n"), (rename("n", "m"),), lambda t: 2 in t.schema().field_ids, False),
    ("drop × widened", drop("n"), (widen("n", "long"),), lambda t: 2 in t.schema().field_ids, False),
    ("drop × new column in the struct", drop("place"), (add("place.x", "int"),), lambda t: "place" in ids(t), False),
    ("rename", rename("n", "m"), NONE, lambda t: ids(t)["m"], 2),
    ("rename × widened", rename("n", "m"), (widen("n", "long"),), lambda t: str(t.schema().find_type("m")), "long"),
    ("rename × struct renamed", rename("place.zip", "pc"), (rename("place", "s"),), lambda t: ids(t)["s.pc"], 7),
    ("rename × moved", rename("n", "m"), (move("n", first=True),), lambda t: names(t)[0], "m"),
    ("rename × name free again", rename("n", "x"), (add("x", "int"), drop("x")), lambda t: ids(t)["x"], 2),
    ("widen", widen("n", "long"), NONE, lambda t: str(t.schema().find_type("n")), "long"),
    ("widen × renamed", widen("n", "long"), (rename("n", "m"),), lambda t: str(t.schema().find_type("m")), "long"),
    (
        "widen × a little wider",
        widen("price", "decimal(9, 2)"),
        (widen("price", "decimal(7, 2)"),),
        lambda t: str(t.schema().find_type("price")),
        "decimal(9, 2)",
    ),
    ("move", move("price", after="id"), NONE, lambda t: names(t)[:2], ["id", "price"]),
    ("move × moved", move("price", first=True), (move("price", after="n"),), lambda t: names(t)[0], "price"),
    ("move × anchor dropped", move("price", before="n"), (drop("n"),), lambda t: names(t)[:2], ["id", "price"]),
    ("optional", optional("code"), NONE, lambda t: t.schema().find_field("code").required, False),
    (
        "optional × renamed",
        optional("code"),
        (rename("code", "c"),),
        lambda t: t.schema().find_field("c").required,
        False,
    ),
    ("doc × doc", doc("n", "mine"), (doc("n", "theirs"),), lambda t: t.schema().find_field("n").doc, "mine"),
    ("no doc", doc("n", None), (doc("id", "x"), doc("n", "y")), lambda t: t.schema().find_field("n").doc, None),
    ("keys", keys("id", "code"), NONE, lambda t: t.schema().identifier_field_ids, [1, 4]),
    ("keys × renamed", keys("code"), (rename("code", "c"),), lambda t: t.schema().identifier_field_names(), {"c"}),
    ("keys × column added", keys("code"), (add("x", "int"),), lambda t: t.schema().identifier_field_ids, [4]),
    ("partition", partition("day(ts)"), NONE, lambda t: [f.field_id for f in t.spec().fields], [1001]),
    ("partition × sort", partition("day(ts)"), (sort("id"),), lambda t: t.default_spec_id, 1),
    ("partition × spec listed", partition("day(ts)"), (lambda _: UnpartitionedSpec(),), lambda t: t.default_spec_id, 2),
    ("partition × renamed", partition("day(ts)"), (rename("ts", "at"),), lambda t: t.spec().fields[0].source_id, 3),
    ("partition by nothing", partition(), NONE, lambda t: t.spec().fields, ()),
    ("unpartitioned spec", lambda _: UnpartitionedSpec(), NONE, lambda t: (len(t.specs()), t.default_spec_id), (2, 0)),
    ("sort", sort("id", "bucket(4, code) desc"), NONE, lambda t: t.default_sort_order_id, 2),
    ("sort × partition", sort("id"), (partition("day(ts)"),), lambda t: t.default_sort_order_id, 2),
    ("sort by nothing", sort(), NONE, lambda t: t.default_sort_order_id, 0),
    ("property × another key", props(a="1"), (props(b="2"),), lambda t: t.properties, {"a": "1", "b": "2"}),
    ("property × same key", props(a="1"), (props(a="2"),), lambda t: t.properties, {"a": "1"}),
    ("unset × set again", unset("a"), (props(a="2"),), lambda t: t.properties, {}),
    ("branch", branch("b"), NONE, lambda t: t.refs["b"], {"snapshot-id": 2, "type": "branch"}),
    ("branch at the head it finds", branch("b"), (current(3),), lambda t: t.ref_snapshot_id("b"), 3),
    ("branch × another", branch("b", 1), (branch("c", 2),), lambda t: t.ref_snapshot_id("b"), 1),
    ("branch at a tag", branch("b", "v1"), NONE, lambda t: t.ref_snapshot_id("b"), 1),
    (
        "branch with retention",
        branch("b", max_ref_age_ms=1, max_snapshot_age_ms=2, min_snapshots_to_keep=3),
        NONE,
        lambda t: t.refs["b"],
        {
            "snapshot-id": 2,
            "type": "branch",
            "max-ref-age-ms": 1,
            "max-snapshot-age-ms": 2,
            "min-snapshots-to-keep": 3,
        },
    ),
    ("tag", tag("v2", 2, max_ref_age_ms=9), NONE, lambda t: t.refs["v2"]["max-ref-age-ms"], 9),
    ("drop branch", drop_branch("audit"), NONE, lambda t: set(t.refs), {"main", "v1"}),
    ("drop branch × main moved", drop_branch("audit"), (back(1),), lambda t: set(t.refs), {"main", "v1"}),
    ("drop tag", drop_tag("v1"), NONE, lambda t: set(t.refs), {"main", "audit"}),
    ("fast-forward", forward("main", "audit"), NONE, lambda t: t.ref_snapshot_id(), 3),
    ("fast-forward keeps retention", forward("main", 3), NONE, lambda t: t.refs["main"]["min-snapshots-to-keep"], 5),
    (
        "fast-forward × branch dropped",
        forward("main", "audit"),
        (drop_branch("audit"),),
        lambda t: t.ref_snapshot_id(),
        3,
    ),
    ("rollback", back(1), NONE, lambda t: (t.ref_snapshot_id(), t.snapshot_log()[-1][1]), (1, 1)),
    ("rollback × schema changed", back("v1"), (add("x", "int"),), lambda t: t.ref_snapshot_id(), 1),
    ("set current", current(3), NONE, lambda t: t.raw["current-snapshot-id"], 3),
]


@pytest.mark.parametrize(
    ("mine", "theirs", "seen", "expected"), [row[1:] for row in LANDS], ids=[row[0] for row in LANDS]
)
def test_what_commutes_lands(
    mine: Make, theirs: tuple[Make, ...], seen: Callable[[TableMetadata], object], expected: object
) -> None:
    result = verdict(mine, *theirs)
    assert isinstance(result, TableMetadata), result
    assert seen(result) == expected


NOTHING: list[tuple[str, Make, tuple[Make, ...]]] = [
    ("same column added", add("x", "int"), (add("x", "int"),)),
    ("same column added elsewhere", add("x", "int", first=True), (add("x", "int"),)),
    ("same struct added", add("x", "struct<a: int>"), (add("y", "int"), add("x", "struct<a: int>"))),
    ("same union", union(x=pa.int32()), (add("x", "int"),)),
    ("there from the start", add("n", "int"), NONE),
    ("dropped already", drop("n"), (drop("n"),)),
    ("dropped with its struct", drop("place.zip"), (drop("place"),)),
    ("dropped and another of the name", drop("n"), (drop("n"), add("n", "string"))),
    ("same rename", rename("n", "m"), (rename("n", "m"),)),
    ("same widening", widen("n", "long"), (widen("n", "long"),)),
    ("wider than asked", widen("price", "decimal(7, 2)"), (widen("price", "decimal(9, 2)"),)),
    ("same move", move("n", first=True), (move("n", first=True),)),
    ("same optional", optional("code"), (optional("code"),)),
    ("same doc", doc("n", "x"), (doc("n", "x"),)),
    ("same keys", keys("code", "id"), (keys("id", "code"),)),
    ("same partitioning", partition("day(ts)"), (partition("day(ts)"),)),
    ("same partitioning by its new name", partition("day(ts)"), (rename("ts", "at"), partition("day(at)"))),
    ("spec listed already", lambda _: UnpartitionedSpec(), (lambda _: UnpartitionedSpec(),)),
    ("spec listed as a default", lambda _: UnpartitionedSpec(), (partition(),)),
    ("same sort order", sort("id"), (sort("id"),)),
    ("same property", props(a="1"), (props(a="1"),)),
    ("property not there", unset("a"), NONE),
    ("same branch", branch("b", 1), (branch("b", 1),)),
    ("same tag", tag("t"), (tag("t"),)),
    ("branch dropped already", drop_branch("audit"), (drop_branch("audit"),)),
    ("tag dropped already", drop_tag("v1"), (drop_tag("v1"),)),
    ("same fast-forward", forward("main", "audit"), (forward("main", "audit"),)),
    ("same rollback", back(1), (back(1),)),
    ("rollback to the head", back(2), NONE),
]


@pytest.mark.parametrize(("mine", "theirs"), [row[1:] for row in NOTHING], ids=[row[0] for row in NOTHING])
def test_what_is_so_already_is_nothing_to_do(mine: Make, theirs: tuple[Make, ...]) -> None:
    assert verdict(mine, *theirs) == "nothing to do"


SCHEMA, LAYOUT, REFS = Check.SCHEMA_COMPATIBLE, Check.LAYOUT_UNCHANGED, Check.REFS_UNCHANGED
CONFLICTS: list[tuple[str, Make, tuple[Make, ...], Check, str]] = [
    ("added as another type", add("x", "int"), (add("x", "string"),), SCHEMA, "as string and not int"),
    ("added by another case", add("x", "int"), (add("X", "int"),), SCHEMA, "already, as 'X'"),
    ("name taken by a rename", add("x", "int"), (rename("code", "x"),), SCHEMA, "already, as string"),
    ("struct dropped", add("place.x", "int"), (drop("place"),), SCHEMA, "'place' was dropped"),
    (
        "name of a partition field",
        add("ts_day", "int"),
        (partition("day(ts)"),),
        SCHEMA,
        "'ts_day' of spec 1",
    ),
    ("union as another type", union(x=pa.int32()), (add("x", "string"),), SCHEMA, "'x' is string"),
    (
        "dropped column partitions",
        drop("n"),
        (partition("n"),),
        SCHEMA,
        "partitioned by n",
    ),
    ("dropped column sorts", drop("n"), (sort("n"),), SCHEMA, "sorted by n"),
    ("dropped column is a key", drop("code"), (keys("code"),), SCHEMA, "code is a key"),
    ("last field of a struct", drop("place.zip"), (drop("place.city"),), SCHEMA, "without columns"),
    ("renamed otherwise", rename("n", "m"), (rename("n", "o"),), SCHEMA, "'n' was renamed to 'o'"),
    (
        "renamed and back is fine, twice is not",
        rename("n", "m"),
        (rename("n", "o"), rename("o", "p")),
        SCHEMA,
        "'p'",
    ),
    ("rename of a dropped one", rename("n", "m"), (drop("n"),), SCHEMA, "'n' was dropped"),
    (
        "rename to a taken name",
        rename("n", "m"),
        (add("m", "int"),),
        SCHEMA,
        "There is a column 'm' already",
    ),
    (
        "rename × rename to one name",
        rename("n", "m"),
        (rename("code", "M"),),
        SCHEMA,
        "already, as 'M'",
    ),
    (
        "rename to a partition field",
        rename("n", "ts_day"),
        (partition("day(ts)"),),
        SCHEMA,
        "the same name",
    ),
    ("widen a dropped one", widen("n", "long"), (drop("n"),), SCHEMA, "was dropped"),
    ("move a dropped one", move("n", first=True), (drop("n"),), SCHEMA, "was dropped"),
    ("optional, dropped", optional("code"), (drop("code"),), SCHEMA, "was dropped"),
    ("optional, a key now", optional("code"), (keys("code"),), SCHEMA, "keys are never null"),
    ("doc of a dropped one", doc("n", "x"), (drop("n"),), SCHEMA, "was dropped"),
    ("keys changed", keys("code"), (keys(),), SCHEMA, "changed concurrently, to none"),
    ("key dropped", keys("code"), (drop("code"),), SCHEMA, "was dropped"),
    ("key optional", keys("code"), (optional("code"),), SCHEMA, "may be null"),
    ("partitioning changed", partition("day(ts)"), (partition("hour(ts)"),), LAYOUT, "to hour(ts)"),
    ("unpartitioned", partition("day(ts)"), (partition(),), LAYOUT, "to none"),
    ("partition source dropped", partition("n"), (drop("n"),), LAYOUT, "'n' was dropped"),
    ("partition name taken", partition("day(ts)"), (add("ts_day", "int"),), LAYOUT, "the same name"),
    ("sort order changed", sort("id"), (sort("code"),), LAYOUT, "was changed concurrently"),
    ("sort source dropped", sort("n"), (drop("n"),), LAYOUT, "'n' was dropped"),
    ("branch name taken", branch("b", 1), (branch("b", 2),), REFS, "already has a branch 'b'"),
    ("tag name taken by a branch", tag("b", 1), (branch("b", 1),), REFS, "already has a branch 'b'"),
    (
        "tag with other retention",
        tag("b", 1),
        (tag("b", 1, max_ref_age_ms=1),),
        REFS,
        "already has a tag",
    ),
    (
        "p25 dropped branch moved",
        drop_branch("audit"),
        (lambda b: make.make_set_current(b, 1, "audit"),),
        REFS,
        "at snapshot 1",
    ),
    (
        "p25 dropped and made anew",
        drop_branch("audit"),
        (drop_branch("audit"), tag("audit", 3)),
        REFS,
        "is now a tag",
    ),
    (
        "p25 fast-forward, branch moved",
        forward("main", "audit"),
        (back(1),),
        REFS,
        "'main' is now a branch at snapshot 1",
    ),
    ("p25 rollback, branch moved", back(1), (current(3),), REFS, "it was at snapshot 2"),
    ("p25 set current, branch moved", current(1), (forward("main", 3),), REFS, "at snapshot 3"),
]


@pytest.mark.parametrize(
    ("mine", "theirs", "check", "says"), [row[1:] for row in CONFLICTS], ids=[row[0] for row in CONFLICTS]
)
def test_what_truly_conflicts_is_refused_with_evidence(
    mine: Make, theirs: tuple[Make, ...], check: Check, says: str
) -> None:
    result = verdict(mine, *theirs)
    assert isinstance(result, str)
    assert result.startswith(f"{check}: ")
    assert says.lower() in result.lower()


def test_a_conflict_over_a_ref_names_the_winners_snapshot() -> None:
    intent = back(1)(BASE)
    with pytest.raises(IntentConflict) as caught:
        metadata_change(MetadataChange(UUID, intent), after(current(3)))
    (conflict,) = caught.value.conflicts
    assert (conflict.check, conflict.snapshot_id, conflict.operation) == ("refs unchanged", 3, "append")
    assert conflict.advice


# Expiry (rules P7 and P29): mine × theirs → the snapshots that are kept, or the conflict of who comes second

FUTURE = 10**15
FILE = {"statistics-path": "s", "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1, "blob-metadata": []}
OLD = TableMetadata(
    {
        **BASE.raw,
        "snapshots": [snapshot(1), snapshot(2, 1), snapshot(3, 2), snapshot(4, 1)],
        "snapshot-log": [{"snapshot-id": each, "timestamp-ms": 1_000 + each} for each in (1, 2, 3)],
        "current-snapshot-id": 3,
        "refs": {"main": {"snapshot-id": 3, "type": "branch"}},
        "last-sequence-number": 4,
        "statistics": [{"snapshot-id": each, **FILE} for each in (1, 3)],
        "partition-statistics": [
            {"snapshot-id": each, "statistics-path": "p", "file-size-in-bytes": 1} for each in (2, 3)
        ],
    }
)


def kept(table: TableMetadata) -> list[int]:
    return sorted(each.snapshot_id for each in table.snapshots())


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (expire(FUTURE), NONE, [3]),
        (expire(FUTURE, 2), NONE, [2, 3]),
        (expire(1_002), NONE, [2, 3, 4]),
        (expire(FUTURE), (tag("t", 1),), [1, 3]),
        (expire(FUTURE), (branch("b", 2),), [2, 3]),
        (expire(FUTURE), (back(2),), [2]),
        (expire(FUTURE), (expire(1_002),), [3]),
    ],
)
def test_r10_expiry_is_decided_on_the_head_it_finds(mine: Make, theirs: tuple[Make, ...], expected: list[int]) -> None:
    intent, head = mine(OLD), after(*theirs, head=OLD)
    assert kept(landed(head, intent)) == expected


def test_two_who_expire_the_same_have_both_done_it() -> None:
    head = after(expire(FUTURE), head=OLD)
    assert metadata_change(MetadataChange(UUID, expire(FUTURE)(OLD)), head) is None


@pytest.mark.parametrize("late", [tag("t", 1), branch("b", 1), current(4), back(1)])
def test_r10_a_change_to_an_expired_snapshot_is_refused(late: Make) -> None:
    intent = late(OLD)
    with pytest.raises(IntentConflict, match=r"refs unchanged: .*snapshot [14] has expired"):
        metadata_change(MetadataChange(UUID, intent), after(expire(FUTURE), head=OLD))


def test_what_hangs_on_expired_snapshots_goes_with_them() -> None:
    table = after(expire(1_003), head=OLD)
    assert kept(table) == [3, 4]
    assert [each["snapshot-id"] for each in table.raw["statistics"]] == [3]
    assert [each["snapshot-id"] for each in table.raw["partition-statistics"]] == [3]
    # As in Iceberg Java: who follows the parents sees that there was one.
    assert {each["snapshot-id"]: each.get("parent-snapshot-id") for each in table.raw["snapshots"]} == {3: 2, 4: 1}


def test_the_log_before_an_expired_snapshot_goes_with_it() -> None:
    log = [{"snapshot-id": each, "timestamp-ms": 1_000 + each} for each in (1, 4, 2, 3)]
    table = TableMetadata(
        {**OLD.raw, "snapshot-log": log, "refs": {**OLD.refs, "t": {"snapshot-id": 1, "type": "tag"}}}
    )
    table = after(expire(1_003), head=table)
    assert (kept(table), table.snapshot_log()) == ([1, 3, 4], [(1_003, 3)])


def test_p29_expiry_requires_every_ref_as_it_is() -> None:
    head = after(tag("t", 2), branch("b", 3), head=OLD)
    change = metadata_change(MetadataChange(UUID, expire(FUTURE)(head)), head)
    assert change is not None
    asserted = {each["ref"]: each["snapshot-id"] for each in change[1] if each["type"] == "assert-ref-snapshot-id"}
    assert asserted == {"main": 3, "t": 2, "b": 3}


def test_p7_age_is_counted_by_the_referees_clock_even_behind_the_table() -> None:
    head = TableMetadata({**OLD.raw, "properties": {"history.expire.max-snapshot-age-ms": "100"}})
    operation = MetadataChange(UUID, expire()(head))
    assert metadata_change(operation, head, now_ms=5) is None
    assert metadata_change(operation, head, now_ms=1_102) is not None
    ahead = TableMetadata({**head.raw, "last-updated-ms": 10_000})
    assert metadata_change(operation, ahead, now_ms=1_050) is None
    assert metadata_change(operation, ahead, now_ms=1_102) is not None


def test_the_log_of_a_commit_that_expires_and_moves_main_has_no_gap() -> None:
    updates, _ = metadata_change(MetadataChange(UUID, expire(FUTURE)(OLD)), OLD) or ((), ())
    new: list[dict[str, Any]] = []
    for number in (5, 6, 7, 8):
        new.append({"action": "add-snapshot", "snapshot": snapshot(number, number - 1)})
        new.append({"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number})
    table = apply(OLD, [*updates, *new], now_ms=3_000, previous_location=None)
    assert table.snapshot_log() == [(1_003, 3), (3_000, 8)]


def test_a_snapshot_that_a_ref_names_is_never_removed() -> None:
    with pytest.raises(InvalidInput, match="'main' refers to"):
        apply(OLD, [{"action": "remove-snapshots", "snapshot-ids": [3]}], now_ms=1, previous_location=None)


# What the call itself refuses, before anything is sent


BAD: list[tuple[str, Make, str]] = [
    ("unknown column", drop("nope"), "There is no column 'nope'"),
    ("nothing to drop", drop(), "No columns were given"),
    ("required", add("x", "int", required=True), "cannot be added as required"),
    ("another type", add("n", "string"), "already, as int"),
    ("two places", add("x", "int", first=True, after="id"), "only one position"),
    ("after nothing", add("x", "int", after="nope"), "There is no column 'nope' in the table"),
    ("doc is not a string", add("x", "int", doc=7), "must be a string"),
    ("bad type", add("x", "integr"), "integr"),
    ("partition field's name", add("id_bucket", "int"), "partition field 'id_bucket' of spec 0"),
    ("drop what partitions", drop("id"), "is a key"),
    ("drop what sorts", drop("ts"), "The table is sorted by ts"),
    ("rename to a taken name", rename("n", "code"), "already"),
    ("rename with a dot", rename("n", "a.b"), "has a dot"),
    ("narrower", widen("id", "int"), "types only get wider"),
    ("not wider", widen("n", "string"), "cannot become string"),
    ("nowhere", move("n"), "new position is missing"),
    ("beside itself", move("n", after="n"), "itself"),
    ("into another struct", move("n", after="place.zip"), "in the table itself"),
    ("optional key", optional("id"), "keys are never null"),
    ("key twice", keys("id", "ID"), "listed twice"),
    ("unknown transform", partition("weekly(ts)"), "unknown transform"),
    ("clash", lambda _: make.make_set_partitioning(after(add("ts_day", "int")), ["day(ts)"]), "has that name"),
    ("no sort", sort("nope desc"), "does not name a column"),
    ("no such branch", drop_branch("nope"), "There is no branch 'nope'"),
    ("tag is no branch", drop_branch("v1"), "is a tag, not a branch"),
    ("main", drop_branch("main"), "cannot be dropped"),
    ("branch name", branch("", 1), "must be a non-empty string"),
    ("branch exists", branch("audit", 1), "already has a branch"),
    ("no such snapshot", tag("t", 99), "no snapshot 99"),
    ("bool is no snapshot", back(True), "no snapshot True"),
    ("retention", branch("b", min_snapshots_to_keep=0), "above 0"),
    ("not an ancestor", forward("audit", "main"), "not an ancestor"),
    ("forward from a tag", forward("v1", "main"), "is a tag"),
    ("forward to nothing", forward("main", "nope"), "no branch or tag 'nope'"),
    ("not in history", back(3), "which is not in its history"),
    ("key of a property", unset(7), "must be a string"),  # type: ignore[arg-type]
    ("bad property", props(**{"commit.retry.num-retries": "x"}), "whole number"),
    ("bad retention", props(**{"history.expire.min-snapshots-to-keep": "0"}), "of at least 1"),
    ("nothing retained", expire(retain_last=0), "retain_last must be a whole number above 0, not 0"),
    ("retained is no number", expire(retain_last=True), "not True"),
]


@pytest.mark.parametrize(("call", "says"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_call_is_refused_when_the_intent_is_made(call: Make, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        call(BASE)


def test_a_format_version_that_frazil_does_not_write_cannot_be_set() -> None:
    with pytest.raises(Unsupported, match="format version"):
        props(**{"format-version": "3"})(BASE)


def test_a_table_without_a_snapshot_has_nothing_to_name_or_go_back_to() -> None:
    with pytest.raises(InvalidInput, match="needs a snapshot"):
        tag("t")(metadata())
    with pytest.raises(InvalidInput, match="no snapshot 1"):
        back(1)(metadata())


def test_main_is_fast_forwarded_to_a_branch_before_its_first_commit() -> None:
    table = metadata(snapshots=[snapshot(1)], refs={"audit": {"snapshot-id": 1, "type": "branch"}})
    result = landed(table, forward("main", "audit")(table))
    assert result.ref_snapshot_id() == 1


# Requirements: what a foreign catalog is asked to compare


@pytest.mark.parametrize(
    ("mine", "more"),
    [
        (add("x", "int"), {"last-assigned-field-id"}),
        (drop("n"), {"last-assigned-field-id"}),
        (partition("day(ts)"), set()),
        (sort("id"), set()),
    ],
)
def test_p29_schema_and_layout_are_judged_by_each_other(mine: Make, more: set[str]) -> None:
    change = metadata_change(MetadataChange(UUID, mine(BASE)), BASE)
    assert change is not None
    asked = {each["type"].removeprefix("assert-") for each in change[1]}
    layout = {"current-schema-id", "default-spec-id", "last-assigned-partition-id", "default-sort-order-id"}
    assert asked == {"table-uuid"} | layout | more


@pytest.mark.parametrize(
    ("mine", "ref", "value"), [(back(1), "main", 2), (drop_tag("v1"), "v1", 1), (tag("t"), "t", None)]
)
def test_p29_a_ref_change_names_the_value_it_replaces(mine: Make, ref: str, value: int | None) -> None:
    change = metadata_change(MetadataChange(UUID, mine(BASE)), BASE)
    assert change is not None
    assert change[1] == (
        {"type": "assert-table-uuid", "uuid": UUID},
        {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": value},
    )


def test_properties_ask_for_the_table_alone() -> None:
    change = metadata_change(MetadataChange(UUID, props(a="1")(BASE)), BASE)
    assert change is not None
    assert [each["type"] for each in change[1]] == ["assert-table-uuid"]


# Iceberg's own rules


def test_a_column_id_is_never_given_twice() -> None:
    table = after(add("x", "struct<a: int>"), drop("x"), add("x", "struct<a: int>"))
    assert (ids(table)["x"], ids(table)["x.a"], table.last_column_id) == (11, 12, 12)


def test_a_schema_the_table_has_had_gets_its_old_id_back() -> None:
    table = after(rename("n", "m"))
    assert (table.current_schema_id, len(table.schemas())) == (1, 2)
    table = after(rename("m", "n"), head=table)
    assert (table.current_schema_id, len(table.schemas())) == (0, 2)
    table = after(doc("n", "x"), head=table)
    assert (table.current_schema_id, len(table.schemas())) == (2, 3)


def test_a_partition_field_the_table_has_had_keeps_its_id_and_name() -> None:
    table = after(partition("bucket(4, id)", "day(ts)"))
    assert [(f.field_id, f.name) for f in table.spec().fields] == [(1000, "id_bucket"), (1001, "ts_day")]
    table = after(partition("bucket(8, id)"), rename("ts", "at"), head=table)
    assert [(f.field_id, f.name) for f in table.spec().fields] == [(1002, "id_bucket_8")]
    table = after(partition("day(at)", "bucket(8, id)"), head=table)
    assert [(f.field_id, f.name) for f in table.spec().fields] == [(1001, "ts_day"), (1002, "id_bucket_8")]
    assert table.raw["last-partition-id"] == 1002


def test_a_spec_the_table_has_had_becomes_the_default_again() -> None:
    table = after(partition("day(ts)"), partition("bucket(4, id)"))
    assert (table.default_spec_id, len(table.specs())) == (0, 2)


def test_two_partition_fields_of_all_specs_never_share_a_name() -> None:
    spec = {
        "spec-id": 0,
        "fields": [{"source-id": 2, "field-id": 1000, "transform": "identity", "name": "id_bucket_8"}],
    }
    table = TableMetadata({**BASE.raw, "partition-specs": [spec]})
    assert after(partition("bucket(8, id)"), head=table).spec().fields[0].name == "id_bucket_8_1001"


def test_a_sort_order_the_table_has_had_becomes_the_default_again() -> None:
    table = after(sort("id"), sort("ts desc"))
    assert (table.default_sort_order_id, len(table.raw["sort-orders"])) == (1, 3)


def test_an_unsorted_order_that_is_not_listed_gets_the_id_zero() -> None:
    table = TableMetadata({**BASE.raw, "sort-orders": BASE.raw["sort-orders"][1:]})
    assert landed(table, sort()(table)).default_sort_order_id == 0


def test_columns_of_older_specs_may_go_and_those_of_the_default_may_not() -> None:
    table = after(partition("n"))
    with pytest.raises(InvalidInput, match="partitioned by n"):
        drop("n")(table)
    assert 2 not in after(partition("day(ts)"), drop("n"), head=table).schema().field_ids


def test_names_in_properties_follow_a_rename() -> None:
    mapping = [{"field-id": 2, "names": ["n"]}, {"field-id": 4, "names": ["code"]}]
    column = "write.metadata.metrics.column."
    properties = {"schema.name-mapping.default": json.dumps(mapping), column + "n": "full", column + "price": "none"}
    table = TableMetadata({**BASE.raw, "properties": properties})
    table = after(rename("n", "m"), drop("price"), head=table)
    assert table.name_mapping is not None
    assert table.name_mapping.root[0].names == ["n", "m"]
    assert {key for key in table.properties if key.startswith(column)} == {column + "m"}
    more = after(add("n", "struct<x: int>"), head=table).name_mapping
    assert more is not None
    assert [each.names for each in more.root] == [["m"], ["code"], ["n"]]
    assert more.root[2].fields[0].names == ["x"]


def test_a_widened_column_leaves_the_name_mapping_alone() -> None:
    table = TableMetadata(
        {**BASE.raw, "properties": {"schema.name-mapping.default": '[{"names": ["n"], "field-id": 2}]'}}
    )
    change = metadata_change(MetadataChange(UUID, widen("n", "long")(table)), table)
    assert change is not None
    assert [each["action"] for each in change[0]] == ["add-schema", "set-current-schema"]


# Unions


def test_a_union_that_never_fitted_is_the_callers_mistake() -> None:
    with pytest.raises(SchemaMismatch, match="n"):
        union(n=pa.string())(BASE)
    for base in (None, BASE.current_schema_id):
        intent = SchemaUnion(pa.schema([("n", pa.string())]), base)
        with pytest.raises(SchemaMismatch):
            metadata_change(MetadataChange(UUID, intent), after(add("x", "int")))


# Ids that later steps of a transaction have used


PINNED: list[tuple[str, Make, Make]] = [
    ("column × column", add("x", "int"), add("y", "int")),
    ("column × same column", add("x", "int"), add("x", "int")),
    ("union × column", union(x=pa.int32()), add("y", "int")),
    ("spec × spec", partition("day(ts)"), lambda _: UnpartitionedSpec()),
    ("spec × same spec", partition("day(ts)"), partition("day(ts)")),
    ("listed spec × spec", lambda _: UnpartitionedSpec(), partition("day(ts)")),
    ("order × order", sort("id"), sort("code")),
]


@pytest.mark.parametrize(("mine", "theirs"), [row[1:] for row in PINNED], ids=[row[0] for row in PINNED])
def test_p16_a_pinned_change_lands_with_its_ids_or_not_at_all(mine: Make, theirs: Make) -> None:
    intent = pin(mine(BASE), BASE)
    with pytest.raises(IntentConflict, match="other ids"):
        metadata_change(MetadataChange(UUID, intent), after(theirs))
    elsewhere = after(props(a="1"), rename("n", "m"))
    assert landed(elsewhere, intent).raw != elsewhere.raw


def test_nothing_is_pinned_where_no_id_is_given_out() -> None:
    for mine in (rename("n", "m"), add("n", "int"), props(a="1")):
        intent = mine(BASE)
        assert pin(intent, BASE) is intent


def test_p16_without_a_pin_a_bound_id_may_be_somebody_elses_column() -> None:
    mine = add("x", "int")(BASE)
    provisional = bind(landed(BASE, mine).schema(), "x")
    head = after(add("theirs", "int"))
    assert head.schema().find_column_name(provisional.field_id) == "theirs"
    assert isinstance(mine, AddColumn)
    assert replace(mine, pinned=9) == pin(mine, BASE)


# Both orders of two intents come to the same table, where neither conflicts


COMMUTING = [
    add("x", "int"),
    drop("price"),
    rename("n", "m"),
    widen("place.zip", "long"),
    optional("code"),
    doc("id", "the key"),
    props(a="1"),
    branch("b", 1),
    drop_tag("v1"),
    sort("id"),
    partition("day(ts)"),
]


@pytest.mark.parametrize(("one", "two"), list(itertools.combinations(range(len(COMMUTING)), 2)))
def test_two_orders_come_to_the_same_table(one: int, two: int) -> None:
    def shown(table: TableMetadata) -> object:
        raw = table.raw
        return (
            table.schema().fields,
            table.spec().fields,
            table.sort_order().fields,
            raw["properties"],
            raw["refs"],
            raw["last-column-id"],
        )

    first, second = COMMUTING[one](BASE), COMMUTING[two](BASE)
    assert shown(landed(landed(BASE, first), second)) == shown(landed(landed(BASE, second), first))


# The calls themselves


class Variable:
    """A source and a destination that keep a table in a variable: changes land at once."""

    lake: Any = None
    ident = Ident(("ns",), "t")
    is_atomic = True

    def __init__(self, table: TableMetadata) -> None:
        self.table = table
        self.done: dict[str, tuple[str, Commit]] = {}

    @property
    def source(self) -> Source:
        return self

    def metadata(self) -> TableMetadata:
        return self.table

    def note_read(self, where: Filter, branch: str) -> None:
        raise AssertionError(where, branch)

    def shared_commits(self, metadata: TableMetadata) -> Mapping[int, tuple[SharedCommit, ...]]:
        raise AssertionError(metadata)

    def accept(self, verb: str, given: WriteOptions) -> WriteOptions:  # noqa: ARG002
        return given

    def identify(
        self,
        commit_id: str | None,
        verb: str,
        parameters: Mapping[str, object],
        metadata: TableMetadata,  # noqa: ARG002
        branch: str,  # noqa: ARG002
    ) -> tuple[Identity, Commit | None]:
        identity = Identity(commit_id or "made up", digest(verb, **parameters), given=commit_id is not None)
        name, commit = self.done.get(identity.commit_id, (identity.digest, None))
        assert name == identity.digest, "the commit id was used for another operation"
        return identity, commit

    def run(self, statement: Statement) -> Commit:
        raise AssertionError(statement)

    def change(
        self,
        change: MetadataChange,
        base: TableMetadata,
        *,
        identity: Identity | None = None,
        retry: Retry | None = None,
        reads: Sequence[Write] = (),
    ) -> Commit:
        assert identity is not None
        assert not reads
        assert retry is None or isinstance(retry, Retry)
        assert change.table_uuid == base.uuid
        if metadata_change(change, self.table) is not None:
            self.table = landed(self.table, change.intent)
        commit = Commit(None, 0, identity.commit_id)
        if identity.given:
            self.done[identity.commit_id] = (identity.digest, replace(commit, already_committed=True))
        return commit


CALLS: list[tuple[str, tuple[Any, ...], Mapping[str, Any]]] = [
    ("add_column", ("x", "int"), {"after": "n", "doc": "new"}),
    ("drop_column", ("n", "place.zip"), {}),
    ("rename_column", ("n", "m"), {}),
    ("widen_column", ("n", pa.int64()), {}),
    ("move_column", ("n",), {"first": True}),
    ("make_optional", ("code",), {}),
    ("set_column_doc", ("n", "a number"), {}),
    ("set_keys", (["id", "code"],), {}),
    ("set_partitioning", (["day(ts)"],), {}),
    ("set_sort_order", (["id"],), {}),
    ("set_properties", ({"a": "1"},), {}),
    ("remove_properties", ("kept",), {}),
    ("create_branch", ("b",), {"min_snapshots_to_keep": 2}),
    ("create_tag", ("t", 1), {"max_ref_age_ms": 5}),
    ("drop_branch", ("audit",), {}),
    ("drop_tag", ("v1",), {}),
    ("fast_forward", ("main", "audit"), {}),
    ("rollback_to", (1,), {}),
    ("set_current_snapshot", (3,), {}),
    ("expire_snapshots", (2_000,), {"retain_last": 1}),
]


@pytest.mark.parametrize(("verb", "positional", "named"), CALLS, ids=[row[0] for row in CALLS])
def test_every_call_lands_once_per_commit_id(verb: str, positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    # The old snapshot that nothing names is there for expiry.
    snapshots = [*BASE.raw["snapshots"], snapshot(4, 1)]
    variable = Variable(TableMetadata({**BASE.raw, "snapshots": snapshots, "properties": {"kept": "1"}}))
    before = variable.table
    call = getattr(TableHandle(variable), verb)
    assert not call(*positional, **named, commit_id="once").already_committed
    once = variable.table
    assert once.raw != before.raw
    # Also where the call could not be made again: the column has its new name, the branch is gone.
    assert call(*positional, **named, commit_id="once", retry=Retry()).already_committed
    assert variable.table is once
    with pytest.raises(InvalidInput, match="retry must be"):
        call(*positional, **named, retry=3)


def test_every_change_has_a_call() -> None:
    made = {name for name, value in vars(changes).items() if getattr(value, "__module__", "") == changes.__name__}
    public = {name for name in made if not name.startswith("_")}
    # require_column() reads rows: tests/surface/test_required.py.
    assert public - {"TableChange", "require_column"} == {row[0] for row in CALLS}


def test_bad_properties_are_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidInput, match="Properties must be"):
        TableHandle(Variable(BASE)).set_properties({1: "x"})  # type: ignore[dict-item]
    with pytest.raises(InvalidInput, match="no snapshot"):
        TableHandle(Variable(BASE)).rollback_to(2**70)


def test_an_intent_may_be_made_by_hand() -> None:
    table = landed(BASE, PropertyChange({"a": "1"}))
    assert landed(table, NewRef("b", "branch")).ref_snapshot_id("b") == 2


def test_p11_a_mark_moves_only_from_where_it_was_seen() -> None:
    first = SinkMark("frazil.sink.s", None, "0")
    head = landed(BASE, first)
    assert head.properties["frazil.sink.s"] == "0"
    assert landed(head, SinkMark("frazil.sink.s", "0", "1")).properties["frazil.sink.s"] == "1"
    assert landed(head, SinkMark("frazil.sink.other", None, "7")).properties["frazil.sink.s"] == "0"
    for stale in (first, SinkMark("frazil.sink.s", "5", "6")):
        with pytest.raises(IntentConflict) as caught:
            metadata_change(MetadataChange(UUID, stale), head)
        assert [each.check for each in caught.value.conflicts] == [Check.SINK_UNMOVED]
