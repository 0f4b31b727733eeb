"""Makes intents of the caller's arguments: names become field ids, and invalid arguments are refused at once.

Every intent is replayed once on the base it was made on. A refusal there is the caller's mistake (InvalidInput); a
refusal on a later head is a conflict (rule P16).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
from pyiceberg.transforms import BucketTransform, TruncateTransform

from frazil.commit.intents import (
    AddColumn,
    DropColumns,
    ExpireSnapshots,
    Intent,
    MakeOptional,
    MakeRequired,
    MoveColumn,
    MoveRef,
    NewRef,
    PartitionTerm,
    PropertyChange,
    RefKind,
    RemoveRef,
    RenameColumn,
    SchemaUnion,
    SetDoc,
    SetKeys,
    SetPartitioning,
    SetSortOrder,
    SortTerm,
    UpgradeFormat,
    WidenColumn,
)
from frazil.commit.metadata_changes import replay
from frazil.errors import InvalidInput, Unsupported
from frazil.format import evolution
from frazil.format.evolution import FIRST, LAST, BoundColumn, ColumnPosition, Name
from frazil.format.metadata import MAIN, WRITTEN_VERSION, TableMetadata
from frazil.format.partitions import AnyTransform, parse_partitioning, parse_sort
from frazil.format.properties import checked_properties
from frazil.format.schemas import suggestion, to_type

IntentT = TypeVar("IntentT", bound=Intent)


def _checked(intent: IntentT, base: TableMetadata) -> IntentT:
    replay(intent, base)
    return intent


# Columns


def make_schema_union(base: TableMetadata, incoming: pa.Schema) -> SchemaUnion:
    return _checked(SchemaUnion(incoming, base.current_schema_id), base)


def make_add_column(
    base: TableMetadata,
    name: Name,
    kind: object,
    *,
    doc: str | None = None,
    required: bool = False,
    first: bool = False,
    after: Name | None = None,
) -> AddColumn:
    schema = base.schema()
    owner, own_name = evolution.struct_for_new(schema, name)
    if required:
        raise InvalidInput(
            f"The column {own_name!r} cannot be added as required: existing rows have no value for it",
            advice="Add it as an optional column; tables of format version 2 have no default values",
        )
    place = _place(base, owner, first=first, after=after)
    shown = own_name if owner is None else f"{owner.name}.{own_name}"
    depth = 0 if owner is None else len(evolution.column_path(schema, owner.field_id) or ())
    checked = to_type(kind, shown, depth=depth)
    return _checked(AddColumn(owner, own_name, checked, _checked_doc(doc), place or LAST), base)


def make_drop_columns(base: TableMetadata, names: Iterable[Name]) -> DropColumns:
    columns = tuple(evolution.bind(base.schema(), name) for name in names)
    if not columns:
        raise InvalidInput("No columns were given", advice="Name the columns to drop: drop_column('x')")
    return _checked(DropColumns(columns), base)


def make_rename_column(base: TableMetadata, old: Name, new: str) -> RenameColumn:
    column = evolution.bind(base.schema(), old)
    own_name = base.schema().find_field(column.field_id).name
    return _checked(RenameColumn(column, own_name, evolution.one_name(new)), base)


def make_widen_column(base: TableMetadata, name: Name, kind: object) -> WidenColumn:
    column = evolution.bind(base.schema(), name)
    wider = to_type(kind, column.name)
    current = base.schema().find_field(column.field_id).field_type
    if evolution.can_widen(wider, current):
        # A later head may have a wider type than this one, which is fine; on the base it is a mistake.
        raise InvalidInput(f"The column {column.name!r} is {current} and cannot become {wider}: types only get wider")
    return _checked(WidenColumn(column, wider), base)


def make_move_column(
    base: TableMetadata, name: Name, *, first: bool = False, after: Name | None = None, before: Name | None = None
) -> MoveColumn:
    column = evolution.bind(base.schema(), name)
    owner = evolution.owner_of(base.schema(), column)
    place = _place(base, owner, first=first, after=after, before=before, moved=column.field_id)
    if place is None:
        raise InvalidInput("The column's new position is missing", advice="Pass first=True, after='x' or before='x'")
    return _checked(MoveColumn(column, place), base)


def make_make_optional(base: TableMetadata, name: Name) -> MakeOptional:
    return _checked(MakeOptional(evolution.bind(base.schema(), name)), base)


def make_make_required(base: TableMetadata, name: Name) -> MakeRequired:
    return _checked(MakeRequired(evolution.bind(base.schema(), name)), base)


def make_set_doc(base: TableMetadata, name: Name, doc: str | None) -> SetDoc:
    return _checked(SetDoc(evolution.bind(base.schema(), name), _checked_doc(doc)), base)


def make_set_keys(base: TableMetadata, names: Sequence[Name]) -> SetKeys:
    listed = [names] if isinstance(names, str) else list(names)
    columns = tuple(evolution.bind(base.schema(), name) for name in listed)
    twice = next((each for position, each in enumerate(columns) if each in columns[:position]), None)
    if twice is not None:
        raise InvalidInput(f"The key {twice.name!r} is listed twice")
    schema = base.schema()
    optional = tuple(dict.fromkeys(each for column in columns for each in evolution.optional_path(schema, column)))
    return _checked(SetKeys(columns, frozenset(schema.identifier_field_ids), optional), base)


def _place(
    base: TableMetadata,
    owner: BoundColumn | None,
    *,
    first: bool,
    after: Name | None,
    before: Name | None = None,
    moved: int | None = None,
) -> ColumnPosition | None:
    if first + (after is not None) + (before is not None) > 1:
        raise InvalidInput("A column has only one position", advice="Pass only one of first, after and before")
    if after is not None:
        return evolution.position_beside(base.schema(), owner, "after", after, moved)
    if before is not None:
        return evolution.position_beside(base.schema(), owner, "before", before, moved)
    return FIRST if first else None


def _checked_doc(doc: object) -> str | None:
    if doc is not None and not isinstance(doc, str):
        raise InvalidInput(f"A column's comment must be a string, not {doc!r}")
    return doc


# Layout


def make_set_partitioning(base: TableMetadata, texts: Sequence[str]) -> SetPartitioning:
    schema = base.schema()
    terms = tuple(
        PartitionTerm(_source(base, field.source_id), str(field.transform), _evolved_name(field.name, field.transform))
        for field in parse_partitioning(texts, schema).fields
    )
    return _checked(SetPartitioning(terms, base.default_spec_id), base)


def make_set_sort_order(base: TableMetadata, texts: Sequence[str]) -> SetSortOrder:
    terms = tuple(
        SortTerm(_source(base, field.source_id), str(field.transform), field.direction.value, field.null_order.value)
        for field in parse_sort(texts, base.schema()).fields
    )
    return _checked(SetSortOrder(terms, base.default_sort_order_id), base)


def _source(base: TableMetadata, field_id: int) -> BoundColumn:
    return BoundColumn(field_id, evolution.full_name(base.schema(), field_id))


def _evolved_name(name: str, transform: AnyTransform) -> str:
    # As Iceberg Java names fields that are added to a table: bucket(16) and bucket(32) of one column get two names.
    match transform:
        case BucketTransform():
            return f"{name}_{transform.num_buckets}"
        case TruncateTransform():
            return f"{name}_{transform.width}"
    return name


# Properties and refs


def make_property_change(
    base: TableMetadata, updates: Mapping[str, str] | None = None, removals: Iterable[str] = ()
) -> PropertyChange | UpgradeFormat:
    checked = checked_properties(updates or {})
    gone = tuple(removals)
    version = checked.pop("format-version", None)
    bad = [key for key in gone if not isinstance(key, str)]
    if bad:
        raise InvalidInput(f"The key of a property must be a string, not {bad[0]!r}")
    change = PropertyChange(checked, gone)
    if version is None:
        return _checked(change, base)
    if version != str(WRITTEN_VERSION):
        raise Unsupported(
            f"The format version of a table cannot be set to {version!r}",
            evidence=f"This table has format version {base.format_version}",
            advice="Frazil writes format version 2: '2' upgrades a table of version 1, and no version goes back",
        )
    return _checked(UpgradeFormat(change), base)


def make_new_ref(
    base: TableMetadata,
    name: str,
    kind: RefKind,
    snapshot: int | str | None = None,
    *,
    max_ref_age_ms: int | None = None,
    max_snapshot_age_ms: int | None = None,
    min_snapshots_to_keep: int | None = None,
) -> NewRef:
    if not isinstance(name, str) or not name.strip():
        raise InvalidInput(f"The name of a {kind} must be a non-empty string, not {name!r}")
    numbers = {
        "max_ref_age_ms": max_ref_age_ms,
        "max_snapshot_age_ms": max_snapshot_age_ms,
        "min_snapshots_to_keep": min_snapshots_to_keep,
    }
    for argument, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**63):
            raise InvalidInput(f"{argument} must be a whole number above 0, not {number!r}")
    snapshot_id = None if snapshot is None else _snapshot_id(base, snapshot)
    return _checked(NewRef(name, kind, snapshot_id, **numbers), base)


def make_remove_ref(base: TableMetadata, name: str, kind: RefKind) -> RemoveRef:
    if name == MAIN:
        raise InvalidInput("The branch 'main' cannot be dropped", advice="Drop the table, or roll it back")
    return _checked(RemoveRef(name, kind, _ref(base, name, kind)), base)


def make_fast_forward(base: TableMetadata, branch: str, to: int | str) -> MoveRef:
    """Moves a branch forward to a descendant of its head."""
    replaced = _branch_head(base, branch)
    snapshot_id = _snapshot_id(base, to)
    if replaced is not None and not base.is_ancestor(replaced, of=snapshot_id):
        raise InvalidInput(
            f"The branch {branch!r} cannot be fast-forwarded to {to!r}: its head {replaced} is not an ancestor of "
            f"snapshot {snapshot_id}",
            advice="The branch has commits that the target lacks; repeat the target's work on top of the branch's head",
        )
    return _checked(MoveRef(branch, snapshot_id, replaced), base)


def make_rollback(base: TableMetadata, snapshot: int | str, branch: str = MAIN) -> MoveRef:
    """Moves a branch back to a snapshot of its own history."""
    replaced = _branch_head(base, branch)
    snapshot_id = _snapshot_id(base, snapshot)
    if not base.is_ancestor(snapshot_id, of=replaced):
        raise InvalidInput(
            f"The branch {branch!r} cannot be rolled back to snapshot {snapshot_id}, which is not in its history",
            advice="history() lists its snapshots; set_current_snapshot() accepts any snapshot of the table",
        )
    return _checked(MoveRef(branch, snapshot_id, replaced), base)


def make_set_current(base: TableMetadata, snapshot: int | str, branch: str = MAIN) -> MoveRef:
    """Moves a branch to any snapshot of the table."""
    return _checked(MoveRef(branch, _snapshot_id(base, snapshot), _branch_head(base, branch)), base)


def make_expire_snapshots(
    base: TableMetadata, older_than_ms: int | None = None, retain_last: int | None = None
) -> ExpireSnapshots:
    if retain_last is not None and (
        isinstance(retain_last, bool) or not isinstance(retain_last, int) or retain_last < 1
    ):
        raise InvalidInput(
            f"retain_last must be a whole number above 0, not {retain_last!r}",
            advice="A branch always keeps its newest snapshot",
        )
    return _checked(ExpireSnapshots(older_than_ms, retain_last), base)


def _branch_head(base: TableMetadata, branch: str) -> int | None:
    # A table without commits has no ref "main", but its main branch exists.
    return None if branch == MAIN and MAIN not in base.refs else _ref(base, branch, "branch")


def _ref(base: TableMetadata, name: str, kind: RefKind) -> int:
    found = base.refs.get(name) if isinstance(name, str) else None
    if found is None or found["type"] != kind:
        known = [ref for ref, each in base.refs.items() if each["type"] == kind]
        what = f"{name!r} is a {found['type']}, not a {kind}" if found is not None else f"There is no {kind} {name!r}"
        raise InvalidInput(what, advice=suggestion(str(name), known))
    return int(found["snapshot-id"])


def _snapshot_id(base: TableMetadata, snapshot: int | str) -> int:
    """A snapshot by its id, or by the branch or tag that names it."""
    if isinstance(snapshot, str):
        if snapshot not in base.refs:
            raise InvalidInput(f"There is no branch or tag {snapshot!r}", advice=suggestion(snapshot, base.refs))
        return int(base.refs[snapshot]["snapshot-id"])
    if isinstance(snapshot, bool) or not isinstance(snapshot, int) or not base.has_snapshot(snapshot):
        raise InvalidInput(
            f"The table has no snapshot {snapshot!r}", advice="Pass a snapshot id from history(), a branch or a tag"
        )
    return snapshot
