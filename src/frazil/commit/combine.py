"""Consecutive writes of a transaction as one: one snapshot instead of one for each.

A write needs a snapshot of its own, with its own sequence number, if an equality delete orders it, or if it names files
of the write before it. When in doubt, writes stay apart: a step more costs a snapshot, a step too few would be wrong.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from frazil.commit.operations import Kind, RowCounts, Write

V = TypeVar("V")
_KINDS = frozenset({Kind.APPEND, Kind.DELETE, Kind.UPDATE})
"""Their files say all that they do: the checks of an update include those of the other two."""


def combined(writes: Sequence[Write]) -> tuple[Write, ...]:
    """The same writes in the same order, those that can be one snapshot combined."""
    found: list[Write] = []
    for write in writes:
        if found and can_combine(found[-1], write):
            found[-1] = _both(found[-1], write)
        else:
            found.append(write)
    return tuple(found)


def can_combine(first: Write, second: Write) -> bool:
    """Whether both in one snapshot mean what they mean one after the other."""
    return _is_plain(first) and _is_plain(second) and _are_alike(first, second) and _are_apart(first, second)


def _is_plain(write: Write) -> bool:
    keyed = write.keys or write.key_spec_id is not None or write.has_equality_deletes
    prepared = write.bundles or write.merges or not write.owns_files
    return write.kind in _KINDS and not (write.is_empty or write.own_snapshot or keyed or prepared)


def _are_alike(first: Write, second: Write) -> bool:
    """Their files are checked, and shown, by the same rules."""
    same = ("table_uuid", "branch", "isolation", "schema_id", "on_deleted", "snapshot_properties")
    # A snapshot has one condition of a delete, for writers that append matching rows.
    one_condition = first.predicate is None or second.predicate is None
    return one_condition and all(getattr(first, name) == getattr(second, name) for name in same)


def _are_apart(first: Write, second: Write) -> bool:
    """They name no file in common, and the second one none that the first one adds."""
    new = {file.file_path for file in (*first.added, *first.deletes)}
    named = _named(second)
    return not (new & named) and not (_named(first) & named)


def _named(write: Write) -> set[str]:
    """The files of the table that it removes, marks or moves rows of."""
    removed = (file.file_path for file in (*write.removed, *write.removed_deletes))
    return {*removed, *write.positions, *write.touched, *write.moved, *write.unneeded}


def _both(first: Write, second: Write) -> Write:
    since = [each.staged_since_ms for each in (first, second) if each.staged_since_ms is not None]
    return replace(
        # It has the later one's snapshot id.
        second,
        kind=first.kind if first.kind is second.kind else Kind.UPDATE,
        base=first.base,
        added=(*first.added, *second.added),
        copies={**first.copies, **second.copies},
        removed=(*first.removed, *second.removed),
        removed_deletes=(*first.removed_deletes, *second.removed_deletes),
        unneeded={**first.unneeded, **second.unneeded},
        deletes=(*first.deletes, *second.deletes),
        positions=_joined(first.positions, second.positions),
        touched={**first.touched, **second.touched},
        moved=_joined(first.moved, second.moved),
        reads=(*first.reads, *second.reads),
        predicate=first.predicate or second.predicate,
        written_ids={**first.written_ids, **second.written_ids},
        nullable_ids=first.nullable_ids | second.nullable_ids,
        staged_since_ms=min(since, default=None),
        rows=RowCounts(
            first.rows.inserted + second.rows.inserted,
            first.rows.updated + second.rows.updated,
            first.rows.deleted + second.rows.deleted,
        ),
    )


def _joined(first: Mapping[str, V], second: Mapping[str, V]) -> Mapping[str, V]:
    # Positions may be read lazily; nothing writes to the result.
    parts: Any = [each for each in (first, second) if each]
    return ChainMap(*parts) if parts else {}
