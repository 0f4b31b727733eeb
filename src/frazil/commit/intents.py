"""What a change without rows wants, as values. Each attempt replays the intent on whatever head it finds.

Names were bound to field ids, and values to be replaced were noted, when the intent was made (``commit/binding.py``):
a rename by another writer changes nothing, a drop is seen (rules P16 and P25).
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
"""A schema, and the last column id that the table has given out."""


class IntentConflict(Exception):
    """The head that an attempt found cannot take the intent any more. The commit loop makes a ConflictError of it."""

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        self.conflicts = conflicts
        super().__init__("; ".join(str(each) for each in conflicts))


# Columns: every one of these says what becomes of a schema


@dataclass(frozen=True, slots=True)
class SchemaUnion:
    """Make the schema hold every column of ``incoming``, matched by name."""

    incoming: pa.Schema
    base_schema_id: int | None = None
    """The schema the caller saw; a union that fits this one and not the head's is a conflict, not a bad call."""
    pinned: int | None = None
    """The next free id must still be this one (``pin``)."""

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return evolve(schema, last_column_id, self.incoming)


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add an optional column. Another's of the same name and type is as good; of another type it is a conflict."""

    owner: BoundColumn | None
    """The struct it goes into; None: the table itself."""
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
    """Drop columns; those that another has dropped meanwhile are no matter."""

    columns: tuple[BoundColumn, ...]

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.drop_columns(schema, self.columns), last_column_id)


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Rename a column inside its struct. Renamed otherwise, dropped, or the name taken meanwhile: a conflict."""

    column: BoundColumn
    old: str
    new: str

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.rename_column(schema, self.column, self.old, self.new), last_column_id)


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """Give a column a wider type; nothing to do if it is as wide by now."""

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
    """Let a column be null. It may not be a key, now or by another's doing meanwhile."""

    column: BoundColumn

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.make_optional(schema, self.column), last_column_id)


@dataclass(frozen=True, slots=True)
class SetDoc:
    """Set or take away a column's comment; the last writer wins."""

    column: BoundColumn
    doc: str | None

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        return _same_ids(evolution.set_doc(schema, self.column, self.doc), last_column_id)


@dataclass(frozen=True, slots=True)
class SetKeys:
    """Say which columns identify a row. Upserts depend on it, so another's choice meanwhile is a conflict."""

    columns: tuple[BoundColumn, ...]
    replaced: frozenset[int]
    """The keys' ids when this was asked for."""

    def evolve(self, schema: Schema, last_column_id: int) -> Evolved | None:
        changed = evolution.set_keys(schema, self.columns)
        if changed is not None and self.replaced != frozenset(schema.identifier_field_ids):
            now = ", ".join(evolution.full_name(schema, each) for each in schema.identifier_field_ids) or "none"
            raise _conflict(
                Check.SCHEMA_COMPATIBLE, f"the keys were changed by another, to {now}", "Look at them again"
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
    """The name that a new partition field gets; one that the table has already had keeps its name."""


@dataclass(frozen=True, slots=True)
class SetPartitioning:
    """Lay out new files by these terms. Another's choice meanwhile is a conflict, unless it is the same."""

    terms: tuple[PartitionTerm, ...]
    replaced: int
    """The id of the default spec when this was asked for."""
    pinned: int | None = None
    """The next free id must still be this one (``pin``)."""


@dataclass(frozen=True, slots=True)
class UnpartitionedSpec:
    """See that an unpartitioned spec is listed, never as the default: deletes under it reach every partition (P21)."""

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
    """Sort new files by these terms. Another's choice meanwhile is a conflict, unless it is the same."""

    terms: tuple[SortTerm, ...]
    replaced: int
    """The id of the default sort order when this was asked for."""
    pinned: int | None = None
    """The next free id must still be this one (``pin``)."""


# Properties and refs


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """Set and remove table properties. Different keys commute; on one key the last writer wins."""

    updates: Mapping[str, str] = field(default_factory=dict)
    removals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkMark:
    """Move a streaming sink's high-water mark, in the same metadata file as its batch (rule P11).

    *Without:* two runs of one query, of which the older one was thought dead, both write the batch.
    """

    key: str
    """The table property."""
    before: str | None
    """What it was when the batch began; anything else by now is a conflict."""
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
    """Drop a branch or a tag that still names this snapshot (rule P25); one that is gone is no matter."""

    ref: str
    kind: RefKind
    replaced: int


@dataclass(frozen=True, slots=True)
class MoveRef:
    """Make a branch name another snapshot, if it still names the one it did (rule P25): fast-forward and rollback."""

    ref: str
    snapshot_id: int
    replaced: int | None
    """None: the branch had no snapshot."""


@dataclass(frozen=True, slots=True)
class ExpireSnapshots:
    """Forget snapshots that have had their time, by the clock and the refs of the head it finds.

    Nothing is named beforehand: what a branch or a tag has got hold of meanwhile stays, and what another expired is no
    matter. Who names an expired snapshot afterwards is refused (``refs unchanged``).
    """

    older_than_ms: int | None = None
    """None: as the table's properties say."""
    retain_last: int | None = None
    """None: as the table's properties say."""


SchemaIntent = (
    SchemaUnion | AddColumn | DropColumns | RenameColumn | WidenColumn | MoveColumn | MakeOptional | SetDoc | SetKeys
)
LayoutIntent = SetPartitioning | UnpartitionedSpec | SetSortOrder
RefIntent = NewRef | RemoveRef | MoveRef | ExpireSnapshots
IdIntent = SchemaUnion | AddColumn | LayoutIntent
"""Those that give out ids."""
Intent = SchemaIntent | LayoutIntent | RefIntent | PropertyChange | SinkMark
