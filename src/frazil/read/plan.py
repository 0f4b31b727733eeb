"""A snapshot and a filter become the files to read. Pure, apart from reading manifests through the storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

from frazil.errors import CorruptMetadata, Unsupported
from frazil.expr import Facts, FileFacts, Filter, may_match, must_match
from frazil.format.manifests import DATA_MANIFEST, iter_manifest, read_manifest, read_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.partitions import partition_identity, reaches_everything
from frazil.format.storage import Storage, is_local
from frazil.model import PATH_FIELD, Content, DataFile, Entry, Manifest, Snapshot

_REMOTE_THREADS = 8
_NO_PARTITION: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class DeleteRef:
    """A delete file that applies to a data file."""

    file: DataFile
    sequence_number: int


@dataclass(frozen=True, slots=True, eq=False)
class FileTask:
    """One data file to read, with what to take out of it."""

    file: DataFile
    sequence_number: int
    snapshot_id: int | None
    deletes: tuple[DeleteRef, ...] = ()
    residual: Filter | None = None
    """What is left of the filter to test on rows; None: statistics show that every row matches."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many manifests and files were considered, and how many each step pruned."""

    manifests: int = 0
    manifests_pruned: int = 0
    delete_manifests: int = 0
    delete_manifests_pruned: int = 0
    files: int = 0
    files_pruned_by_partition: int = 0
    files_pruned_by_bounds: int = 0
    files_matching_whole: int = 0
    delete_files: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ScanPlan:
    tasks: tuple[FileTask, ...]
    deletes: tuple[Entry, ...] = ()
    """All delete files that were considered, including those that apply to no task."""
    counts: Counts = field(default_factory=Counts)


def plan(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    filter: Filter,  # noqa: A002 - the usual word
    storage: Storage,
    *,
    all_statistics: bool = False,
) -> ScanPlan:
    """The files of a snapshot that may hold rows the filter selects.

    ``all_statistics`` keeps every column's statistics on the files of the plan, for callers that write them into
    manifests again; otherwise only what planning needs is decoded.
    """
    if snapshot is None:
        return ScanPlan(())
    if snapshot.manifest_list is None:
        raise Unsupported(
            f"The snapshot {snapshot.snapshot_id} lists its manifests in the metadata file, as early format v1 does",
            advice="Rewrite the table's manifests with another engine, or write one new commit to it",
        )
    manifests = read_manifest_list(storage, snapshot.manifest_list)
    planner = _Planner(metadata, filter)
    data = [each for each in manifests if each.content == DATA_MANIFEST]
    deletes = [each for each in manifests if each.content != DATA_MANIFEST]
    kept_data, kept_deletes = planner.keep(data), planner.keep(deletes)
    delete_entries = _flatten(_read(storage, kept_deletes, None))
    index = DeleteIndex(delete_entries, metadata)
    wanted = None if all_statistics else filter.field_ids | index.equality_ids
    tasks: list[FileTask] = []
    for entries in _read(storage, kept_data, wanted):
        planner.add(entries, index, tasks)
    counts = Counts(
        manifests=len(data),
        manifests_pruned=len(data) - len(kept_data),
        delete_manifests=len(deletes),
        delete_manifests_pruned=len(deletes) - len(kept_deletes),
        files=planner.seen,
        files_pruned_by_partition=planner.by_partition,
        files_pruned_by_bounds=planner.by_bounds,
        files_matching_whole=planner.whole,
        delete_files=len(delete_entries),
    )
    return ScanPlan(tuple(tasks), tuple(delete_entries), counts)


def has_deletes(snapshot: Snapshot | None, storage: Storage) -> bool:
    """Whether a snapshot has delete files at all, by its manifest list alone."""
    if snapshot is None or snapshot.manifest_list is None:
        return False
    return any(each.content != DATA_MANIFEST for each in read_manifest_list(storage, snapshot.manifest_list))


def _read(storage: Storage, manifests: Sequence[Manifest], stats: frozenset[int] | None) -> Iterable[Iterable[Entry]]:
    if len(manifests) < 2 or is_local(manifests[0].manifest_path):
        # Decoding holds Python's lock: threads only help where reading waits for a network.
        return (iter_manifest(storage, each, stats=stats) for each in manifests)
    with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
        return list(pool.map(lambda each: read_manifest(storage, each, stats=stats), manifests))


def _flatten(lists: Iterable[Iterable[Entry]]) -> list[Entry]:
    return [entry for entries in lists for entry in entries]


def live_files(
    storage: Storage, manifests: Sequence[Manifest], stats: frozenset[int] | None = None
) -> dict[str, Entry]:
    """The live files of these manifests, by path. ``stats``: the columns whose statistics are decoded."""
    found: dict[str, Entry] = {}
    for entry in _flatten(_read(storage, manifests, stats)):
        if entry.file.file_format != "PARQUET" or entry.file.key_metadata is not None:
            raise _unreadable(entry.file)
        found[entry.file.file_path] = entry
    return found


class _Planner:
    """The filter's evaluators, built once, and what they have counted."""

    def __init__(self, metadata: TableMetadata, filter: Filter) -> None:  # noqa: A002
        self._filter = filter
        self._may = may_match(filter.may)
        self._must = must_match(filter.must)
        self._facts = FileFacts(filter.schema, filter.field_ids, metadata.specs())
        self._partitions: dict[tuple[int, tuple[Any, ...]], bool] = {}
        self.seen = self.by_partition = self.by_bounds = self.whole = 0

    def keep(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        may, facts = self._may, self._facts
        return [
            each
            for each in manifests
            if not (each.added_files_count == 0 and each.existing_files_count == 0)
            and may(facts.of_manifest(each.partition_spec_id, each.partitions))
        ]

    def add(self, entries: Iterable[Entry], index: DeleteIndex, tasks: list[FileTask]) -> None:
        everything, nothing = self._filter.is_true, self._filter.may is False
        for entry in entries:
            self.seen += 1
            file = entry.file
            if file.file_format != "PARQUET" or file.key_metadata is not None:
                raise _unreadable(file)
            residual: Filter | None = None
            if not everything:
                if nothing or not self._matches(file):
                    continue
                if not self._must(self._facts.of_file(file)):
                    residual = self._filter
            self.whole += residual is None
            number = entry.sequence_number or 0
            tasks.append(FileTask(file, number, entry.snapshot_id, index.applying_to(file, number), residual))

    def _matches(self, file: DataFile) -> bool:
        key = (file.spec_id, file.partition)
        found = self._partitions.get(key)
        if found is None:
            known = self._facts.of_partition(*key)
            unknown = Facts()
            found = self._partitions[key] = self._may(lambda field_id: known.get(field_id, unknown))
        if not found:
            self.by_partition += 1
        elif not self._may(self._facts.of_file(file)):
            self.by_bounds += 1
            return False
        return found


def _unreadable(file: DataFile) -> Unsupported:
    if file.key_metadata is not None:
        return Unsupported(f"The file {file.file_path} is encrypted, which this version cannot read")
    return Unsupported(
        f"The file {file.file_path} has the format {file.file_format}", advice="This version reads Parquet files only"
    )


# Which deletes apply to which data files


class DeleteIndex:
    """The delete files of a snapshot, found by what they may apply to (specification, "Scan planning")."""

    def __init__(self, entries: Sequence[Entry], metadata: TableMetadata) -> None:
        self.equality_ids: frozenset[int] = frozenset()
        self._by_path: dict[str, list[DeleteRef]] = {}
        self._by_partition: dict[tuple[int, tuple[Any, ...]], list[DeleteRef]] = {}
        self._everywhere: list[DeleteRef] = []
        self._empty = not entries
        specs: Mapping[int, PartitionSpec] = metadata.specs() if entries else {}
        for entry in entries:
            self._add(DeleteRef(entry.file, entry.sequence_number or 0), specs)
        self._readers: dict[int, Any] = {}
        if self.equality_ids:
            # The current schema last: its types are the widest a column ever had.
            schemas = [*metadata.schemas().values(), metadata.schema()]
            self._readers = _bound_readers(schemas, self.equality_ids)

    def _add(self, ref: DeleteRef, specs: Mapping[int, PartitionSpec]) -> None:
        file = ref.file
        if file.file_format != "PARQUET" or file.key_metadata is not None:
            raise _unreadable(file)
        if file.content == Content.EQUALITY_DELETES:
            if not file.equality_ids:
                raise CorruptMetadata(
                    f"The equality delete file {file.file_path} does not say which columns it compares"
                )
            self.equality_ids |= frozenset(file.equality_ids)
            if reaches_everything(specs[file.spec_id]):
                self._everywhere.append(ref)  # rule P21
                return
        elif (named := named_file(file)) is not None:
            self._by_path.setdefault(named, []).append(ref)
            return
        self._by_partition.setdefault((file.spec_id, partition_identity(file.partition)), []).append(ref)

    def applying_to(self, file: DataFile, sequence_number: int) -> tuple[DeleteRef, ...]:
        """The deletes that may remove rows of this data file, in the order of the list."""
        if self._empty:
            return ()
        near = self._by_partition.get((file.spec_id, partition_identity(file.partition)), ())
        found = [*self._by_path.get(file.file_path, ()), *near, *self._everywhere]
        return tuple(ref for ref in found if self._applies(ref, file, sequence_number))

    def _applies(self, ref: DeleteRef, file: DataFile, sequence_number: int) -> bool:
        if ref.file.content == Content.POSITION_DELETES:
            return sequence_number <= ref.sequence_number and _may_name(ref.file, file.file_path)
        if sequence_number >= ref.sequence_number:
            return False
        return all(self._overlap(field_id, ref.file, file) for field_id in ref.file.equality_ids)

    def _overlap(self, field_id: int, deletes: DataFile, data: DataFile) -> bool:
        """Whether some row of each may have the same value; NULL equals NULL here."""
        if deletes.null_value_counts.get(field_id) != 0 and data.null_value_counts.get(field_id) != 0:
            return True
        if _only_null(deletes, field_id) or _only_null(data, field_id):
            return False  # and the other side has no NULL
        read = self._readers.get(field_id)
        if read is None:
            return True
        low, high = read(deletes.lower_bounds.get(field_id)), read(deletes.upper_bounds.get(field_id))
        first, last = read(data.lower_bounds.get(field_id)), read(data.upper_bounds.get(field_id))
        too_low = high is not None and first is not None and high < first
        too_high = low is not None and last is not None and low > last
        return not (too_low or too_high)


def _only_null(file: DataFile, field_id: int) -> bool:
    count = file.value_counts.get(field_id)
    return count is not None and count > 0 and count == file.null_value_counts.get(field_id)


def _bound_readers(schemas: Iterable[Schema], field_ids: frozenset[int]) -> dict[int, Any]:
    """How to read bounds of columns that the current schema may have dropped. NaN has no place in bounds: no floats."""
    readers: dict[int, Any] = {}
    for schema in schemas:
        for field_id in field_ids & schema.field_ids:
            kind = schema.find_type(field_id)
            if isinstance(kind, PrimitiveType) and not isinstance(kind, FloatType | DoubleType):
                readers[field_id] = lambda data, kind=kind: None if data is None else from_bytes(kind, data)
    return readers


def named_file(file: DataFile) -> str | None:
    """The only data file that a position delete file applies to, if it declares one."""
    if file.referenced_data_file is not None:
        return file.referenced_data_file
    lower, upper = file.lower_bounds.get(PATH_FIELD), file.upper_bounds.get(PATH_FIELD)
    return bytes(lower).decode() if lower is not None and lower == upper else None


def _may_name(file: DataFile, path: str) -> bool:
    lower, upper = file.lower_bounds.get(PATH_FIELD), file.upper_bounds.get(PATH_FIELD)
    data = path.encode()
    return (lower is None or lower <= data) and (upper is None or upper >= data)
