"""What "expected" means over ``commit_table``: requirements derived from the updates (rule P29).

A requirement is a JSON value of the Iceberg REST specification. They are never folded by type: a commit to two branches
needs one ``assert-ref-snapshot-id`` for each, or a concurrent move of the second branch is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from frazil.format.metadata import TableMetadata

Json = dict[str, Any]
Update = Mapping[str, Any]

_REF_ACTIONS = ("set-snapshot-ref", "remove-snapshot-ref")
_SCHEMA_ACTIONS = ("add-schema", "set-current-schema")
_SPEC_ACTIONS = ("add-spec", "set-default-spec")
_SORT_ACTIONS = ("add-sort-order", "set-default-sort-order")
_MAY_COME_BACK = ("assert-current-schema-id", "assert-default-spec-id", "assert-default-sort-order-id")
"""A value that was current once can be current again. A branch that has moved goes back only in a rollback."""


def requirements_for(
    metadata: TableMetadata, updates: Iterable[Update], *, bound: bool = True, spec_scoped: bool = False
) -> tuple[Json, ...]:
    """The requirements that make ``updates`` safe to send when they were computed from ``metadata``.

    ``bound``: names, filters or keys were bound to the current schema. ``spec_scoped``: something depends on the
    default partition spec. Both matter only for commits that add a snapshot. Properties have no requirement of their
    own: the last writer wins.
    """
    updates = tuple(updates)
    actions = {update["action"] for update in updates}
    adds_rows = "add-snapshot" in actions
    found = [table_uuid(metadata), *ref_requirements(metadata, updates)]
    if actions & {*_SCHEMA_ACTIONS, *_SPEC_ACTIONS} or (adds_rows and bound):
        found.append(_schema_id(metadata))
    if actions & {*_SCHEMA_ACTIONS}:
        found.append(_last_field_id(metadata))
    if actions & {*_SPEC_ACTIONS} or (adds_rows and spec_scoped):
        found.append(_spec_id(metadata))
    if actions & {*_SPEC_ACTIONS}:
        found.append(_last_partition_id(metadata))
    if actions & {*_SORT_ACTIONS}:
        found.append(_sort_order_id(metadata))
    return merged(found)


def ref_requirements(metadata: TableMetadata, updates: Iterable[Update]) -> Iterator[Json]:
    """The value of every ref that the updates replace; of every ref at all when they expire snapshots.

    A ref that another writer creates between the load and the commit cannot be named in a requirement; over third-party
    catalogs that gap remains (docs/writes.md).
    """
    for update in updates:
        if update["action"] in _REF_ACTIONS:
            yield _ref(metadata, update["ref-name"])
        elif update["action"] == "remove-snapshots":
            for name in metadata.refs:
                yield _ref(metadata, name)


def creation(metadata: TableMetadata) -> tuple[Json, ...]:
    """The updates that make an empty table of this first version, ids and location included."""
    schema, spec, order = metadata.raw["schemas"][0], metadata.raw["partition-specs"][0], metadata.raw["sort-orders"][0]
    found: list[Json] = [
        {"action": "assign-uuid", "uuid": metadata.uuid},
        {"action": "upgrade-format-version", "format-version": metadata.format_version},
        {"action": "add-schema", "schema": schema, "last-column-id": metadata.last_column_id},
        # -1: the one that was added last.
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": spec},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": order},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata.location},
    ]
    if metadata.properties:
        found.append({"action": "set-properties", "updates": dict(metadata.properties)})
    return tuple(found)


def layout_requirements(metadata: TableMetadata) -> tuple[Json, ...]:
    """Schema, partitioning and sort order all as they are in ``metadata``: a change of one depends on the others.

    *Without:* a column is dropped while another writer partitions by it, and both are committed.
    """
    return (_schema_id(metadata), _spec_id(metadata), _last_partition_id(metadata), _sort_order_id(metadata))


def must_not_exist() -> Json:
    return {"type": "assert-create"}


def table_uuid(metadata: TableMetadata) -> Json:
    return {"type": "assert-table-uuid", "uuid": metadata.uuid}


def merged(*groups: Iterable[Json]) -> tuple[Json, ...]:
    """All requirements of all groups, equal ones once. Two of one type with different values both stay."""
    found: list[Json] = []
    for requirement in (each for group in groups for each in group):
        if requirement not in found:
            found.append(requirement)
    return tuple(found)


def unmet(requirements: Iterable[Mapping[str, Any]], metadata: TableMetadata) -> tuple[Mapping[str, Any], ...]:
    """The requirements this metadata does not meet: while one is unmet, no copy of the request can be committed."""
    return tuple(each for each in requirements if not _met(each, metadata))


def is_fenced_off(requirements: Iterable[Mapping[str, Any]], metadata: TableMetadata) -> bool:
    """Whether one of them is unmet for good, so that no copy of the request still on its way will ever be committed.

    *Without:* a column is added and dropped again, and the schema again has the id that a late request requires.
    """
    return any(each["type"] not in _MAY_COME_BACK for each in unmet(requirements, metadata))


def _met(requirement: Mapping[str, Any], metadata: TableMetadata) -> bool:
    if requirement["type"] == "assert-ref-snapshot-id":
        return metadata.ref_snapshot_id(requirement["ref"]) == requirement.get("snapshot-id")
    if requirement["type"] == "assert-create":
        return False
    current = _CURRENT.get(requirement["type"])
    # An unknown requirement counts as met: it then proves nothing.
    return current is None or current(metadata) == dict(requirement)


def _ref(metadata: TableMetadata, name: str) -> Json:
    # null: the ref must not exist yet.
    return {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": metadata.ref_snapshot_id(name)}


def _schema_id(metadata: TableMetadata) -> Json:
    return {"type": "assert-current-schema-id", "current-schema-id": metadata.current_schema_id}


def _last_field_id(metadata: TableMetadata) -> Json:
    return {"type": "assert-last-assigned-field-id", "last-assigned-field-id": metadata.last_column_id}


def _spec_id(metadata: TableMetadata) -> Json:
    return {"type": "assert-default-spec-id", "default-spec-id": metadata.default_spec_id}


def _last_partition_id(metadata: TableMetadata) -> Json:
    last = metadata.raw.get("last-partition-id")
    return {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": last}


def _sort_order_id(metadata: TableMetadata) -> Json:
    return {"type": "assert-default-sort-order-id", "default-sort-order-id": metadata.default_sort_order_id}


_CURRENT: dict[str, Callable[[TableMetadata], Json]] = {
    "assert-table-uuid": table_uuid,
    "assert-current-schema-id": _schema_id,
    "assert-last-assigned-field-id": _last_field_id,
    "assert-default-spec-id": _spec_id,
    "assert-last-assigned-partition-id": _last_partition_id,
    "assert-default-sort-order-id": _sort_order_id,
}
