"""The checker on random executions of a tiny store: what the store forbids is not found, what it lets through is."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.verify.checker import Key, Kind, Level, Outcome, Read, Report, Transaction, Value, Version, Write, check
from frazil.verify.checker.history import parse_history, transaction_event, version_event
from unit.checker_language import kinds
from unit.checker_store import Store, ran

SEEDS = st.integers(0, 2**32)


def judged(store: Store, *, rows: bool = True) -> Report:
    versions = store.versions if rows else [replace(each, rows=None) for each in store.versions]
    return check(store.transactions, versions)


@given(SEEDS, st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_serial_histories_are_clean(seed: int, pins: bool, rows: bool) -> None:
    report = judged(ran(seed, "serial", pins=pins), rows=rows)
    assert report.is_clean, report.anomalies


@given(SEEDS, st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_serializable_store_is_strictly_so(seed: int, pins: bool, rows: bool) -> None:
    report = judged(ran(seed, "serializable", count=60, pins=pins), rows=rows)
    assert report.is_clean, report.anomalies


@given(SEEDS, st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_snapshot_store_shows_nothing_that_snapshot_isolation_forbids(seed: int, pins: bool, rows: bool) -> None:
    report = judged(ran(seed, "snapshot", count=60, pins=pins), rows=rows)
    assert {Level.READ_UNCOMMITTED, Level.READ_COMMITTED, Level.SNAPSHOT_ISOLATION}.isdisjoint(report.ruled_out())
    # What is serializable need not be strictly so: a read without a version may fit an older moment only.


def test_a_snapshot_store_lets_write_skew_through() -> None:
    found = [kinds(judged(ran(seed, "snapshot", count=60))) for seed in range(60)]
    assert sum(bool(each) for each in found) > 20
    assert Kind.WRITE_SKEW in set().union(*found)
    assert Kind.LOST_UPDATE not in set().union(*found)


def test_a_store_without_checks_is_found_out() -> None:
    found = [kinds(judged(ran(seed, "none", count=60))) for seed in range(60)]
    assert sum(bool(each) for each in found) > 50
    assert {Kind.LOST_UPDATE, Kind.WRITE_SKEW} <= set().union(*found)


@given(SEEDS, st.booleans())
@settings(max_examples=400, deadline=None)
def test_the_verdict_is_that_of_trying_every_order(seed: int, pins: bool) -> None:
    store = ran(seed, "none", count=11, removes=False, silence=0.0, pins=pins)
    is_serializable = Level.SERIALIZABLE not in judged(store, rows=False).ruled_out()
    assert is_serializable == _has_an_order(store.transactions, store.versions)


@given(SEEDS, st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_is_taken_out_of_a_history_is_missed(seed: int, data: st.DataObject) -> None:
    store = ran(seed, "serializable", count=30)
    told = {each.commit_id for each in store.transactions if each.outcome is Outcome.OK}
    landed = [number for number, each in enumerate(store.versions) if each.commits[0] in told]
    if not landed:
        return
    number = data.draw(st.sampled_from(landed))
    less = [
        *store.versions[:number],
        replace(store.versions[number], commits=("somebody",)),
        *store.versions[number + 1 :],
    ]
    assert Kind.LOST_WRITE in kinds(check(store.transactions, less))
    more = [*store.versions, Version("t", 99, store.versions[number].commits, store.versions[-1].id)]
    assert Kind.DUPLICATE in kinds(check(store.transactions, more))


@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_a_history_survives_its_way_through_json(seed: int) -> None:
    store = ran(seed, "none", count=30)
    events = [transaction_event(each) for each in store.transactions] + [version_event(each) for each in store.versions]
    again = parse_history(events)
    assert again.transactions == tuple(store.transactions)
    assert again.versions == tuple(store.versions)


@pytest.mark.parametrize("kind", ["put", "add"])
def test_a_wrong_order_of_the_table_is_found(kind: str) -> None:
    found = 0
    for seed in range(40):
        store = ran(seed, "serializable", count=40, silence=0.0)
        if len(store.versions) < 4:
            continue
        first, second = store.versions[1], store.versions[2]
        swapped = [store.versions[0], replace(first, commits=second.commits), replace(second, commits=first.commits)]
        order = [replace(each, rows=None) for each in (*swapped, *store.versions[3:])]
        found += not check(store.transactions, order).is_clean
    assert found > 10


def _has_an_order(transactions: list[Transaction], versions: list[Version]) -> bool:
    """Is there an order of all transactions that keeps the table's order of writes and gives every read its values?"""
    order = [commit for version in versions for commit in version.commits]
    writers = {each.id: each for each in transactions if each.commit_id in order}
    readers = [each for each in transactions if each.id not in writers]
    position = {name: number for number, name in enumerate(order)}
    for names in permutations(order):
        if _keeps_writes(names, writers, position) and _fits([writers[each] for each in names], readers):
            return True
    return not order and _fits([], readers)


def _keeps_writes(names: tuple[str, ...], writers: dict[str, Transaction], position: dict[str, int]) -> bool:
    last: dict[Key, int] = {}
    for name in names:
        keys = {op.key for op in writers[name].ops if isinstance(op, Write)}
        if any(last.get(key, -1) > position[name] for key in keys):
            return False
        last.update(dict.fromkeys(keys, position[name]))
    return True


def _fits(ordered: list[Transaction], readers: list[Transaction]) -> bool:
    """The writers see what they saw, and for each that only reads there is a moment at which it saw what it saw."""
    states: list[dict[Key, tuple[Value, ...]]] = [{}]
    for each in ordered:
        if not _sees(each, states[-1]):
            return False
        rows = dict(states[-1])
        for op in each.ops:
            if isinstance(op, Write):
                rows[op.key] = (op.value,) if op.kind == "put" else (*rows.get(op.key, ()), op.value)
        states.append(rows)
    return all(any(_sees(reader, state) for state in states) for reader in readers)


def _sees(transaction: Transaction, rows: dict[Key, tuple[Value, ...]]) -> bool:
    for op in transaction.ops:
        if isinstance(op, Read):
            assert op.seen is not None
            keys = set(rows) | set(op.seen) if op.whole else set(op.keys)
            if any(sorted(map(str, rows.get(key, ()))) != sorted(map(str, op.seen.get(key, ()))) for key in keys):
                return False
    return True
