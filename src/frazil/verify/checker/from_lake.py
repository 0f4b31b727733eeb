"""The versions of a table from its own history, with the rows that each changed where columns are named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from frazil.errors import InvalidInput
from frazil.format.metadata import MAIN
from frazil.lake import Lake
from frazil.read.changes import DELETE, SNAPSHOT, TYPE
from frazil.table.table import Table
from frazil.verify.checker.effects import without
from frazil.verify.checker.model import Key, Value, Version
from frazil.verify.recording.columns import Named

Rows = dict[Key, tuple[Value, ...]]


def versions_of(lake: Lake, name: str, named: Named | None = None) -> list[Version]:
    """The versions of a table, or of one of its branches (``shop.t@branch``), oldest first."""
    table_name, _, branch = name.partition("@")
    table = lake.table(table_name)
    branch = branch or MAIN
    metadata = table._metadata()
    current = {each.snapshot_id for each in metadata.ancestors(metadata.ref_snapshot_id(branch))}
    others = {each.snapshot_id for ref in metadata.refs for each in metadata.ancestors(metadata.ref_snapshot_id(ref))}
    rows = _rows(table, named) if named is not None and branch == MAIN else None
    found: list[Version] = []
    for entry in table.history():
        number = entry.snapshot_id
        if number not in current and number in others:
            # A version of another branch.
            continue
        # Compaction does not change rows.
        is_same = entry.operation == "replace"
        known = {} if is_same else None if rows is None or number not in current else rows.get(number, {})
        commits = tuple(each.commit_id for each in entry.commits)
        found.append(Version(name, number, commits, entry.parent_snapshot_id, known, number in current))
    return found


def _rows(table: Table, named: Named) -> Mapping[int, Rows] | None:
    """Snapshot → the keys that it changed, with their values after it; None: the columns cannot be followed."""
    if named.ids(table.schema) is None:
        return None
    came: dict[int, dict[Key, list[Value]]] = defaultdict(lambda: defaultdict(list))
    went: dict[int, dict[Key, list[Value]]] = defaultdict(lambda: defaultdict(list))
    order: dict[int, None] = {}
    try:
        for batch in table.changes(since=None).to_batches():
            kinds: list[Any] = batch.column(TYPE).to_pylist()
            snapshots: list[Any] = batch.column(SNAPSHOT).to_pylist()
            for kind, snapshot, (key, value) in zip(kinds, snapshots, named.pairs(batch), strict=True):
                order[snapshot] = None
                side = went if kind == DELETE else came
                side[snapshot][_key(key)].append(_key(value))
    except InvalidInput:
        return None
    return _states(order, came, went)


def _states(
    order: Iterable[int], came: Mapping[int, Mapping[Key, list[Value]]], went: Mapping[int, Mapping[Key, list[Value]]]
) -> dict[int, Rows]:
    state: dict[Key, tuple[Value, ...]] = {}
    found: dict[int, Rows] = {}
    for snapshot in order:
        changed: Rows = {}
        for key in {**went[snapshot], **came[snapshot]}:
            left = without(state.get(key, ()), went[snapshot].get(key, ()))
            state[key] = changed[key] = (*left, *came[snapshot].get(key, ()))
        found[snapshot] = changed
    return found


def _key(value: Any) -> Key:
    return tuple(value) if isinstance(value, list) else value
