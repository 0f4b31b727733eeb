"""Checks: pure functions of my operation and what landed since its base. They return evidence and never raise.

``REQUIRED`` is the one table that says which checks an operation needs; the matrix in the docs is made from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from frazil.commit.checks import Check, FileInspector
from frazil.commit.history import History
from frazil.commit.operations import Kind, MetadataChange, Operation, Read, Write
from frazil.commit.rebase import Rebased, rebase, unchanged
from frazil.commit.snapshot_layout import SOURCE
from frazil.errors import InvalidInput
from frazil.format import pruning
from frazil.format.filters import Filter
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Change, Conflict, DataFile, Isolation

_HEAD = (Check.SAME_TABLE, Check.BRANCH_EXISTS, Check.SCHEMA_COMPATIBLE, Check.SPEC_LISTED)
_ROWS = (Check.BASE_IS_ANCESTOR, Check.FILES_EXIST, Check.NO_NEW_DELETES, Check.ROW_OWNER)
_REWRITE = (Check.BASE_IS_ANCESTOR, Check.FILES_EXIST, Check.FILES_NOT_REMOVED)
_COMING = (Check.ADDED_ONCE, Check.NOT_DELETED)
_READS = (Check.NO_ADDED_ROWS, Check.NO_REMOVED_ROWS, Check.NO_NEW_DELETE_FILES)
_INTENT = (
    Check.SAME_TABLE,
    Check.SCHEMA_COMPATIBLE,
    Check.LAYOUT_UNCHANGED,
    Check.REFS_UNCHANGED,
    Check.SINK_UNMOVED,
)
_SERIALIZABLE, _SNAPSHOT = Isolation.SERIALIZABLE, Isolation.SNAPSHOT

REQUIRED: dict[tuple[Kind, Isolation], tuple[Check, ...]] = {
    (Kind.APPEND, _SERIALIZABLE): (*_HEAD, *_COMING, Check.BASE_IS_ANCESTOR, *_READS),
    (Kind.APPEND, _SNAPSHOT): (*_HEAD, *_COMING),
    (Kind.OVERWRITE, _SERIALIZABLE): (*_HEAD, *_ROWS, *_READS),
    (Kind.OVERWRITE, _SNAPSHOT): (*_HEAD, *_ROWS),
    (Kind.REPLACE_PARTITIONS, _SERIALIZABLE): (*_HEAD, *_ROWS, *_READS),
    (Kind.REPLACE_PARTITIONS, _SNAPSHOT): (*_HEAD, *_ROWS),
    (Kind.DELETE, _SERIALIZABLE): (*_HEAD, Check.ADDED_ONCE, *_ROWS, *_READS),
    (Kind.DELETE, _SNAPSHOT): (*_HEAD, Check.ADDED_ONCE, *_ROWS),
    (Kind.UPDATE, _SERIALIZABLE): (*_HEAD, Check.ADDED_ONCE, *_ROWS, *_READS),
    (Kind.UPDATE, _SNAPSHOT): (*_HEAD, Check.ADDED_ONCE, *_ROWS),
    (Kind.UPSERT, _SERIALIZABLE): (*_HEAD, Check.KEYS_UNCHANGED, Check.NOT_DELETED, *_ROWS, *_READS),
    (Kind.UPSERT, _SNAPSHOT): (*_HEAD, Check.KEYS_UNCHANGED, Check.NOT_DELETED, *_ROWS),
    (Kind.MERGE, _SERIALIZABLE): (*_HEAD, Check.ADDED_ONCE, *_ROWS, *_READS),
    (Kind.MERGE, _SNAPSHOT): (*_HEAD, Check.ADDED_ONCE, *_ROWS),
    (Kind.ROW_DELTA, _SERIALIZABLE): (*_HEAD, Check.KEYS_UNCHANGED, *_ROWS, *_READS),
    (Kind.ROW_DELTA, _SNAPSHOT): (*_HEAD, Check.KEYS_UNCHANGED, *_ROWS),
    (Kind.REWRITE, _SERIALIZABLE): (*_HEAD, *_REWRITE, *_READS),
    (Kind.REWRITE, _SNAPSHOT): (*_HEAD, *_REWRITE),
    # A change without rows is an intent replayed on the head; replaying it finds what does not fit any more.
    (Kind.METADATA, _SERIALIZABLE): _INTENT,
    (Kind.METADATA, _SNAPSHOT): _INTENT,
}


def required(operation: Operation) -> tuple[Check, ...]:
    if isinstance(operation, MetadataChange):
        return REQUIRED[Kind.METADATA, _SERIALIZABLE]
    return REQUIRED[operation.kind, operation.isolation]


def head_conflicts(
    operation: Operation, head: TableMetadata, found: TableMetadata | None = None
) -> tuple[Conflict, ...]:
    """What keeps this operation from landing on this head, whatever happened to the rows.

    ``found``: the head as others left it, where earlier steps of the same commit have changed it since.
    """
    if isinstance(operation, MetadataChange):
        checks = (_same_table(operation, head),)
        return tuple(each for each in checks if each is not None)
    wanted = required(operation)
    statuses = [check(operation, head) for name, check in _HEAD_CHECKS.items() if name in wanted]
    statuses.append(_filters_bound(operation, head, found or head))
    statuses.append(_source_kept(operation, head))
    return tuple(each for each in statuses if each is not None)


def row_conflicts(
    write: Write, history: History, look: FileInspector, head: TableMetadata, found: TableMetadata | None = None
) -> tuple[Rebased, tuple[Conflict, ...]]:
    """The operation as it stands at the head, and everything that winners did which it cannot stand beside.

    ``found``: as for ``head_conflicts``, which must have had nothing to say.
    """
    wanted = required(write)
    if Check.BASE_IS_ANCESTOR in wanted and not history.base_is_ancestor and not _is_blind(write):
        return unchanged(write), (_base_lost(write) if history.base_is_lost else _history_broken(write),)
    if not history.changes:
        return unchanged(write), ()
    if Check.ADDED_ONCE in wanted and (twice := _added_twice(write, history)):
        return unchanged(write), twice
    rebased = rebase(write, history.changes, look, wanted)
    tests = [(read, _Narrowed(read.bound(found or head, head), head)) for read in write.reads]
    if Check.NO_ADDED_ROWS in wanted:
        return rebased, (*rebased.conflicts, *_added_rows(write, history.changes, look, tests))
    # Two that put rows in the place of the same ones: what the first put there would be left beside what I do.
    both = (replace(each, check=Check.ROW_OWNER) for each in _added_rows(write, rebased.replaced_twice, look, tests))
    return rebased, (*rebased.conflicts, *both)


# Checks against the head


def _same_table(operation: Operation, head: TableMetadata) -> Conflict | None:
    if operation.table_uuid == head.uuid:
        return None
    return Conflict(
        Check.SAME_TABLE,
        f"the table was dropped and another one took its name (uuid {head.uuid}, not {operation.table_uuid})",
        advice="Open the new table and write to it, if that is what you want",
    )


def _branch_exists(write: Write, head: TableMetadata) -> Conflict | None:
    if write.branch == MAIN or write.branch in head.refs:
        return None
    return Conflict(
        Check.BRANCH_EXISTS,
        f"the branch {write.branch!r} does not exist",
        advice="Create it with create_branch()",
    )


def _schema_compatible(write: Write, head: TableMetadata) -> Conflict | None:
    schema = head.schema()
    if write.brings_rows:
        dropped = [name for field_id, name in write.written_ids.items() if field_id not in schema.field_ids]
        if dropped:
            return _schema_conflict(
                f"the rows hold values of {', '.join(sorted(dropped))}, dropped from the table meanwhile",
                "Write again without them; their values would have become invisible",
            )
        filled = [
            str(schema.find_column_name(field_id))
            for field_id in sorted(write.nullable_ids & schema.field_ids)
            if schema.find_field(field_id).required
        ]
        if filled:
            return _schema_conflict(
                f"{', '.join(filled)} may not be null any more, and the rows hold nulls there",
                "Write again with values for it",
            )
        lacking = [each.name for each in schema.fields if each.required and each.field_id not in write.written_ids]
        if lacking:
            return _schema_conflict(
                f"the table has meanwhile got the required {', '.join(lacking)}, which the rows lack",
                "Write again with values for it",
            )
    return None


def _filters_bound(write: Write, head: TableMetadata, found: TableMetadata) -> Conflict | None:
    """A filter's columns must be what they were (P16), but for what this very commit does to them."""
    for read in write.reads:
        try:
            read.bound(found, head)
        except InvalidInput as error:
            return _schema_conflict(error.problem, "Read the table again and repeat the operation")
    return None


def _schema_conflict(detail: str, advice: str) -> Conflict:
    return Conflict(Check.SCHEMA_COMPATIBLE, detail, advice=advice)


def _spec_listed(write: Write, head: TableMetadata) -> Conflict | None:
    missing = write.new_specs - head.specs().keys()
    if not missing:
        return None
    return Conflict(
        Check.SPEC_LISTED,
        f"the files were staged under partition spec {min(missing)}, which the table no longer lists",
        advice="Write again; the rows are then laid out by a current spec",
    )


def _keys_unchanged(write: Write, head: TableMetadata) -> Conflict | None:
    schema = head.schema()
    if write.kind is Kind.UPSERT and write.keys and set(schema.identifier_field_ids) != set(write.keys):
        return Conflict(
            Check.KEYS_UNCHANGED,
            "the table's keys were changed meanwhile, so other rows would have to be replaced",
            advice="Repeat the upsert; it then goes by the new keys",
        )
    if write.key_spec_id is not None and set(head.specs()) != {write.key_spec_id}:
        return Conflict(
            Check.KEYS_UNCHANGED,
            "the table was partitioned another way meanwhile, and a delete by key reaches only its own partitioning",
            advice="Repeat the upsert; it then writes deletes that reach every partition",
        )
    return None


def _source_kept(write: Write, head: TableMetadata) -> Conflict | None:
    """Files of another snapshot may be put into the table again only while that one keeps them from being removed."""
    source = None if write.owns_files else write.snapshot_properties.get(SOURCE)
    if source is None or head.has_snapshot(int(source)):
        return None
    return Conflict(
        Check.FILES_EXIST,
        f"the snapshot {source} that it picks has expired meanwhile, and its files may be removed at any time",
        advice="Repeat the write itself",
    )


_HEAD_CHECKS = {
    Check.SAME_TABLE: _same_table,
    Check.BRANCH_EXISTS: _branch_exists,
    Check.SCHEMA_COMPATIBLE: _schema_compatible,
    Check.SPEC_LISTED: _spec_listed,
    Check.KEYS_UNCHANGED: _keys_unchanged,
}


# Checks against what landed since the base


def _is_blind(write: Write) -> bool:
    """It read nothing and names no file, so it means the same on any history (rule P25)."""
    return not (write.removed or write.positions or write.reads)


def _history_broken(write: Write) -> Conflict:
    return Conflict(
        Check.BASE_IS_ANCESTOR,
        f"the snapshot {write.base.snapshot_id} this {write.name} read is no longer in the history of "
        f"{write.branch!r}: it was rolled back, replaced or expired",
        advice=f"Read the table again and repeat the {write.name}",
    )


def _base_lost(write: Write) -> Conflict:
    return Conflict(
        Check.BASE_IS_ANCESTOR,
        f"the snapshot {write.base.snapshot_id} this {write.name} read has expired and its files were removed, so "
        "nobody can say what has changed since",
        advice=f"Read the table again and repeat the {write.name}, or keep snapshots for longer than a write takes",
    )


def _added_twice(write: Write, history: History) -> tuple[Conflict, ...]:
    """Files that were there before this operation may have been put into the table by somebody else meanwhile."""
    if write.owns_files:
        return ()
    mine = {file.file_path for file in (*write.added, *write.deletes)}
    for change in history.changes:
        both = mine & {entry.file.file_path for entry in (*change.added, *change.deletes)}
        if both:
            return (
                Conflict(
                    Check.ADDED_ONCE,
                    f"{len(both)} of its files were added to {write.branch!r} by another writer",
                    change.snapshot_id,
                    change.operation,
                    tuple(sorted(both)),
                    "There is nothing left to do: their rows are in the table",
                ),
            )
    return ()


class _Narrowed:
    """One filter's tests on statistics, built once for all files of all winners."""

    def __init__(self, where: Filter, head: TableMetadata) -> None:
        self._never = where.may is False
        self._may = pruning.may_match(where.may)
        self._facts = pruning.FileFacts(where.schema, where.field_ids, head.specs())
        self._partitions: dict[tuple[int, tuple[Any, ...]], bool] = {}

    def may_match(self, file: DataFile) -> bool:
        return not self._never and self._may_match_partition(file) and self._may(self._facts.of_file(file))

    def _may_match_partition(self, file: DataFile) -> bool:
        key = (file.spec_id, file.partition)
        found = self._partitions.get(key)
        if found is None:
            known, unknown = self._facts.of_partition(*key), pruning.Facts()
            found = self._partitions[key] = self._may(lambda field_id: known.get(field_id, unknown))
        return found


def _added_rows(
    write: Write, changes: Iterable[Change], look: FileInspector, tests: Sequence[tuple[Read, _Narrowed]]
) -> Iterator[Conflict]:
    """Rows that were not there when I looked, and that I would have looked at."""
    if not tests:
        return
    for change in changes:
        if change.operation == "replace":
            continue
        near = [(entry, read) for entry in change.added for read, test in tests if test.may_match(entry.file)]
        if not near:
            continue
        copies = _copies_of(change, look)
        hit = {
            entry.file.file_path: entry.file
            for entry, read in near
            if entry.file.file_path not in copies and look.matches(entry, read)
        }
        if hit:
            yield _added_conflict(write, change, list(hit.values()))


def _added_conflict(write: Write, change: Change, hit: list[DataFile]) -> Conflict:
    files = "1 file" if len(hit) == 1 else f"{len(hit)} files"
    return Conflict(
        Check.NO_ADDED_ROWS,
        f"another writer added rows that this {write.name} would have had to see ({files})",
        change.snapshot_id,
        change.operation,
        tuple(file.file_path for file in hit),
        f"Repeat the {write.name}: it then sees them. At isolation='snapshot' they would be left alone",
    )


def _copies_of(change: Change, look: FileInspector) -> frozenset[str]:
    """Files of a change that hold only rows which were in the table before."""
    if change.lineage_path is None:
        return frozenset()
    lineage = look.lineage(change.lineage_path)
    return frozenset() if lineage is None else frozenset(lineage.outputs)
