"""Checks: pure functions of an operation and what landed since its base. They return evidence and never raise.

``REQUIRED`` is the one table that says which checks an operation needs; the matrix in the docs is generated from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from frazil.commit.checks import Check, FileInspector
from frazil.commit.history import History
from frazil.commit.operations import Kind, MetadataChange, Operation, Read, Write
from frazil.commit.snapshot_layout import SOURCE
from frazil.commit.trace import RowTrace
from frazil.errors import InvalidInput
from frazil.expr import Facts, FileFacts, Filter, may_match
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Change, Conflict, DataFile, Isolation

_HEAD = (Check.SAME_TABLE, Check.BRANCH_EXISTS, Check.SCHEMA_COMPATIBLE, Check.SPEC_LISTED)
_ROWS = (Check.BASE_IS_ANCESTOR, Check.FILES_EXIST, Check.NO_NEW_DELETES, Check.ROW_OWNER)
_REWRITE = (Check.BASE_IS_ANCESTOR, Check.FILES_EXIST, Check.FILES_NOT_REMOVED)
_ADDED = (Check.ADDED_ONCE, Check.NOT_DELETED)
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
    (Kind.APPEND, _SERIALIZABLE): (*_HEAD, *_ADDED, Check.BASE_IS_ANCESTOR, *_READS),
    (Kind.APPEND, _SNAPSHOT): (*_HEAD, *_ADDED),
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
    (Kind.REWRITE, _SERIALIZABLE): (*_HEAD, Check.ADDED_ONCE, *_REWRITE, *_READS),
    (Kind.REWRITE, _SNAPSHOT): (*_HEAD, Check.ADDED_ONCE, *_REWRITE),
    # A change without rows is an intent that is replayed on the head; the replay finds what no longer fits.
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

    ``head`` includes what earlier steps of the same commit changed; ``found`` is the head as it was read.
    """
    if isinstance(operation, MetadataChange):
        checks = (_same_table(operation, head),)
        return tuple(each for each in checks if each is not None)
    wanted = required(operation)
    statuses = [check(operation, head) for name, check in _HEAD_CHECKS.items() if name in wanted]
    statuses.append(_filters_bound(operation, head, found or head))
    statuses.append(_source_kept(operation, head))
    return tuple(each for each in statuses if each is not None)


def history_conflicts(write: Write, history: History) -> tuple[Conflict, ...]:
    """What keeps this write from landing on this history, whichever rows it concerns."""
    wanted = required(write)
    if Check.BASE_IS_ANCESTOR in wanted and not history.base_is_ancestor and not _is_blind(write):
        return (_base_lost(write) if history.base_is_lost else _history_broken(write),)
    return _added_twice(write, history) if Check.ADDED_ONCE in wanted else ()


def row_conflicts(
    write: Write,
    changes: Sequence[Change],
    trace: RowTrace,
    inspector: FileInspector,
    head: TableMetadata,
    found: TableMetadata | None = None,
) -> tuple[Conflict, ...]:
    """What concurrent commits did to rows that this write changes or depends on.

    ``head`` and ``found``: as for ``head_conflicts``, which must have found nothing.
    """
    wanted = required(write)
    collisions = tuple(each for each in trace.collisions if each.check in wanted)
    tests = [(read, _Narrowed(read.bound(found or head, head), head)) for read in write.reads]
    if Check.NO_ADDED_ROWS in wanted:
        return (*collisions, *_added_rows(write, changes, inspector, tests))
    # Two writers replaced the same rows: the rows that the first one wrote would remain beside this write's.
    both = _added_rows(write, trace.replaced_twice, inspector, tests)
    return (*collisions, *(replace(each, check=Check.ROW_OWNER) for each in both))


# Checks against the head


def _same_table(operation: Operation, head: TableMetadata) -> Conflict | None:
    if operation.table_uuid == head.uuid:
        return None
    return Conflict(
        Check.SAME_TABLE,
        f"the table was dropped and another one took its name (uuid {head.uuid}, not {operation.table_uuid})",
        advice="Open the new table to write to it",
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
    if write.adds_rows:
        dropped = [name for field_id, name in write.written_ids.items() if field_id not in schema.field_ids]
        if dropped:
            return _schema_conflict(
                f"the rows have values in {', '.join(sorted(dropped))}, which was dropped concurrently",
                "Write again without the dropped columns; their values would be invisible",
            )
        filled = [
            str(schema.find_column_name(field_id))
            for field_id in sorted(write.nullable_ids & schema.field_ids)
            if schema.find_field(field_id).required
        ]
        if filled:
            return _schema_conflict(
                f"{', '.join(filled)} was made required concurrently, and the rows contain nulls in it",
                "Write again with a value in every row",
            )
        lacking = [each.name for each in schema.fields if each.required and each.field_id not in write.written_ids]
        if lacking:
            return _schema_conflict(
                f"the required column {', '.join(lacking)} was added concurrently, and the rows lack it",
                "Write again with a value in every row",
            )
    return None


def _filters_bound(write: Write, head: TableMetadata, found: TableMetadata) -> Conflict | None:
    """The columns of a filter must be unchanged (P16), except for changes of this very commit."""
    for read in write.reads:
        try:
            read.bound(found, head)
        except InvalidInput as error:
            return _schema_conflict(error.problem, "Re-read the table and retry the operation")
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
        advice="Write again; the rows are then partitioned by a current spec",
    )


def _keys_unchanged(write: Write, head: TableMetadata) -> Conflict | None:
    schema = head.schema()
    if write.kind is Kind.UPSERT and write.keys and set(schema.identifier_field_ids) != set(write.keys):
        return Conflict(
            Check.KEYS_UNCHANGED,
            "the table's keys were changed concurrently, so this upsert would replace other rows",
            advice="Retry the upsert; it then uses the new keys",
        )
    if write.key_spec_id is not None and set(head.specs()) != {write.key_spec_id}:
        return Conflict(
            Check.KEYS_UNCHANGED,
            "the partitioning was changed concurrently, and a delete by key applies only to its own partition spec",
            advice="Retry the upsert; it then writes deletes that apply to every partition",
        )
    return None


def _source_kept(write: Write, head: TableMetadata) -> Conflict | None:
    """Files of another snapshot may be added again only while that snapshot keeps them from being removed."""
    source = None if write.owns_files else write.snapshot_properties.get(SOURCE)
    if source is None or head.has_snapshot(int(source)):
        return None
    return Conflict(
        Check.FILES_EXIST,
        f"the snapshot {source} to cherry-pick has expired, and its files may be removed at any time",
        advice="Repeat the original write",
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
    """The write read nothing and names no existing file, so it means the same on any history (rule P25)."""
    return not (write.removed or write.positions or write.reads)


def _history_broken(write: Write) -> Conflict:
    return Conflict(
        Check.BASE_IS_ANCESTOR,
        f"snapshot {write.base.snapshot_id}, which this {write.name} read, is no longer in the history of "
        f"{write.branch!r}: it was rolled back, replaced or expired",
        advice=f"Re-read the table and retry the {write.name}",
    )


def _base_lost(write: Write) -> Conflict:
    return Conflict(
        Check.BASE_IS_ANCESTOR,
        f"snapshot {write.base.snapshot_id}, which this {write.name} read, has expired and its files were removed, so "
        "the changes since then are unknown",
        advice=f"Re-read the table and retry the {write.name}, or keep snapshots for longer than a write takes",
    )


def _added_twice(write: Write, history: History) -> tuple[Conflict, ...]:
    """Files that existed before this operation may have been added to the table concurrently."""
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
                    "Nothing is left to do: the rows are in the table",
                ),
            )
    return ()


class _Narrowed:
    """One filter's tests on statistics, built once for all files of all changes."""

    def __init__(self, where: Filter, head: TableMetadata) -> None:
        self._never = where.may is False
        self._may = may_match(where.may)
        self._facts = FileFacts(where.schema, where.field_ids, head.specs())
        self._partitions: dict[tuple[int, tuple[Any, ...]], bool] = {}

    def may_match(self, file: DataFile) -> bool:
        return not self._never and self._may_match_partition(file) and self._may(self._facts.of_file(file))

    def _may_match_partition(self, file: DataFile) -> bool:
        key = (file.spec_id, file.partition)
        found = self._partitions.get(key)
        if found is None:
            known, unknown = self._facts.of_partition(*key), Facts()
            found = self._partitions[key] = self._may(lambda field_id: known.get(field_id, unknown))
        return found


def _added_rows(
    write: Write, changes: Iterable[Change], inspector: FileInspector, tests: Sequence[tuple[Read, _Narrowed]]
) -> Iterator[Conflict]:
    """Rows added since the base that the write would have read."""
    if not tests:
        return
    for change in changes:
        if change.operation == "replace":
            continue
        near = [(entry, read) for entry in change.added for read, test in tests if test.may_match(entry.file)]
        if not near:
            continue
        copies = _copies_of(change, inspector)
        hit = {
            entry.file.file_path: entry.file
            for entry, read in near
            if entry.file.file_path not in copies and inspector.matches(entry, read)
        }
        if hit:
            yield _added_conflict(write, change, list(hit.values()))


def _added_conflict(write: Write, change: Change, hit: list[DataFile]) -> Conflict:
    files = "1 file" if len(hit) == 1 else f"{len(hit)} files"
    return Conflict(
        Check.NO_ADDED_ROWS,
        f"another writer added rows that match what this {write.name} read ({files})",
        change.snapshot_id,
        change.operation,
        tuple(file.file_path for file in hit),
        f"Re-read the table and retry the {write.name}. At isolation='snapshot' these rows would be ignored",
    )


def _copies_of(change: Change, inspector: FileInspector) -> frozenset[str]:
    """Files of a change that contain only rows which were in the table before."""
    if change.lineage_path is None:
        return frozenset()
    lineage = inspector.lineage(change.lineage_path)
    return frozenset() if lineage is None else frozenset(lineage.outputs)
