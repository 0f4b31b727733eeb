"""What a writer wants, as a value. An operation never changes while it is retried; attempts are built from it."""

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
from frazil.model import Content, DataFile, Isolation, Lineage, Manifest, Predicate, Run, Snapshot
from frazil.read.deletes import Keys

OnDeleted = Literal["abort", "keep", "drop"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which commit this is, over all attempts, processes and crashes."""

    commit_id: str
    digest: str
    given: bool
    """The caller chose the id, so it is looked up before anything is sent."""


class Kind(enum.StrEnum):
    """What a write means. Which checks it needs follows from this and the isolation level alone."""

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
    """The snapshot an operation read; every check looks at what landed after it."""

    snapshot_id: int | None = None
    """None: the branch had no snapshot."""
    sequence_number: int = 0
    snapshot: Snapshot | None = field(default=None, compare=False, repr=False)
    """All of it, with which the head can still be compared when it has expired (rule P18)."""

    @staticmethod
    def of(snapshot: Snapshot | None) -> Base:
        return Base() if snapshot is None else Base(snapshot.snapshot_id, snapshot.sequence_number, snapshot)


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Rows that an operation looked at to decide what it writes."""

    where: Filter
    keys: Keys | None = None
    """Narrower than ``where``: only rows with one of these keys were looked at (a merge by key)."""
    sees_removals: bool = False
    """The operation depends on these rows being there (a transaction's scan), so their removal counts, too (P22)."""

    def bound(self, found: TableMetadata, head: TableMetadata) -> Filter:
        """Its filter for rows that others have added since. Raises InvalidInput when a column is not what it was (P16).

        ``found``: the head as others left it. ``head``: with what earlier steps of the same commit did to it, who may
        have made the columns that the filter names.
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
    """New files of a large operation, by the manifest that its writer has made of them."""

    manifest: Manifest
    """No manifest list names it yet."""
    size_in_bytes: int
    """Of the files."""

    @property
    def holds_data(self) -> bool:
        return self.manifest.content == DATA_MANIFEST


@dataclass(frozen=True, slots=True)
class ManifestMerge:
    """One manifest that holds what several manifests of the table hold, and is to stand in their place."""

    parts: tuple[str, ...]
    manifest: Manifest
    """No manifest list names it yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A change of rows: files that come, files that go, and rows that go out of files that stay.

    A replaced file is in ``removed``; the rows of it that stay are in files of ``copies``, the rows that live on with
    other values are in ``moved``, and all its other rows are deleted.
    """

    kind: Kind
    table_uuid: str
    base: Base = Base()
    branch: str = MAIN
    isolation: Isolation = Isolation.SERIALIZABLE
    added: tuple[DataFile, ...] = ()
    """New data files: rows that are new or have new values, and copies of rows of removed files."""
    copies: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)
    """Those of ``added`` that hold copied rows only, with where the rows came from. They keep the base's age (P20)."""
    removed: tuple[DataFile, ...] = ()
    """Data files that go."""
    removed_deletes: tuple[DataFile, ...] = ()
    """Delete files that applied to removed files only, or to none; it is no matter if they are gone already."""
    unneeded: Mapping[str, int] = field(default_factory=dict)
    """Those of ``removed_deletes`` that were found to apply to no file that stays, with their sequence numbers. Others
    may bring older files meanwhile; one that applies to such a file stays (P36)."""
    deletes: tuple[DataFile, ...] = ()
    """New delete files: position deletes of one data file each, or equality deletes."""
    positions: Mapping[str, BitMap64] = field(default_factory=dict)
    """Data file that stays → the rows that ``deletes`` takes out of it by position."""
    touched: Mapping[str, DataFile] = field(default_factory=dict)
    """The data files that ``positions`` names."""
    moved: Mapping[str, BitMap64] = field(default_factory=dict)
    """Data file → those of its rows taken out that live on, with other values, in ``added``."""
    reads: tuple[Read, ...] = ()
    keys: tuple[int, ...] = ()
    """The field ids that equality deletes compare."""
    key_spec_id: int | None = None
    """Equality deletes were written under this partitioned spec, which is sound while the table has no other (P21)."""
    predicate: Predicate | None = None
    """Which rows were asked to go, for those who append such rows meanwhile (P23)."""
    on_deleted: OnDeleted = "keep"
    schema_id: int = 0
    """The schema the rows were staged under."""
    written_ids: Mapping[int, str] = field(default_factory=dict)
    """Field id → name at staging time, for every column of which the files hold values, nested ones included."""
    nullable_ids: frozenset[int] = frozenset()
    """Columns that were optional at staging time and in which the files may hold a null."""
    snapshot_id: int | None = None
    """The id its snapshot is to have, where something refers to it already; None: any."""
    owns_files: bool = True
    """The files were written for this operation and go when it fails; False: they belong to another snapshot."""
    staged_since_ms: int | None = None
    """When the first of its files may have been written, by the writer's clock (P35); None: it has written none."""
    rows: RowCounts = RowCounts()
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    own_snapshot: bool = False
    """It does not share a snapshot with others."""
    bundles: tuple[Bundle, ...] = ()
    """More of ``added`` and ``deletes``, where only a reference has travelled (``delegation.py``)."""
    merges: tuple[ManifestMerge, ...] = ()
    """The same files in fewer manifests."""

    @property
    def name(self) -> str:
        return self.kind.value

    @property
    def staged_paths(self) -> list[str]:
        """Every file that was written for this operation alone."""
        if not self.owns_files:
            return []
        merged = [merge.manifest.manifest_path for merge in self.merges]
        return [*(file.file_path for file in (*self.added, *self.deletes)), *merged]

    @property
    def lineage(self) -> Lineage:
        """Where the rows of the removed files went (P26)."""
        removed = {file.file_path for file in self.removed}
        return Lineage(self.copies, {path: rows for path, rows in self.moved.items() if path in removed})

    @property
    def has_equality_deletes(self) -> bool:
        return any(file.content == Content.EQUALITY_DELETES for file in self.deletes)

    @property
    def only_adds(self) -> bool:
        """It read nothing and names no file of others, so it means the same on any head, and anybody may commit it."""
        looked = self.removed or self.positions or self.reads or self.removed_deletes or self.copies or self.moved
        return self.owns_files and self.snapshot_id is None and not (looked or self.is_empty)

    @property
    def may_share_a_snapshot(self) -> bool:
        """Rows that were appended say nothing about each other's order (rule P17)."""
        own = self.own_snapshot or self.snapshot_properties or self.deletes
        return (self.kind is Kind.APPEND or bool(self.merges)) and self.only_adds and not own

    @property
    def is_empty(self) -> bool:
        files = self.added or self.removed or self.deletes or self.removed_deletes
        return not (files or self.bundles or self.merges)

    @property
    def parts(self) -> set[str]:
        """Manifests that others shall take the place of."""
        return {path for merge in self.merges for path in merge.parts}

    @property
    def brings_rows(self) -> bool:
        return bool(self.added) or any(bundle.holds_data for bundle in self.bundles)

    @property
    def new_specs(self) -> set[int]:
        """The partition specs that its new files were laid out by."""
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
    """A change without rows, kept as an intent so that each attempt replays it on the head it finds."""

    table_uuid: str
    intent: Intent
    name: str = "metadata"


Operation = Write | MetadataChange


def digest(verb: str, **parameters: object) -> str:
    """Names an operation, so that one commit id means one operation. Values are hashed: they may be personal."""
    try:
        text = orjson.dumps([verb, parameters], option=orjson.OPT_SORT_KEYS, default=str)
    except TypeError:
        # What JSON has no form for: half a character, a number beyond 64 bits, a key that is no text.
        text = repr((verb, sorted(parameters.items()))).encode(errors="backslashreplace")
    return hashlib.sha256(text).hexdigest()[:16]
