"""Changes of metadata as values. Each attempt replays the intent on the head it reads.

``commit/binding.py`` bound names to field ids, and recorded the values to replace, when the intent was made: a rename
by another writer is not a conflict, a drop is (rules P16 and P25).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from frazil.commit.checks import Check
from frazil.format import evolution
from frazil.format.evolution import LAST, BoundColumn, ColumnPosition
from frazil.format.schemas import evolve
from frazil.model import Conflict

RefKind = Literal["branch", "tag"]
Evolved = tuple[Schema, int]
"""A schema, and the last column id that the table has assigned."""


class IntentConflict(Exception):
    """The intent no longer applies to the head. The commit loop raises a ConflictError for it."""

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        self.conflicts = conflicts
        super().__init__("; ".join(str(each) for each in conflicts))


# Columns: ``evolve`` gives the new schema, or None if nothing changes


@dataclass(frozen=True, slots=True)
class SchemaUnion:
    """Add the missing columns of ``incoming`` to the schema, and widen types. Columns match by name."""

    incoming: pa.Schema
    base_schema_id: int | None = None
    """The schema the caller read; a union that fits this schema but not the head's is a conflict, not invalid input."""
    pinned: int | None = None
    """The next free id must still be this one (``pin``)."""

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return evolve(schema, last_column_id, self.incoming)


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add an optional column. If one of this name was added concurrently, a different type is a conflict."""

    owner: BoundColumn | None
    """The struct that contains it; None: it is a top-level column."""
    name: str
    kind: IcebergType
    doc: str | None = None
    place: ColumnPosition = LAST
    pinned: int | None = None
    """The next free id must still be this one (``pin``)."""

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return evolution.add_column(
            schema, last_column_id, self.owner, self.name, self.kind, doc=self.doc, place=self.place
        )


@dataclass(frozen=True, slots=True)
class DropColumns:
    """Drop columns; columns already dropped concurrently are ignored."""

    columns: tuple[BoundColumn, ...]

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.drop_columns(schema, self.columns), last_column_id)


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Rename a column inside its struct. A concurrent drop or different rename, or a taken name, is a conflict."""

    column: BoundColumn
    old: str
    new: str

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.rename_column(schema, self.column, self.old, self.new), last_column_id)


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """Give a column a wider type; without effect if it is already as wide."""

    column: BoundColumn
    kind: IcebergType

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.widen_column(schema, self.column, self.kind), last_column_id)


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """Move a column among its siblings; the last writer wins."""

    column: BoundColumn
    place: ColumnPosition

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.move_column(schema, self.column, self.place), last_column_id)


@dataclass(frozen=True, slots=True)
class MakeOptional:
    """Make a column optional. It must not be a key; a concurrent change that makes it one is a conflict."""

    column: BoundColumn

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.make_optional(schema, self.column), last_column_id)


@dataclass(frozen=True, slots=True)
class MakeRequired:
    """Make a column required. Its writer has checked the rows, and a read set beside it keeps concurrent nulls out."""

    column: BoundColumn

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.make_required(schema, self.column), last_column_id)


@dataclass(frozen=True, slots=True)
class SetDoc:
    """Set or remove a column's comment; the last writer wins."""

    column: BoundColumn
    doc: str | None

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.set_doc(schema, self.column, self.doc), last_column_id)


@dataclass(frozen=True, slots=True)
class SetKeys:
    """Set the columns that identify a row. Upserts depend on them, so a different concurrent choice is a conflict."""

    columns: tuple[BoundColumn, ...]
    replaced: frozenset[int]
    """The ids of the key columns when the intent was made."""
    becoming_required: tuple[BoundColumn, ...] = ()
    """Columns that become required with it; as for ``MakeRequired``."""

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        changed = evolution.set_keys(schema, self.columns, self.becoming_required)
        if changed is not None and self.replaced != frozenset(schema.identifier_field_ids):
            now = ", ".join(evolution.full_name(schema, each) for each in schema.identifier_field_ids) or "none"
            raise _conflict(
                Check.SCHEMA_COMPATIBLE, f"the keys were changed concurrently, to {now}", "Re-read the keys and retry"
            )
        return _same_ids(changed, last_column_id)


def _same_ids(schema: Schema | None, last_column_id: int) -> Evolved | None:
    return None if schema is None else (schema, last_column_id)


def _conflict(check: Check, detail: str, advice: str) -> IntentConflict:
    return IntentConflict((Conflict(check, detail, advice=advice),))


# Layout


@dataclass(frozen=True, slots=True)
class PartitionTerm:
    """One transform of one column, as the specification writes it: ``"bucket[16]"``."""

    source: BoundColumn
    transform: str
    name: str
    """The name of a new partition field; a field that the table has had before keeps its name."""


@dataclass(frozen=True, slots=True)
class SetPartitioning:
    """Partition new files by these terms. A different concurrent choice is a conflict."""

    terms: tuple[PartitionTerm, ...]
    replaced: int
    """The id of the default spec when the intent was made."""
    pinned: int | None = None
    """The next free id must still be this one (``pin``)."""


@dataclass(frozen=True, slots=True)
class UnpartitionedSpec:
    """Ensure that an unpartitioned spec is listed, not as the default: its deletes apply to every partition (P21)."""

    pinned: int | None = None
    """The next free id must still be this one (``pin``)."""


@dataclass(frozen=True, slots=True)
class SortTerm:
    source: BoundColumn
    transform: str
    direction: str
    null_order: str


@dataclass(frozen=True, slots=True)
class SetSortOrder:
    """Sort new files by these terms. A different concurrent choice is a conflict."""

    terms: tuple[SortTerm, ...]
    replaced: int
    """The id of the default sort order when the intent was made."""
    pinned: int | None = None
    """The next free id must still be this one (``pin``)."""


# Properties and refs


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """Set and remove table properties. Different keys commute; on one key the last writer wins."""

    updates: Mapping[str, str] = field(default_factory=dict)
    removals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UpgradeFormat:
    """Upgrade a table of format version 1 to 2, with the properties that the same call sets.

    It is not a PropertyChange, which any leader may commit: leaders of earlier versions do not know of upgrades.
    """

    properties: PropertyChange


@dataclass(frozen=True, slots=True)
class SinkMark:
    """Move a streaming sink's high-water mark, in the same metadata file as its batch (rule P11).

    *Without:* two runs of one query both write the batch, if the older run was wrongly believed dead.
    """

    key: str
    """The table property."""
    before: str | None
    """Its value when the batch began; any other value is a conflict."""
    after: str


@dataclass(frozen=True, slots=True)
class NewRef:
    """Create a branch or a tag at a snapshot; the name must be free."""

    ref: str
    kind: RefKind
    snapshot_id: int | None = None
    """None: the head of main when the commit lands."""
    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None


@dataclass(frozen=True, slots=True)
class RemoveRef:
    """Drop a branch or a tag that still refers to this snapshot (rule P25); one already dropped is ignored."""

    ref: str
    kind: RefKind
    replaced: int


@dataclass(frozen=True, slots=True)
class MoveRef:
    """Move a branch to another snapshot if it still refers to ``replaced`` (rule P25): fast-forward and rollback."""

    ref: str
    snapshot_id: int
    replaced: int | None
    """None: the branch had no snapshot."""


@dataclass(frozen=True, slots=True)
class ExpireSnapshots:
    """Expire snapshots by age, by the clock and the refs of the head that the attempt reads.

    The intent lists no snapshots: a snapshot that a branch or a tag refers to by then is kept, and snapshots already
    expired concurrently are ignored. A later change that refers to an expired snapshot is refused (``refs unchanged``).
    """

    older_than_ms: int | None = None
    """None: the table's properties decide."""
    retain_last: int | None = None
    """None: the table's properties decide."""


ColumnIntent = DropColumns | RenameColumn | WidenColumn | MoveColumn | MakeOptional | MakeRequired | SetDoc | SetKeys
"""Intents that change existing columns."""
SchemaIntent = SchemaUnion | AddColumn | ColumnIntent
LayoutIntent = SetPartitioning | UnpartitionedSpec | SetSortOrder
RefIntent = NewRef | RemoveRef | MoveRef | ExpireSnapshots
IdIntent = SchemaUnion | AddColumn | LayoutIntent
"""Intents that assign ids."""
PropertyIntent = PropertyChange | SinkMark | UpgradeFormat
Intent = SchemaIntent | LayoutIntent | RefIntent | PropertyIntent
