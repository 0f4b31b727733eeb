"""Operations as values: what a commit does. Retries never change an operation; each attempt is built from it."""

from __future__ import annotations

import contextlib
import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import orjson
from pyroaring import BitMap64

from frazil.commit.intents import Intent
from frazil.errors import InvalidInput
from frazil.expr import Filter
from frazil.format.manifests import DATA_MANIFEST
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Content, DataFile, Isolation, Lineage, Manifest, Origin, Predicate, Run, Snapshot
from frazil.read.deletes import Keys

OnDeleted = Literal["abort", "keep", "drop"]
OnConflict = Literal["redo", "abort"]
"""What a statement does that meets a conflict: it is evaluated again on what changed, or refused."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies a commit across attempts, processes and crashes."""

    commit_id: str
    digest: str
    given: bool
    """The caller chose the id, so the catalog is searched for it before anything is sent."""
    origin: Origin | None = field(default=None, compare=False)
    """Where the commit comes from. Recorded with it; nothing is decided by it."""


class Kind(enum.StrEnum):
    """The kind of a write. The kind and the isolation level alone decide which checks it needs."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    REPLACE_PARTITIONS = "replace partitions"
    DELETE = "delete"
    UPDATE = "update"
    UPSERT = "upsert"
    MERGE = "merge"
    ROW_DELTA = "row delta"
    REWRITE = "rewrite"
    METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Base:
    """The snapshot an operation read; every check is against the changes after it."""

    snapshot_id: int | None = None
    """None: the branch had no snapshot."""
    sequence_number: int = 0
    snapshot: Snapshot | None = field(default=None, compare=False, repr=False)
    """The snapshot itself, so that the head can be compared with it after it has expired (rule P18)."""

    @staticmethod
    def of(snapshot: Snapshot | None) -> Base:
        return Base() if snapshot is None else Base(snapshot.snapshot_id, snapshot.sequence_number, snapshot)


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Rows that an operation read to decide what it writes."""

    where: Filter
    keys: Keys | None = None
    """Narrower than ``where``: only rows with one of these keys were read (a merge by key)."""
    sees_removals: bool = False
    """The operation depends on the presence of these rows (a transaction's scan): removing them is a conflict (P22)."""

    def bound(self, found: TableMetadata, head: TableMetadata) -> Filter:
        """The filter, bound to the schema of rows that other writers have added since. Raises InvalidInput if a column
        was dropped or replaced (P16).

        ``found``: the head that the attempt read. ``head``: the same with earlier steps of this commit applied, which
        may have added the columns that the filter uses.
        """
        try:
            return self.where.rebound(found.schema())
        except InvalidInput:
            with contextlib.suppress(InvalidInput):
                return self.where.rebound(head.schema())
            raise


@dataclass(frozen=True, slots=True)
class RowCounts:
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class Bundle:
    """New files of a large operation, listed in a manifest that its writer wrote."""

    manifest: Manifest
    """It is not in any manifest list yet."""
    size_in_bytes: int
    """The total size of the files."""

    @property
    def holds_data(self) -> bool:
        return self.manifest.content == DATA_MANIFEST


@dataclass(frozen=True, slots=True)
class ManifestMerge:
    """Manifests that replace manifests of the table and have the same entries."""

    parts: tuple[str, ...]
    """The paths of the replaced manifests."""
    manifests: tuple[Manifest, ...]
    """They are not in any manifest list yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A change of rows: added files, removed files, and deleted rows of files that stay.

    A replaced file is in ``removed``; its unchanged rows are in files of ``copies``, its updated rows are in ``moved``,
    and all its other rows are deleted.
    """

    kind: Kind
    table_uuid: str
    base: Base = Base()
    branch: str = MAIN
    isolation: Isolation = Isolation.SERIALIZABLE
    added: tuple[DataFile, ...] = ()
    """New data files: new and updated rows, and copies of rows of removed files."""
    copies: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)
    """Those of ``added`` that contain only copied rows, with the rows' sources. They keep the base's sequence number
    (P20). No runs: where the rows came from is not recorded, as sorted rows have too many runs (``has_lineage``)."""
    removed: tuple[DataFile, ...] = ()
    """Removed data files."""
    removed_deletes: tuple[DataFile, ...] = ()
    """Delete files that applied only to removed files, or to none; files already removed concurrently are ignored."""
    unneeded: Mapping[str, int] = field(default_factory=dict)
    """Those of ``removed_deletes`` that applied to no remaining file, with their sequence numbers. Other writers may
    add older files concurrently; a delete file that applies to such a file is kept (P36)."""
    deletes: tuple[DataFile, ...] = ()
    """New delete files: position deletes of one data file each, or equality deletes."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Those of ``deletes`` that were in the table before, with the sequence numbers that they had (P43)."""
    named_by: frozenset[int] = frozenset()
    """The snapshots that name these files. Once one of them has expired, its files may be deleted (P42)."""
    positions: Mapping[str, BitMap64] = field(default_factory=dict)
    """Remaining data file → the rows that ``deletes`` deletes from it by position."""
    touched: Mapping[str, DataFile] = field(default_factory=dict)
    """The data files of ``positions``, by path."""
    moved: Mapping[str, BitMap64] = field(default_factory=dict)
    """Data file → those of its deleted rows that ``added`` contains with other values."""
    reads: tuple[Read, ...] = ()
    keys: tuple[int, ...] = ()
    """The field ids that equality deletes compare."""
    key_spec_id: int | None = None
    """The partitioned spec of the equality deletes, which is sound only while the table has no other spec (P21)."""
    predicate: Predicate | None = None
    """The filter of a delete, for writers that append matching rows concurrently (P23)."""
    on_deleted: OnDeleted = "keep"
    schema_id: int = 0
    """The schema the rows were staged under."""
    written_ids: Mapping[int, str] = field(default_factory=dict)
    """Field id → name at staging time, for every column that the files contain, nested columns included."""
    nullable_ids: frozenset[int] = frozenset()
    """Columns that were optional at staging time and may contain nulls in the files."""
    snapshot_id: int | None = None
    """The required id of its snapshot, if something already refers to it; None: any id."""
    owns_files: bool = True
    """The files were written for this operation and are deleted if it fails; False: another snapshot owns them."""
    staged_since_ms: int | None = None
    """The earliest time at which its files were written, by the writer's clock (P35); None: it wrote no files."""
    rows: RowCounts = RowCounts()
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    own_snapshot: bool = False
    """It must not share a snapshot with other commits."""
    bundles: tuple[Bundle, ...] = ()
    """More added files and delete files, by manifests (``delegation.py``)."""
    merges: tuple[ManifestMerge, ...] = ()
    """Manifests to replace by fewer manifests with the same entries."""

    @property
    def name(self) -> str:
        return self.kind.value

    @property
    def staged_paths(self) -> list[str]:
        """Every file that was written for this operation only."""
        if not self.owns_files:
            return []
        merged = [each.manifest_path for merge in self.merges for each in merge.manifests]
        return [*(file.file_path for file in (*self.added, *self.deletes)), *merged]

    @property
    def lineage(self) -> Lineage:
        """The new positions of the rows of removed files (P26)."""
        removed = {file.file_path for file in self.removed}
        return Lineage(self.copies, {path: rows for path, rows in self.moved.items() if path in removed})

    @property
    def has_lineage(self) -> bool:
        """It is known where each copied row came from. Otherwise it cannot be rebased over deletes by position."""
        return all(self.copies.values())

    @property
    def is_of_metadata(self) -> bool:
        """It rewrites delete files or manifests, which costs little: after a conflict it is planned again."""
        return bool(self.positions or self.merges)

    @property
    def has_equality_deletes(self) -> bool:
        return any(file.content == Content.EQUALITY_DELETES for file in self.deletes)

    @property
    def only_adds(self) -> bool:
        """It read nothing and refers to no other writer's file, so it means the same on any head, for any committer."""
        has_read = self.removed or self.positions or self.reads or self.removed_deletes or self.copies or self.moved
        return self.owns_files and self.snapshot_id is None and not (has_read or self.is_empty)

    @property
    def may_share_a_snapshot(self) -> bool:
        """Appends commute, so their order within a snapshot does not matter (rule P17)."""
        own = self.own_snapshot or self.snapshot_properties or self.deletes
        return (self.kind is Kind.APPEND or bool(self.merges)) and self.only_adds and not own

    @property
    def is_empty(self) -> bool:
        files = self.added or self.removed or self.deletes or self.removed_deletes
        return not (files or self.bundles or self.merges)

    @property
    def parts(self) -> set[str]:
        """The paths of the manifests that merges replace."""
        return {path for merge in self.merges for path in merge.parts}

    @property
    def adds_rows(self) -> bool:
        return bool(self.added) or any(bundle.holds_data for bundle in self.bundles)

    @property
    def new_specs(self) -> set[int]:
        """The partition specs of its new files."""
        bundled = {bundle.manifest.partition_spec_id for bundle in self.bundles}
        return bundled | {file.spec_id for file in (*self.added, *self.deletes)}

    @property
    def new_files(self) -> int:
        return len(self.added) + len(self.deletes) + sum(each.manifest.added_files_count for each in self.bundles)

    @property
    def new_rows(self) -> int:
        bundled = sum(each.manifest.added_rows_count for each in self.bundles if each.holds_data)
        return bundled + sum(file.record_count for file in self.added)

    @property
    def new_bytes(self) -> int:
        bundled = sum(each.size_in_bytes for each in self.bundles)
        return bundled + sum(file.file_size_in_bytes for file in (*self.added, *self.deletes))


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """A change of metadata, kept as an intent so that each attempt replays it on the head it reads."""

    table_uuid: str
    intent: Intent
    name: str = "metadata"


Operation = Write | MetadataChange


def spelled(value: object) -> str:
    """A value as a parameter of ``digest``. Sets are sorted: one of texts has another order in every process."""
    return repr(sorted(value, key=repr) if isinstance(value, set | frozenset) else value)


def digest(verb: str, **parameters: object) -> str:
    """Identifies an operation, so that one commit id means one operation. Values are hashed: they may be personal."""
    try:
        text = orjson.dumps([verb, parameters], option=orjson.OPT_SORT_KEYS, default=str)
    except TypeError:
        # Not representable in JSON: an unpaired surrogate, a number beyond 64 bits, a key that is not a string.
        text = repr((verb, sorted(parameters.items()))).encode(errors="backslashreplace")
    return hashlib.sha256(text).hexdigest()[:16]
