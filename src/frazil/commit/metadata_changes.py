"""Replays intents on a head: the resulting updates, or why the intent no longer applies. Pure.

An intent was valid on the base it was made on. So if a later head refuses it, a concurrent change is the reason, and
the refusal is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform, parse_transform
from pyiceberg.types import PrimitiveType

from frazil.catalog.requirements import layout_requirements, merged, requirements_for
from frazil.commit.checks import Check
from frazil.commit.intents import (
    AddColumn,
    ExpireSnapshots,
    IdIntent,
    Intent,
    IntentConflict,
    MoveRef,
    NewRef,
    PartitionTerm,
    PropertyChange,
    PropertyIntent,
    RefIntent,
    RemoveRef,
    SchemaIntent,
    SchemaUnion,
    SetPartitioning,
    SetSortOrder,
    SinkMark,
    SortTerm,
    UnpartitionedSpec,
    UpgradeFormat,
)
from frazil.commit.operations import MetadataChange
from frazil.errors import InvalidInput, SchemaMismatch
from frazil.format.evolution import column_properties_after, mapping_after, same_schema
from frazil.format.metadata import MAIN, WRITTEN_VERSION, TableMetadata
from frazil.format.partitions import AnyTransform, source_path
from frazil.format.properties import NAME_MAPPING
from frazil.format.retention import Expired, expired
from frazil.format.schemas import match_name
from frazil.model import Conflict

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortField, SortOrder

Json = dict[str, Any]
Updates = tuple[Json, ...]
Requirements = tuple[Json, ...]

_UNSORTED = 0
_LAST_ADDED = -1
_UPGRADE: Json = {"action": "upgrade-format-version", "format-version": WRITTEN_VERSION}


def metadata_change(
    operation: MetadataChange, head: TableMetadata, now_ms: int = 0
) -> tuple[Updates, Requirements] | None:
    """Updates and requirements of a metadata change; None: the head already has the requested state.

    ``now_ms``: the catalog's time, by which snapshots expire. The head's may be far ahead of it, as one writer's clock
    moves it on for all that follow (rule P7), and by that time everything would be old. Raises IntentConflict if
    concurrent changes have made the intent inapplicable.
    """
    intent = operation.intent
    try:
        updates = replay(intent, head, now_ms)
    except InvalidInput as error:
        if isinstance(intent, SchemaUnion) and not _fitted_its_base(intent, head):
            raise
        raise _as_conflict(intent, error) from error
    if not updates:
        return None
    # A schema change is checked against the layout, and a layout against the schema: each requires both unchanged.
    layout = () if isinstance(intent, PropertyIntent | RefIntent) else layout_requirements(head)
    return updates, merged(requirements_for(head, updates), layout)


def replay(intent: Intent, head: TableMetadata, now_ms: int = 0) -> Updates:
    """The updates that apply the intent to the head, empty if there is nothing to change.

    Raises InvalidInput and IntentConflict.
    """
    if isinstance(intent, IdIntent) and intent.pinned not in (None, _next_id(intent, head)):
        if isinstance(intent, UnpartitionedSpec) and _is_unpartitioned(intent.pinned, head):
            # It was added concurrently, with the same id.
            return ()
        raise _ids_moved_on(intent)
    match intent:
        case SetPartitioning():
            return _set_partitioning(intent, head)
        case UnpartitionedSpec():
            return _unpartitioned_spec(head)
        case SetSortOrder():
            return _set_sort_order(intent, head)
        case PropertyChange():
            return _property_change(intent, head)
        case UpgradeFormat(properties):
            upgrade = () if head.format_version == WRITTEN_VERSION else (_UPGRADE,)
            return upgrade + _property_change(properties, head)
        case SinkMark():
            return _sink_mark(intent, head)
        case NewRef() | RemoveRef() | MoveRef() | ExpireSnapshots():
            return _ref_change(intent, head, now_ms)
        case _:
            return _schema_change(intent, head)


def pin(intent: Intent, base: TableMetadata) -> Intent:
    """The intent, to land only with the ids it would get on ``base``: later steps of a transaction use them.

    Rule P16. *Without:* a transaction adds a column, which gets the provisional id 7, and stages rows or drops a column
    by this id; a column that another writer added concurrently has the id 7 when it lands.
    """
    if isinstance(intent, IdIntent) and replay(intent, base):
        return replace(intent, pinned=_next_id(intent, base))
    if isinstance(intent, NewRef) and intent.snapshot_id is None:
        # Later writes to the branch are based on this snapshot, not on a later head of main.
        return replace(intent, snapshot_id=base.ref_snapshot_id(MAIN))
    return intent


def _next_id(intent: IdIntent, head: TableMetadata) -> int:
    match intent:
        case SchemaUnion() | AddColumn():
            return head.last_column_id + 1
        case SetPartitioning() | UnpartitionedSpec():
            return max(head.specs()) + 1
        case SetSortOrder():
            return max([_UNSORTED, *_sort_orders(head)]) + 1


def _ids_moved_on(intent: IdIntent) -> IntentConflict:
    what = "columns" if isinstance(intent, SchemaUnion | AddColumn) else "partition specs or sort orders"
    detail = f"{what} were added concurrently, so the new ones would get other ids than later steps of this commit use"
    return IntentConflict((Conflict(_check_of(intent), detail, advice="Retry the transaction"),))


def _as_conflict(intent: Intent, error: InvalidInput) -> IntentConflict:
    detail = error.problem[:1].lower() + error.problem[1:]
    return IntentConflict((Conflict(_check_of(intent), detail, advice=error.advice or ""),))


def _check_of(intent: Intent) -> Check:
    match intent:
        case SetPartitioning() | UnpartitionedSpec():
            return Check.LAYOUT_UNCHANGED
        case SetSortOrder():
            return Check.LAYOUT_UNCHANGED
        case NewRef() | RemoveRef() | MoveRef() | ExpireSnapshots():
            return Check.REFS_UNCHANGED
        case _:
            return Check.SCHEMA_COMPATIBLE


# Schemas


def _schema_change(intent: SchemaIntent, head: TableMetadata) -> Updates:
    before = head.schema()
    evolved = intent.evolve(before, head.last_column_id)
    if evolved is None:
        return ()
    after, last_column_id = evolved
    _check_sources(before, after, head)
    for spec in head.specs().values():
        _check_partition_names(spec, after, before)
    same = next((key for key, schema in sorted(head.schemas().items()) if same_schema(schema, after)), None)
    if same is not None:
        # As in Iceberg Java: a schema that the table has had becomes current again under its old id.
        updates: Updates = ({"action": "set-current-schema", "schema-id": same},)
    else:
        new_id = max(head.schemas()) + 1
        schema = Schema(*after.fields, schema_id=new_id, identifier_field_ids=after.identifier_field_ids)
        body = schema.model_dump(by_alias=True, mode="json")
        updates = (
            {"action": "add-schema", "schema": body, "last-column-id": last_column_id},
            {"action": "set-current-schema", "schema-id": _LAST_ADDED},
        )
    return updates + _renamed_in_properties(before, after, head)


def _renamed_in_properties(before: Schema, after: Schema, head: TableMetadata) -> Updates:
    """Updates of the properties that contain column names."""
    moved, gone = column_properties_after(head.properties, before, after)
    if head.name_mapping is not None:
        mapping = mapping_after(head.name_mapping, before, after)
        if mapping != head.name_mapping.model_dump_json():
            moved[NAME_MAPPING] = mapping
    return tuple(_property_updates(moved, gone))


def _check_sources(before: Schema, after: Schema, head: TableMetadata) -> None:
    """The columns of the current spec and sort order must exist. Those of older specs may have been dropped."""
    partitioned = {field.source_id for field in head.spec().fields if not isinstance(field.transform, VoidTransform)}
    for sources, what, remedy in (
        (partitioned, "partitioned", "set_partitioning([...])"),
        ({field.source_id for field in head.sort_order().fields}, "sorted", "set_sort_order([...])"),
    ):
        lost = sorted(str(before.find_column_name(each)) for each in (sources & before.field_ids) - after.field_ids)
        if lost:
            raise InvalidInput(
                f"The table is {what} by {', '.join(lost)}, which therefore cannot be dropped",
                advice=f"Change the layout first, with {remedy}",
            )


def _check_partition_names(spec: PartitionSpec, schema: Schema, before: Schema | None = None) -> None:
    # Iceberg Java refuses to load a table in which a partition field is named like another column.
    for field in spec.fields:
        column = _column_named(field.name, schema)
        if column is None or (before is not None and _column_named(field.name, before) == column):
            continue
        if not (column == field.source_id and isinstance(field.transform, IdentityTransform | VoidTransform)):
            raise InvalidInput(
                f"The column {schema.find_column_name(column)!r} and the partition field {field.name!r} of spec "
                f"{spec.spec_id} would have the same name",
                advice="Choose another column name",
            )


def _column_named(name: str, schema: Schema) -> int | None:
    found = match_name(name, schema.column_names)
    return None if found is None else schema.find_field(found).field_id


def _fitted_its_base(intent: SchemaUnion, head: TableMetadata) -> bool:
    base = intent.base_schema_id
    if base is None or base == head.current_schema_id or base not in head.schemas():
        return False
    try:
        intent.evolve(head.schema(base), head.last_column_id)
    except SchemaMismatch:
        return False
    return True


# Partitioning and sort orders


def _set_partitioning(intent: SetPartitioning, head: TableMetadata) -> Updates:
    listed = head.specs()
    fields = _partition_fields(intent.terms, head)
    if fields == head.spec().fields:
        return ()
    if head.default_spec_id != intent.replaced:
        raise _moved_on(Check.LAYOUT_UNCHANGED, "partitioning", _show_spec(head.spec(), head))
    for term in intent.terms:
        _check_source(term, head.schema())
    same = next((spec_id for spec_id, spec in sorted(listed.items()) if spec.fields == fields), None)
    if same is not None:
        return ({"action": "set-default-spec", "spec-id": same},)
    spec = PartitionSpec(*fields, spec_id=max(listed) + 1)
    _check_partition_names(spec, head.schema())
    return (_add_spec(spec), {"action": "set-default-spec", "spec-id": _LAST_ADDED})


def _partition_fields(terms: Iterable[PartitionTerm], head: TableMetadata) -> tuple[PartitionField, ...]:
    """The terms as fields. A field of any listed spec keeps its id and name, as the specification requires."""
    known = {(field.source_id, str(field.transform)): field for field in _all_partition_fields(head)}
    taken = {field.name for field in known.values()}
    next_id = _last_partition_id(head) + 1
    fields: list[PartitionField] = []
    for term in terms:
        field = known.get((term.source.field_id, term.transform))
        if field is None:
            # Fields of all specs share one partition type, in which names are unique.
            name = term.name if term.name not in taken else f"{term.name}_{next_id}"
            field = PartitionField(term.source.field_id, next_id, parse_transform(term.transform), name)
            next_id += 1
        fields.append(field)
    return tuple(fields)


def _all_partition_fields(head: TableMetadata) -> Iterator[PartitionField]:
    """The fields of every listed spec, those of the default spec last: where two are equal, the default's wins."""
    for spec_id in sorted(head.specs(), key=lambda each: (each == head.default_spec_id, each)):
        yield from head.spec(spec_id).fields


def _last_partition_id(head: TableMetadata) -> int:
    used = [field.field_id for field in _all_partition_fields(head)]
    return max([int(head.raw.get("last-partition-id", 999)), *used])


def _is_unpartitioned(spec_id: int | None, head: TableMetadata) -> bool:
    spec = head.specs().get(spec_id) if spec_id is not None else None
    return spec is not None and not spec.fields


def _unpartitioned_spec(head: TableMetadata) -> Updates:
    listed = head.specs()
    if any(not spec.fields for spec in listed.values()):
        return ()
    return (_add_spec(PartitionSpec(spec_id=max(listed) + 1)),)


def _add_spec(spec: PartitionSpec) -> Json:
    return {"action": "add-spec", "spec": spec.model_dump(by_alias=True, mode="json")}


def _set_sort_order(intent: SetSortOrder, head: TableMetadata) -> Updates:
    wanted = [_sort_field(term) for term in intent.terms]
    orders = _sort_orders(head)
    if wanted == head.sort_order().fields:
        return ()
    if head.default_sort_order_id != intent.replaced:
        raise _moved_on(Check.LAYOUT_UNCHANGED, "sort order", str(head.sort_order()))
    for term in intent.terms:
        _check_source(term, head.schema())
    same = next((order_id for order_id, order in sorted(orders.items()) if order.fields == wanted), None)
    if same is not None:
        return ({"action": "set-default-sort-order", "sort-order-id": same},)
    from pyiceberg.table.sorting import SortOrder

    # Zero is the specification's id of "unsorted".
    new = SortOrder(*wanted, order_id=max([_UNSORTED, *orders]) + 1 if wanted else _UNSORTED)
    return (
        {"action": "add-sort-order", "sort-order": new.model_dump(by_alias=True, mode="json")},
        {"action": "set-default-sort-order", "sort-order-id": _LAST_ADDED},
    )


def _sort_orders(head: TableMetadata) -> dict[int, SortOrder]:
    from pyiceberg.table.sorting import SortOrder

    return {int(raw["order-id"]): SortOrder.model_validate(raw) for raw in head.raw.get("sort-orders") or ()}


def _sort_field(term: SortTerm) -> SortField:
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField

    return SortField(
        term.source.field_id,
        parse_transform(term.transform),
        SortDirection(term.direction),
        NullOrder(term.null_order),
    )


def _check_source(term: PartitionTerm | SortTerm, schema: Schema) -> None:
    column = term.source
    if source_path(schema, column.field_id) is None:
        raise InvalidInput(f"The column {column.name!r} was dropped", advice="Re-read the table's schema and retry")
    kind = schema.find_field(column.field_id).field_type
    transform: AnyTransform = parse_transform(term.transform)
    if not isinstance(kind, PrimitiveType) or not transform.can_transform(kind):
        raise InvalidInput(f"The column {column.name!r} has the type {kind}, which {transform} does not accept")


def _moved_on(check: Check, what: str, now: str) -> IntentConflict:
    detail = f"the {what} was changed concurrently, to {now}"
    return IntentConflict((Conflict(check, detail, advice=f"Re-read the table's {what} and retry"),))


def _show_spec(spec: PartitionSpec, head: TableMetadata) -> str:
    schema = head.spec_schema(spec.spec_id)
    terms = (f"{field.transform}({schema.find_column_name(field.source_id)})" for field in spec.fields)
    return ", ".join(terms) or "none"


# Properties and refs


def _property_change(intent: PropertyChange, head: TableMetadata) -> Updates:
    changed = {key: value for key, value in intent.updates.items() if head.properties.get(key) != value}
    gone = [key for key in intent.removals if key in head.properties]
    return tuple(_property_updates(changed, gone))


def _sink_mark(intent: SinkMark, head: TableMetadata) -> Updates:
    found = head.properties.get(intent.key)
    if found != intent.before:
        raise IntentConflict(
            (
                Conflict(
                    Check.SINK_UNMOVED,
                    f"another run of this stream moved {intent.key} from {intent.before} to {found} concurrently",
                    advice="Two queries write through one sink: stop one of them, or give it an id of its own",
                ),
            )
        )
    return ({"action": "set-properties", "updates": {intent.key: intent.after}},)


def _property_updates(changed: Mapping[str, str], gone: list[str]) -> Iterator[Json]:
    if changed:
        yield {"action": "set-properties", "updates": dict(changed)}
    if gone:
        yield {"action": "remove-properties", "removals": gone}


def _ref_change(intent: RefIntent, head: TableMetadata, now_ms: int) -> Updates:
    match intent:
        case NewRef():
            return _new_ref(intent, head)
        case RemoveRef():
            return _remove_ref(intent, head)
        case MoveRef():
            return _move_ref(intent, head)
        case ExpireSnapshots():
            return _expire(intent, head, now_ms)


def _new_ref(intent: NewRef, head: TableMetadata) -> Updates:
    snapshot_id = head.ref_snapshot_id(MAIN) if intent.snapshot_id is None else intent.snapshot_id
    if snapshot_id is None:
        raise InvalidInput(
            f"The {intent.kind} {intent.ref!r} needs a snapshot to refer to, and the table has none yet",
            advice="Commit something first",
        )
    _check_kept(snapshot_id, head)
    retention = {
        "max-ref-age-ms": intent.max_ref_age_ms,
        "max-snapshot-age-ms": intent.max_snapshot_age_ms,
        "min-snapshots-to-keep": intent.min_snapshots_to_keep,
    }
    wanted: Json = {"snapshot-id": snapshot_id, "type": intent.kind}
    wanted |= {key: value for key, value in retention.items() if value is not None}
    existing = head.refs.get(intent.ref)
    if existing is not None and dict(existing) == wanted:
        return ()
    if existing is not None:
        raise InvalidInput(
            f"The table already has a {existing['type']} {intent.ref!r}, at snapshot {existing['snapshot-id']}",
            advice="Choose another name",
        )
    return ({"action": "set-snapshot-ref", "ref-name": intent.ref, **wanted},)


def _remove_ref(intent: RemoveRef, head: TableMetadata) -> Updates:
    existing = head.refs.get(intent.ref)
    if existing is None:
        return ()
    if existing["type"] != intent.kind or existing["snapshot-id"] != intent.replaced:
        raise _ref_moved(intent.ref, intent.replaced, head)
    return ({"action": "remove-snapshot-ref", "ref-name": intent.ref},)


def _move_ref(intent: MoveRef, head: TableMetadata) -> Updates:
    existing = head.refs.get(intent.ref, {"type": "branch", "snapshot-id": None})
    if existing["type"] == "branch" and existing["snapshot-id"] == intent.snapshot_id:
        return ()
    if existing["type"] != "branch" or existing["snapshot-id"] != intent.replaced:
        raise _ref_moved(intent.ref, intent.replaced, head)
    _check_kept(intent.snapshot_id, head)
    kept = {key: value for key, value in existing.items() if key not in ("snapshot-id", "type")}
    ref = {"ref-name": intent.ref, "type": "branch", "snapshot-id": intent.snapshot_id}
    return ({"action": "set-snapshot-ref", **ref, **kept},)


def _check_kept(snapshot_id: int, head: TableMetadata) -> None:
    if not head.has_snapshot(snapshot_id):
        # It existed when the call was made, unless the intent was constructed directly.
        raise InvalidInput(
            f"The snapshot {snapshot_id} has expired",
            advice="Choose a snapshot that history() lists",
        )


def _expire(intent: ExpireSnapshots, head: TableMetadata, now_ms: int) -> Updates:
    return removing(expired(head, now_ms, older_than_ms=intent.older_than_ms, retain_last=intent.retain_last), head)


def removing(gone: Expired, head: TableMetadata) -> Updates:
    """The updates that remove refs and snapshots from a table's metadata."""
    updates: list[Json] = [{"action": "remove-snapshot-ref", "ref-name": name} for name in gone.refs]
    for key in ("statistics", "partition-statistics"):
        with_file = {each["snapshot-id"] for each in head.raw.get(key) or ()}
        updates += [{"action": f"remove-{key}", "snapshot-id": each} for each in gone.snapshot_ids if each in with_file]
    if gone.snapshot_ids:
        updates.append({"action": "remove-snapshots", "snapshot-ids": list(gone.snapshot_ids)})
    return tuple(updates)


def _ref_moved(ref: str, replaced: int | None, head: TableMetadata) -> IntentConflict:
    winner = head.head_snapshot(ref)
    existing = head.refs.get(ref)
    now = "was dropped" if existing is None else f"is now a {existing['type']} at snapshot {existing['snapshot-id']}"
    was = "had no snapshot" if replaced is None else f"was at snapshot {replaced}"
    conflict = Conflict(
        Check.REFS_UNCHANGED,
        f"{ref!r} {now}; it {was} when this change was requested",
        snapshot_id=None if winner is None else winner.snapshot_id,
        operation=None if winner is None else winner.operation,
        advice="Check what was committed there, and retry",
    )
    return IntentConflict((conflict,))
