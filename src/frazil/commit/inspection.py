"""What checks read from a few files where statistics do not decide, through the ordinary readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.commit.operations import Read, Write
from frazil.errors import CorruptMetadata, InvalidInput
from frazil.expr import Evaluator, FileFacts, Filter, may_match, parse_filter
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Change, Content, DataFile, Entry, Lineage, Predicate, Snapshot
from frazil.read.arrow import ReadContext
from frazil.read.deletes import Deletes, Keys
from frazil.read.plan import DeleteIndex, DeleteRef, FileTask, plan
from frazil.read.positions import key_positions, matching_positions
from frazil.stage.lineage import read_lineage

_BEFORE_ALL = 0
_SIZE_OF_A_PREDICATE = 4_000
"""About how many bytes of memory it takes, parsed."""


class FullInspector:
    """Implements ``FileInspector`` for one operation. Answers are kept over all attempts, as files never change."""

    def __init__(self, storage: Storage, write: Write, own_files: frozenset[str] = frozenset()) -> None:
        self._storage = storage
        self._write = write
        self._own_files = own_files
        self._head: TableMetadata | None = None
        self._bound: dict[int, tuple[Filter, Keys | None]] = {}
        self._lineages: dict[str, Lineage | None] = {}
        self._matched: dict[tuple[str, int], bool] = {}
        self._asked: dict[tuple[int, str], BitMap64 | None] = {}
        self._indexes: dict[str, DeleteIndex] = {}

    def at(self, head: TableMetadata, found: TableMetadata) -> FullInspector:
        """The same inspector with the schemas and specs of this head. ``found``: the head as it was read."""
        if head is not self._head:
            # Bounds are read by the head's column types, which may have been widened.
            self._indexes = {}
            keys = Deletes(self._storage, head).key_type
            self._bound = {
                id(read): (read.bound(found, head), None if read.keys is None else read.keys.widened(keys))
                for read in self._write.reads
            }
        self._head = head
        return self

    @property
    def _metadata(self) -> TableMetadata:
        assert self._head is not None
        return self._head

    def _reading(self) -> ReadContext:
        return ReadContext.of(self._storage, self._metadata, Schema())

    def positions(self, deletes: DataFile) -> Mapping[str, BitMap64]:
        return Deletes(self._storage, self._metadata).rows_by_file(deletes)

    def lineage(self, path: str) -> Lineage | None:
        if path not in self._lineages:
            try:
                self._lineages[path] = read_lineage(self._storage, path)
            except CorruptMetadata:
                # Without the sidecar it is unknown where the rows went, which is what None means.
                self._lineages[path] = None
        return self._lineages[path]

    def applies(self, deletes: Entry, file: DataFile) -> bool:
        if file.file_path in self._own_files:
            return False
        path = deletes.file.file_path
        if path not in self._indexes:
            self._indexes[path] = DeleteIndex([deletes], self._metadata)
        return bool(self._indexes[path].applying_to(file, _BEFORE_ALL))

    def hit_by_keys(self, deletes: Entry, file: DataFile, rows: BitMap64) -> BitMap64:
        task = FileTask(file, _BEFORE_ALL, None, (DeleteRef(deletes.file, deletes.sequence_number or 1),))
        return rows - matching_positions(task, self._reading())

    def matches(self, added: Entry, read: Read) -> bool:
        key = (added.file.file_path, id(read))
        if key not in self._matched:
            where, keys = self._bound[id(read)]
            task = FileTask(added.file, added.sequence_number or 0, None, (), _unless_true(where))
            if keys is not None:
                found = key_positions(task, self._reading(), keys)
            else:
                found = matching_positions(task, self._reading())
            self._matched[key] = bool(found)
        return self._matched[key]

    # Appended rows that a concurrent delete asked to remove (P23)

    def asked_to_go(self, change: Change, file: DataFile) -> BitMap64 | None:
        if change.predicate is None and not change.is_delete:
            return BitMap64()
        key = (change.snapshot_id, file.file_path)
        if key not in self._asked:
            self._asked[key] = self._asked_of(change, file)
        return self._asked[key]

    def _asked_of(self, change: Change, file: DataFile) -> BitMap64 | None:
        asked = None if change.predicate is None else self._predicate(change.predicate)
        if asked is not None:
            return self._selected(asked, file)
        rows = BitMap64()
        # A delete by key without a predicate asks for the rows with its keys. The keys of an upsert do not ask.
        for deletes in change.deletes if change.is_delete else ():
            if deletes.file.content == Content.EQUALITY_DELETES and self.applies(deletes, file):
                hit = self._deleted_by_key(deletes, file)
                if hit is None:
                    return None
                rows |= hit
        return rows

    def _deleted_by_key(self, deletes: Entry, file: DataFile) -> BitMap64 | None:
        everything = BitMap64()
        everything.add_range(0, file.record_count)
        return self.hit_by_keys(deletes, file, everything)

    def _predicate(self, given: Predicate) -> _Asked | None:
        """The predicate, ready to test on files; None: its columns are gone, so it cannot match new rows.

        Parsing costs a hundred times as much as testing, so parsed predicates are cached as parsed files are.
        """
        head = self._metadata
        bound_to = (head.uuid, head.current_schema_id, sorted(head.specs()))
        key = f"predicate {bound_to} {given.schema_id} {given.case_sensitive} {given.text}"
        found: _Asked | None = self._storage.parsed.get(key)
        if found is None:
            found = _bound(given, head)
            if found is not None:
                self._storage.parsed.put(key, found, _SIZE_OF_A_PREDICATE + len(given.text))
        return found

    def _selected(self, asked: _Asked, file: DataFile) -> BitMap64 | None:
        if not asked.may_select_from(file):
            return BitMap64()
        return matching_positions(FileTask(file, _BEFORE_ALL, None, (), _unless_true(asked.where)), self._reading())

    # Rows at the base

    def live_rows(self, path: str) -> BitMap64 | None:
        task = self._base_tasks.get(path)
        return None if task is None else matching_positions(task, self._reading())

    @cached_property
    def _base_tasks(self) -> dict[str, FileTask]:
        snapshot = self._base_snapshot()
        tasks = plan(self._metadata, snapshot, parse_filter(None, self._metadata.schema()), self._storage).tasks
        return {task.file.file_path: task for task in tasks}

    def _base_snapshot(self) -> Snapshot | None:
        base = self._write.base
        # The head may no longer have it.
        return base.snapshot or (None if base.snapshot_id is None else self._metadata.snapshot(base.snapshot_id))

    # Rows that the operation depends on (P22)

    @cached_property
    def _seen(self) -> dict[str, list[FileTask]]:
        found: dict[str, list[FileTask]] = {}
        snapshot = self._base_snapshot()
        for read in self._write.reads:
            if read.sees_removals and snapshot is not None:
                for task in plan(self._metadata, snapshot, read.where, self._storage).tasks:
                    found.setdefault(task.file.file_path, []).append(task)
        return found

    def seen_files(self) -> Mapping[str, DataFile]:
        return self._seen_files

    @cached_property
    def _seen_files(self) -> dict[str, DataFile]:
        return {path: tasks[0].file for path, tasks in self._seen.items()}

    def seen_rows(self, path: str) -> tuple[DataFile, BitMap64] | None:
        tasks = self._seen.get(path)
        if tasks is None:
            return None
        rows = BitMap64()
        for task in tasks:
            rows |= matching_positions(task, self._reading())
        return tasks[0].file, rows


class StatsOnlyInspector(FullInspector):
    """Implements ``FileInspector`` by statistics alone, for the operation of another writer (rule P4).

    Such an operation only adds files, so appended rows that a delete asked to remove are all there is to look for.
    """

    def _selected(self, asked: _Asked, file: DataFile) -> BitMap64 | None:
        return None if asked.may_select_from(file) else BitMap64()

    def _deleted_by_key(self, deletes: Entry, file: DataFile) -> BitMap64 | None:  # noqa: ARG002 - the base's
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """The predicate of a delete, with its test on statistics."""

    where: Filter
    may: Evaluator
    facts: FileFacts

    def may_select_from(self, file: DataFile) -> bool:
        return self.where.may is not False and self.may(self.facts.of_file(file))


def _bound(given: Predicate, head: TableMetadata) -> _Asked | None:
    if given.schema_id not in head.schemas():
        return None
    try:
        parsed = parse_filter(given.text, head.schema(given.schema_id), case_sensitive=given.case_sensitive)
        where = parsed.rebound(head.schema())
    except InvalidInput:
        return None
    facts = FileFacts(where.schema, where.field_ids, head.specs())
    return _Asked(where, may_match(where.may), facts)


def _unless_true(where: Filter) -> Filter | None:
    return None if where.is_true else where
