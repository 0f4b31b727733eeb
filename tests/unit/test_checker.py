"""Hand-made histories: each anomaly, and beside it a near twin that is clean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frazil.verify.checker import Kind, Level, Outcome, Report, Transaction, Version, Write, check
from unit.checker_language import Rows, history, judge, kinds, versions

CLEAN: dict[str, tuple[str, str]] = {
    "one after the other": ("A p 0-1: put x 1\nB p 2-3: read x=1 @1; put x 2\nC q 4-5: read x=2 @2", "A B"),
    "a group": ("A p 0-9: add x 1\nB q 0-9: add x 2\nC r 10-11: read x=1,2 @1", "A+B"),
    "a group in the other order": ("A p 0-9: add x 1\nB q 0-9: add x 2\nC r 10-11: read x=2,1 @1", "B+A"),
    "concurrent reader of the old": ("A p 0-1: put x 1\nB p 2-9: put x 2\nC q 3-4: read x=1 @1", "A B"),
    "failed and absent": ("A p 0-1: put x 1\nB q 2-3: put x 2 -> failed\nC q 4-5: read x=1 @1", "A"),
    "unknown and absent": ("A p 0-1: put x 1\nB q 2-: put x 2 -> unknown\nC r 4-5: read x=1 @1", "A"),
    "unknown and landed": ("A p 0-1: put x 1\nB q 2-: put x 2 -> unknown\nC r 4-5: read x=2 @2", "A B"),
    "unknown, landed late": ("B q 0-: put x 2 -> unknown\nA p 5-6: put x 1\nC r 7-8: read x=2 @2", "A B"),
    "intermediate values stay inside": ("A p 0-1: put x 1; put x 2\nB q 2-3: read x=2 @1", "A"),
    "own writes are seen": ("A p 0-1: put x 1; read x=1 @0; put x 2; read x=2 @0", "A"),
    "own additions are seen": ("A p 0-1: add x 1\nB p 2-3: add x 2; read x=1,2 @1", "A B"),
    "deleted and gone": ("A p 0-1: put x 1\nB p 2-3: del x\nC q 4-5: read x= @2", "A B"),
    "put again after a delete": ("A p 0-1: put x 1\nB p 2-3: del x\nC p 4-5: put x 3\nD q 6-7: scan x=3 @3", "A B C"),
    "all taken out": ("A p 0-1: put x 1; put y 2\nB p 2-3: del *; put z 3\nC q 4-5: scan z=3 @2", "A B"),
    "an old version, asked for": ("A p 0-1: put x 1\nB p 2-3: put x 2\nC q 4-5: old x=1 @1", "A B"),
    "a delete of nothing": ("A p 0-1: put x 1\nB p 2-3: del y\nC q 4-5: scan x=1 @2", "A B"),
    "scan, then write, nobody between": ("A p 0-1: put x 1\nB q 2-5: scan x=1 @1; put y 2\nC r 6-7: put z 3", "A B C"),
    "scan beside others": ("A p 0-9: put x 1\nB q 0-9: put y 2\nC r 1-2: scan x=1 @1\nD r 3-4: scan x=1 y=2 @2", "A B"),
    "two tables": ("A p 0-1: put x 1; put u.y 1\nB q 2-3: read x=1; read u.y=1", "A"),
    "read and update in turn": (
        "A p 0-1: put x 1\nB q 2-3: read x=1 @1; put x 2\nC r 4-5: read x=2 @2; put x 3",
        "A B C",
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_may_happen_is_clean(name: str) -> None:
    text, order = CLEAN[name]
    found = versions(order) + (versions(order, "u") if "u." in text else [])
    report = check(history(text), found)
    assert report.is_clean, report.anomalies
    assert report.ruled_out() == ()


ANOMALIES: dict[str, tuple[Kind, Level, str, str]] = {
    "G1a: a failed write": (
        Kind.G1A,
        Level.READ_COMMITTED,
        "A p 0-1: put x 1\nB q 2-3: put x 2 -> failed\nC r 4-5: read x=2 @1",
        "A",
    ),
    "G1a: an unknown write that is nowhere": (
        Kind.G1A,
        Level.READ_COMMITTED,
        "A p 0-1: put x 1\nB q 2-: put x 2 -> unknown\nC r 4-5: read x=2",
        "A",
    ),
    "G1a: a version that never was": (
        Kind.G1A,
        Level.READ_COMMITTED,
        "A p 0-1: put x 1\nC r 4-5: peek @7",
        "A",
    ),
    "G1b: replaced by its own writer": (
        Kind.G1B,
        Level.READ_COMMITTED,
        "A p 0-1: put x 1; put x 2\nB q 2-3: read x=1 @1",
        "A",
    ),
    "G1b: a part of what was added": (
        Kind.G1B,
        Level.READ_COMMITTED,
        "A p 0-1: add x 1; add x 2\nB q 2-3: read x=1",
        "A",
    ),
    "G1c: two saw each other": (
        Kind.G1C,
        Level.READ_COMMITTED,
        "A p 0-5: put x 1; read y=2\nB q 0-5: put y 2; read x=1",
        "A B",
    ),
    "lost update": (
        Kind.LOST_UPDATE,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-1: put x 1\nB q 2-5: read x=1 @1; put x 2\nC r 2-5: read x=1 @1; put x 3",
        "A B C",
    ),
    "lost update of what was not there": (
        Kind.LOST_UPDATE,
        Level.SNAPSHOT_ISOLATION,
        "B q 2-5: read x= @0; put x 2\nC r 2-5: read x= @0; put x 3",
        "B C",
    ),
    "lost update, read as a whole": (
        Kind.LOST_UPDATE,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-1: put x 1\nB q 2-5: scan x=1 @1; put x 2\nC r 2-5: scan x=1 @1; put x 3",
        "A B C",
    ),
    "G-single: half of a transaction": (
        Kind.G_SINGLE,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-1: put x 1; put y 1\nB q 2-9: put x 2; put y 2\nC r 3-4: read x=1 y=2",
        "A B",
    ),
    "G-single: two versions in one transaction": (
        Kind.G_SINGLE,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-1: put x 1\nB q 2-9: put x 2\nC r 3-10: read x=1 @1; read x=2 @2",
        "A B",
    ),
    "G-single: an addition was skipped": (
        Kind.G_SINGLE,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-9: add x 1\nB q 0-9: add x 2\nC r 0-9: read x=2",
        "A B",
    ),
    "long fork": (
        Kind.LONG_FORK,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-9: put x 1\nB q 0-9: put y 1\nC r 0-9: read x=1 y=\nD s 0-9: read x= y=1",
        "A B",
    ),
    "write skew": (
        Kind.WRITE_SKEW,
        Level.SERIALIZABLE,
        "Z p 0-1: put x 1; put y 1\nA p 2-9: read x=1 y=1 @1; put x 2\nB q 2-9: read x=1 y=1 @1; put y 2",
        "Z A B",
    ),
    "G2: three in a ring": (
        Kind.G2,
        Level.SERIALIZABLE,
        "A p 0-9: read x= @0; put y 1\nB q 0-9: read y= @0; put z 1\nC r 0-9: read z= @0; put x 1",
        "A B C",
    ),
    "phantom: each counted and added": (
        Kind.PHANTOM,
        Level.SERIALIZABLE,
        "A p 0-9: scan @0; put x 1\nB q 0-9: scan @0; put y 2",
        "A B",
    ),
    "phantom: a whole read against a part": (
        Kind.PHANTOM,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-9: put x 1; put y 2\nB q 0-9: scan @0; read x=1 @1",
        "A",
    ),
    "stale read": (
        Kind.STALE_READ,
        Level.STRICT_SERIALIZABLE,
        "A p 0-1: put x 1\nB q 2-3: put x 2\nC r 4-5: read x=1 @1",
        "A B",
    ),
    "stale read of all rows": (
        Kind.STALE_READ,
        Level.STRICT_SERIALIZABLE,
        "A p 0-1: put x 1\nB q 2-3: put y 2\nC r 4-5: scan x=1 @1",
        "A B",
    ),
    "stale read of rows nobody recorded": (
        Kind.STALE_READ,
        Level.STRICT_SERIALIZABLE,
        "A p 0-1: put x 1\nB q 2-3: put y 2\nC r 4-5: peek @1",
        "A B",
    ),
    "stale read by a detour": (
        Kind.STALE_READ,
        Level.STRICT_SERIALIZABLE,
        # C misses B; B is known to D, who ended before C began. B itself was never answered.
        "A p 0-1: put x 1\nB q 2-: put x 2 -> unknown\nD s 3-4: read x=2 @2\nC r 5-6: read x=1 @1",
        "A B",
    ),
    "the order of two writes": (
        Kind.REAL_TIME,
        Level.STRICT_SERIALIZABLE,
        "A p 0-1: put x 1\nB q 2-3: put x 2",
        "B A",
    ),
    "internal": (Kind.INTERNAL, Level.SNAPSHOT_ISOLATION, "A p 0-1: put x 1; read x= @0", "A"),
    "internal: an addition": (
        Kind.INTERNAL,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-1: add x 1\nB p 2-3: add x 2; read x=1 @1",
        "A B",
    ),
    "duplicate: twice in the history": (Kind.DUPLICATE, Level.READ_UNCOMMITTED, "A p 0-1: add x 1", "A A"),
    "duplicate: twice in one group": (Kind.DUPLICATE, Level.READ_UNCOMMITTED, "A p 0-1: add x 1", "A+A"),
    "duplicate: read twice": (
        Kind.DUPLICATE,
        Level.READ_UNCOMMITTED,
        "A p 0-1: add x 1\nB p 2-3: read x=1,1 @1",
        "A",
    ),
    "duplicate: read twice without a version": (
        Kind.DUPLICATE,
        Level.READ_UNCOMMITTED,
        "A p 0-1: add x 1\nB p 2-3: read x=1,1",
        "A",
    ),
    "lost write: in no version": (Kind.LOST_WRITE, Level.READ_UNCOMMITTED, "A p 0-1: put x 1\nB p 2-3: put y 2", "B"),
    "lost write: in a version without its rows": (
        Kind.LOST_WRITE,
        Level.READ_UNCOMMITTED,
        "A p 0-1: put x 1\nB p 2-3: scan @1",
        "A",
    ),
    "resurrected row": (
        Kind.RESURRECTED,
        Level.READ_UNCOMMITTED,
        "A p 0-1: put x 1\nB p 2-3: del x\nC p 4-5: put y 2\nD q 6-7: read x=1 @3",
        "A B C",
    ),
    "resurrected row beside the new one": (
        Kind.RESURRECTED,
        Level.READ_UNCOMMITTED,
        "A p 0-1: put x 1\nB p 2-3: put x 2\nD q 6-7: read x=1,2",
        "A B",
    ),
    "unwritten row": (Kind.UNWRITTEN, Level.READ_UNCOMMITTED, "A p 0-1: put x 1\nB p 2-3: read x=9 @1", "A"),
    "false failure": (Kind.FALSE_FAILURE, Level.READ_COMMITTED, "A p 0-1: put x 1 -> failed", "A"),
    "moved snapshot": (
        Kind.MOVED_SNAPSHOT,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-1: put x 1\nB p 2-9: put x 2\nC q 3-9: read x=2 @1",
        "A B",
    ),
}


@pytest.mark.parametrize("name", ANOMALIES)
def test_what_may_not_happen_is_found(name: str) -> None:
    kind, level, text, order = ANOMALIES[name]
    report = judge(text, order)
    assert kind in kinds(report), report.anomalies
    assert min(each.rules_out for each in report.anomalies) is level, report.anomalies
    assert report.ruled_out() == tuple(each for each in Level if each >= level)
    assert report.counts[kind] >= 1


G0 = """
A p 0-9: put x 1; put u.y 1
B q 0-9: put x 2; put u.y 2
"""


def test_writes_that_two_tables_have_in_opposite_orders_are_g0() -> None:
    report = check(history(G0), versions("A B") + versions("B A", "u"))
    assert kinds(report) == {Kind.G0}
    assert report.anomalies[0].tables == ("t", "u")
    # Each table alone is as it should be.
    assert report.holds("t") is report.holds("u") is Level.STRICT_SERIALIZABLE
    assert report.holds() is None


def test_writes_that_two_tables_have_in_the_same_order_are_clean() -> None:
    assert check(history(G0), versions("A B") + versions("A B", "u")).is_clean


def test_one_of_two_tables_is_missing_a_commit() -> None:
    report = check(history(G0), versions("A B") + versions("A", "u"))
    assert kinds(report) == {Kind.LOST_WRITE}
    assert report.holds("t") is Level.STRICT_SERIALIZABLE
    assert report.holds("u") is None


def test_half_of_a_commit_of_two_tables_is_seen() -> None:
    text = "A p 0-9: put x 1; put u.y 1\nB q 0-9: read x=1; read u.y="
    report = check(history(text), versions("A") + versions("A", "u"))
    assert kinds(report) == {Kind.G_SINGLE}
    assert report.anomalies[0].tables == ("t", "u")
    whole = text.replace("u.y=", "u.y=1")
    assert check(history(whole), versions("A") + versions("A", "u")).is_clean


ACROSS: dict[str, tuple[Kind, Level, str, str, str, tuple[str, str]]] = {
    # What is found, the level, the history over t and u, the orders of both, and what in it makes it right.
    "G1a": (
        Kind.G1A,
        Level.READ_COMMITTED,
        "A p 0-1: put x 1; put u.y 1\nB q 2-3: put x 2; put u.y 2 -> failed\nC r 4-5: read x=1; read u.y=2",
        "A",
        "A",
        ("u.y=2", "u.y=1"),
    ),
    "G1c": (
        Kind.G1C,
        Level.READ_COMMITTED,
        "A p 0-5: put x 1; read u.y=2\nB q 0-5: put u.y 2; read x=1",
        "A",
        "B",
        ("x=1", "x="),
    ),
    "G-single: read skew": (
        Kind.G_SINGLE,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-1: put x 1; put u.y 1\nB q 2-9: put x 2; put u.y 2\nC r 3-4: read x=1 @1; read u.y=2 @2",
        "A B",
        "A B",
        ("u.y=2 @2", "u.y=1 @1"),
    ),
    "G-single: half of a commit at one instant": (
        Kind.G_SINGLE,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-1: put x 1; put u.y 1\nB q 2-3: put x 2; put u.y 2\nC r 8-9: at x=2 @2; at u.y=1 @1",
        "A B",
        "A B",
        ("u.y=1 @1", "u.y=2 @2"),
    ),
    "lost update": (
        Kind.LOST_UPDATE,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-1: put x 1; put u.y 1\nB q 2-5: read x=1 @1; put x 2; put u.y 2\nC r 2-5: read x=1 @1; put x 3",
        "A B C",
        "A B",
        ("x=1 @1; put x 3", "x=2 @2; put x 3"),
    ),
    "long fork": (
        Kind.LONG_FORK,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-9: put x 1\nB q 0-9: put u.y 1\nC r 0-9: read x=1; read u.y=\nD s 0-9: read x=; read u.y=1",
        "A",
        "B",
        ("u.y=1", "u.y="),
    ),
    "long fork of two instants": (
        Kind.LONG_FORK,
        Level.SNAPSHOT_ISOLATION,
        "A p 0-1: put x 1\nB q 0-1: put u.y 1\nC r 2-3: at x=1 @1; at u.y= @0\nD s 2-3: at x= @0; at u.y=1 @1",
        "A",
        "B",
        ("u.y=1 @1", "u.y= @0"),
    ),
    "write skew": (
        Kind.WRITE_SKEW,
        Level.SERIALIZABLE,
        "Z p 0-1: put x 1; put u.y 1\nA p 2-9: put x 2; read u.y=1 @1\nB q 2-9: put u.y 2; read x=1 @1",
        "Z A",
        "Z B",
        ("x=1 @1", "x=2 @2"),
    ),
    "phantom: each counted the other table and added": (
        Kind.PHANTOM,
        Level.SERIALIZABLE,
        "A p 0-9: put x 1; scan u @0\nB q 0-9: put u.y 1; scan t @0",
        "A",
        "B",
        ("scan t @0", "scan x=1 @1"),
    ),
}


@pytest.mark.parametrize("name", ACROSS)
def test_what_may_not_happen_over_two_tables_is_found(name: str) -> None:
    kind, level, text, of_t, of_u, _ = ACROSS[name]
    report = check(history(text), versions(of_t) + versions(of_u, "u"))
    assert kinds(report) == {kind}, report.anomalies
    assert report.holds() is Level(level - 1)
    # Each key is fine on its own where the anomaly is between the tables.
    is_inside = {each.tables for each in report.anomalies} <= {("t",), ("u",)}
    assert is_inside is (kind in (Kind.G1A, Kind.LOST_UPDATE))
    if not is_inside:
        assert {each.tables for each in report.anomalies} == {("t", "u")}
        assert report.holds("t") is report.holds("u") is Level.STRICT_SERIALIZABLE


@pytest.mark.parametrize("name", ACROSS)
def test_the_near_twin_over_two_tables_is_clean(name: str) -> None:
    _, _, text, of_t, of_u, (wrong, right) = ACROSS[name]
    before, _, after = text.rpartition(wrong)
    assert check(history(f"{before}{right}{after}"), versions(of_t) + versions(of_u, "u")).is_clean


def test_the_age_of_an_instant_is_not_judged() -> None:
    text = "A p 0-1: put x 1\nB q 2-3: put x 2\nC r 4-5: at x=1 @1\nD r 6-7: {} x=1 @1"
    assert check(history(text.format("at")), versions("A B")).is_clean
    assert kinds(check(history(text.format("read")), versions("A B"))) == {Kind.STALE_READ}


TWINS: dict[Kind, tuple[str, str, str, str]] = {
    # What is found, and the smallest change that makes it right.
    Kind.G1A: (
        "A p 0-1: put x 1\nB q 2-3: put x 2 -> failed\nC r 4-5: read x=2",
        "A",
        "A p 0-1: put x 1\nB q 2-3: put x 2 -> unknown\nC r 4-5: read x=2",
        "A B",
    ),
    Kind.G1B: (
        "A p 0-1: put x 1; put x 2\nB q 2-3: read x=1",
        "A",
        "A p 0-1: put x 1; put x 2\nB q 2-3: read x=2",
        "A",
    ),
    Kind.G1C: (
        "A p 0-5: put x 1; read y=2\nB q 0-5: put y 2; read x=1",
        "A B",
        "A p 0-5: put x 1; read y=\nB q 0-5: put y 2; read x=1",
        "A B",
    ),
    Kind.LOST_UPDATE: (
        "A p 0-1: put x 1\nB q 2-5: read x=1 @1; put x 2\nC r 2-5: read x=1 @1; put x 3",
        "A B C",
        "A p 0-1: put x 1\nB q 2-5: read x=1 @1; put x 2\nC r 2-9: read x=2 @2; put x 3",
        "A B C",
    ),
    Kind.G_SINGLE: (
        "A p 0-1: put x 1; put y 1\nB q 2-9: put x 2; put y 2\nC r 3-4: read x=1 y=2",
        "A B",
        "A p 0-1: put x 1; put y 1\nB q 2-9: put x 2; put z 2\nC r 3-4: read x=1 y=1",
        "A B",
    ),
    Kind.LONG_FORK: (
        "A p 0-9: put x 1\nB q 0-9: put y 1\nC r 0-9: read x=1 y=\nD s 0-9: read x= y=1",
        "A B",
        "A p 0-9: put x 1\nB q 0-9: put y 1\nC r 0-9: read x=1 y=\nD s 0-9: read x= y=",
        "A B",
    ),
    Kind.WRITE_SKEW: (
        "Z p 0-1: put x 1; put y 1\nA p 2-9: read y=1 @1; put x 2\nB q 2-9: read x=1 @1; put y 2",
        "Z A B",
        "Z p 0-1: put x 1; put y 1\nA p 2-9: read y=1 @1; put x 2\nB q 2-9: read x=2 @2; put y 2",
        "Z A B",
    ),
    Kind.G2: (
        "A p 0-9: read x= @0; put y 1\nB q 0-9: read y= @0; put z 1\nC r 0-9: read z= @0; put x 1",
        "A B C",
        "A p 0-9: read x= @0; put y 1\nB q 0-9: read y= @0; put z 1\nC r 0-9: read z=1 @2; put x 1",
        "A B C",
    ),
    Kind.PHANTOM: (
        "A p 0-9: scan @0; put x 1\nB q 0-9: scan @0; put y 2",
        "A B",
        "A p 0-9: scan @0; put x 1\nB q 0-9: scan x=1 @1; put y 2",
        "A B",
    ),
    Kind.STALE_READ: (
        "A p 0-1: put x 1\nB q 2-3: put x 2\nC r 4-5: read x=1 @1",
        "A B",
        "A p 0-1: put x 1\nB q 2-3: put x 2\nC r 3-5: read x=1 @1",
        "A B",
    ),
    Kind.REAL_TIME: (
        "A p 0-1: put x 1\nB q 2-3: put x 2",
        "B A",
        "A p 0-2: put x 1\nB q 2-3: put x 2",
        "B A",
    ),
    Kind.INTERNAL: ("A p 0-1: put x 1; read x= @0", "A", "A p 0-1: read x= @0; put x 1", "A"),
    Kind.DUPLICATE: ("A p 0-1: add x 1\nB p 2-3: read x=1", "A A", "A p 0-1: add x 1\nB p 2-3: read x=1", "A"),
    Kind.LOST_WRITE: ("A p 0-1: put x 1", "B", "A p 0-: put x 1 -> unknown", "B"),
    Kind.RESURRECTED: (
        "A p 0-1: put x 1\nB p 2-3: del x\nD q 6-7: read x=1 @2",
        "A B",
        "A p 0-1: put x 1\nB p 2-3: del y\nD q 6-7: read x=1 @2",
        "A B",
    ),
    Kind.UNWRITTEN: (
        "A p 0-1: put x 1\nB p 2-3: read x=9 @1",
        "A",
        "A p 0-1: put x 1\nB p 2-3: read x=9 @2",
        "A ?",
    ),
    Kind.FALSE_FAILURE: ("A p 0-1: put x 1 -> failed", "A", "A p 0-1: put x 1 -> unknown", "A"),
    Kind.MOVED_SNAPSHOT: (
        "A p 0-1: put x 1\nB p 2-9: put x 2\nC q 3-9: read x=2 @1",
        "A B",
        "A p 0-1: put x 1\nB p 2-9: put x 2\nC q 3-9: read x=2 @2",
        "A B",
    ),
}


def test_every_anomaly_has_a_twin() -> None:
    assert {*TWINS, Kind.G0} == set(Kind), "G0 needs two tables and has its own tests above"


@pytest.mark.parametrize("kind", TWINS)
def test_the_near_twin_is_clean(kind: Kind) -> None:
    bad, bad_order, good, good_order = TWINS[kind]
    assert kind in kinds(judge(bad, bad_order))
    assert judge(good, good_order).is_clean, judge(good, good_order).anomalies


def test_one_process_does_not_go_back_in_time() -> None:
    seen = "A p 0-1: put x 1\nB q 2-: put x 2 -> unknown\nC r 3-4: read x=2 @2\nD {} 4-5: read x=1 @1"
    # At the very moment that C ended: the clock alone gives no order, the process does.
    assert kinds(judge(seen.format("r"), "A B")) == {Kind.STALE_READ}
    assert judge(seen.format("s"), "A B").is_clean


ROWS: dict[str, tuple[str, str, Rows, Kind]] = {
    "lost": ("A p 0-1: put x 1", "A", {1: {}}, Kind.LOST_WRITE),
    "took others' rows": (
        "A p 0-1: put x 1\nB p 2-3: put y 2",
        "A B",
        {1: {"x": (1,)}, 2: {"x": (), "y": (2,)}},
        Kind.LOST_WRITE,
    ),
    "twice": ("A p 0-1: add x 1", "A", {1: {"x": (1, 1)}}, Kind.DUPLICATE),
    "back": (
        "A p 0-1: put x 1\nB p 2-3: del x\nC p 4-5: put y 2",
        "A B C",
        {1: {"x": (1,)}, 2: {"x": ()}, 3: {"x": (1,), "y": (2,)}},
        Kind.RESURRECTED,
    ),
    "from nowhere": ("A p 0-1: put x 1", "A", {1: {"x": (1,), "z": (7,)}}, Kind.UNWRITTEN),
    "failed": ("A p 0-1: put x 1\nB p 2-3: put y 2 -> failed", "A", {1: {"x": (1,), "y": (2,)}}, Kind.FALSE_FAILURE),
    "too early": ("A p 0-1: put x 1\nB p 2-3: put y 2", "A B", {1: {"x": (1,), "y": (2,)}, 2: {}}, Kind.MOVED_SNAPSHOT),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_versions_hold_is_compared_with_what_was_written(name: str) -> None:
    text, order, rows, kind = ROWS[name]
    assert kinds(judge(text, order, rows)) == {kind}


def test_versions_that_hold_what_was_written_are_clean() -> None:
    text = "A p 0-1: put x 1\nB p 2-3: del x\nC p 4-5: put y 2; add z 3\nD p 6-7: add z 4\nE q 8-9: scan y=2 z=3,4 @4"
    rows: Rows = {1: {"x": (1,)}, 2: {"x": ()}, 3: {"y": (2,), "z": (3,)}, 4: {"z": (4, 3)}}
    assert judge(text, "A B C D", rows).is_clean


def test_a_witness_tells_each_step_in_words() -> None:
    kind, _, text, order = ANOMALIES["lost update"]
    found = next(each for each in judge(text, order).anomalies if each.kind is kind)
    assert len(found.cycle) == 2
    assert {found.cycle[0].before, found.cycle[1].before} == {"B", "C"}
    assert "C read 1 in key 'x' of t and did not see that B wrote 2 there" in {each.words for each in found.cycle}
    assert "B wrote 2 to key 'x' of t, and C wrote 3 after it" in {each.words for each in found.cycle}


def test_a_witness_is_as_short_as_it_can_be() -> None:
    # A ring of twelve with a short cut between two of it.
    ring = "\n".join(f"T{n} p{n} 0-9: read k{n}= @0; put k{(n + 1) % 12} {n + 1}" for n in range(12))
    skew = "\nX x 0-9: read a= @0; put b 50\nY y 0-9: read b= k0= @0; put a 60"
    report = judge(ring + skew, " ".join([*(f"T{n}" for n in range(12)), "X", "Y"]))
    assert min(len(each.cycle) for each in report.anomalies) == 2
    assert {Kind.WRITE_SKEW, Kind.G2} <= kinds(report)


def test_a_resent_commit_is_one_transaction() -> None:
    first = Transaction("A", "p", (Write("t", "put", "x", 1),), Outcome.UNKNOWN, "c", began=0, ended=None)
    again = Transaction("A2", "p", (Write("t", "put", "x", 1),), Outcome.OK, "c", began=5, ended=6)
    report = check([first, again], [Version("t", 1, ("c",))])
    assert report.is_clean
    assert report.figures.transactions == 1
    assert check([first, again], []).is_clean
    assert kinds(check([first, again], [Version("t", 1, ("d",))])) == {Kind.LOST_WRITE}


def test_expired_versions_are_not_lost_writes() -> None:
    text = "A p 0-1: put x 1\nB p 2-3: put x 2\nC p 4-5: put y 3\nD q 6-7: read x=2 y=3 @9"
    kept = [Version("t", 8, ("B",), parent=7), Version("t", 9, ("C",), parent=8)]
    report = check(history(text), kept)
    assert report.is_clean
    assert any("expired" in each for each in report.notes)
    # Who began when a kept commit was answered would be kept, too.
    late = check(history(text + "\nE p 8-9: put z 5"), kept)
    assert kinds(late) == {Kind.LOST_WRITE}


def test_rolled_back_versions_are_not_lost_writes() -> None:
    found = [Version("t", 1, ("A",)), Version("t", 2, ("B",), live=False)]
    report = check(history("A p 0-1: put x 1\nB p 2-3: put x 2"), found)
    assert report.is_clean
    assert any("rolled back" in each for each in report.notes)


def test_changes_of_strangers_are_not_held_against_anybody() -> None:
    text = "A p 0-1: put x 1\nC q 4-5: read x=9 y=8 @2\nD q 6-7: scan x=9 y=8 @2"
    report = judge(text, "A ?")
    assert report.is_clean, report.anomalies
    assert any("unrecorded changes" in each for each in report.notes)
    assert not judge(text, "A").is_clean


def test_values_that_a_stranger_may_have_taken_out_are_not_missed() -> None:
    text = "A p 0-1: add x 1\nB p 2-3: add x 2\nC q 4-5: read x=2"
    assert judge(text, "A B ?").is_clean
    assert not judge(text, "A B").is_clean


def test_single_values_are_taken_out_of_a_key() -> None:
    take = Transaction("D", "p", (Write("t", "remove", "x", 1, one_value=True),), commit_id="D", began=4, ended=5)
    seen = history("A p 0-1: add x 1\nB p 2-3: add x 2\nC q 6-7: read x=2 @3")
    assert check([*seen, take], versions("A B D")).is_clean
    assert check([*history("A p 0-1: add x 1\nB p 2-3: add x 2\nC q 6-7: read x=2"), take], versions("A B D")).is_clean
    back = history("A p 0-1: add x 1\nB p 2-3: add x 2\nC q 6-7: read x=1,2 @3")
    assert kinds(check([*back, take], versions("A B D"))) >= {Kind.RESURRECTED}
    # Whoever takes out what somebody else replaced meanwhile takes out nothing.
    late = history("A p 0-1: put x 1\nB p 2-9: put x 2\nC q 10-11: read x=2 @3")
    assert check([*late, replace(take, ended=9)], versions("A B D")).is_clean


def test_what_a_stranger_changed_is_known_again_after_the_next_write() -> None:
    text = "A p 0-1: put x 1\nB p 2-3: put x 2\nC q 4-5: read x= @3"
    assert kinds(judge(text, "A ? B")) == {Kind.LOST_WRITE}


def test_a_change_of_unknown_rows_hides_what_it_may_have_touched() -> None:
    assert judge("A p 0-1: put x 1\nB p 2-3: other\nC q 4-5: read x= @2", "A B").is_clean
    assert not judge("A p 0-1: put x 1\nB p 2-3: put y 1\nC q 4-5: read x= @2", "A B").is_clean


def test_engines_without_commit_ids_are_traced_by_values() -> None:
    found = [
        Transaction("A", "p", (Write("t", "put", "x", 1),), began=0, ended=1),
        Transaction("B", "q", (Write("t", "put", "x", 2),), began=2, ended=3),
    ]
    rows = [Version("t", 1, rows={"x": (1,)}), Version("t", 2, rows={"x": (2,)})]
    assert check(found, rows).is_clean
    assert kinds(check(found, rows[:1])) == {Kind.LOST_WRITE}
    assert kinds(check(found, [Version("t", 1, rows={"x": (2,)}), Version("t", 2, rows={"x": (1,)})])) == {
        Kind.REAL_TIME
    }


def test_clocks_that_differ_are_forgiven_within_the_slack() -> None:
    text = "A p 0-1: put x 1\nB q 2-3: put x 2\nC r 4-5: read x=1 @1"
    found, order = history(text), versions("A B")
    assert not check(found, order, slack=0.5).is_clean
    assert check(found, order, slack=1.5).is_clean


def test_a_read_of_no_known_version_that_fits_two_moments_claims_neither() -> None:
    # The rows of D are those after A and those after C.
    text = "A p 0-1: put x 1\nB p 2-3: put y 2\nC p 4-5: del y\nD q 6-7: scan x=1"
    assert judge(text, "A B C").is_clean
    assert kinds(judge("A p 0-1: put x 1\nB p 2-3: put y 2\nD q 6-7: scan x=1", "A B")) == {Kind.STALE_READ}


def test_many_faults_of_one_kind_are_counted_and_a_few_are_told() -> None:
    lines = [f"A{n} p{n} 0-1: add x {n}" for n in range(50)]
    report = judge("\n".join(lines), "A0")
    assert report.counts == {Kind.LOST_WRITE: 49}
    assert len(report.anomalies) == 3


def test_an_empty_history_is_clean() -> None:
    report: Report = check([], [])
    assert report.is_clean
    assert report.holds() is Level.STRICT_SERIALIZABLE
