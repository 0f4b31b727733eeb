"""Checks: pure functions of my operation and the head it would land on. They return evidence and never raise."""

from __future__ import annotations

import enum

from frazil.commit.operations import Append, MetadataChange, Operation
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Conflict


class Check(enum.StrEnum):
    SAME_TABLE = "same table"
    SCHEMA_COMPATIBLE = "schema still compatible"
    SPEC_LISTED = "partition spec still listed"
    BRANCH_EXISTS = "branch still exists"


REQUIRED: dict[type, tuple[Check, ...]] = {
    Append: (Check.SAME_TABLE, Check.BRANCH_EXISTS, Check.SCHEMA_COMPATIBLE, Check.SPEC_LISTED),
    MetadataChange: (Check.SAME_TABLE,),
}


def conflicts(operation: Operation, head: TableMetadata) -> tuple[Conflict, ...]:
    """Everything that keeps this operation from landing on this head."""
    found = (conflict(check, operation, head) for check in REQUIRED[type(operation)])
    return tuple(each for each in found if each is not None)


def conflict(check: Check, operation: Operation, head: TableMetadata) -> Conflict | None:
    """One check's verdict."""
    if check is Check.SAME_TABLE:
        return _same_table(operation, head)
    assert isinstance(operation, Append)
    if check is Check.BRANCH_EXISTS:
        return _branch_exists(operation, head)
    if check is Check.SCHEMA_COMPATIBLE:
        return _schema_compatible(operation, head)
    return _spec_listed(operation, head)


def _same_table(operation: Operation, head: TableMetadata) -> Conflict | None:
    if operation.table_uuid == head.uuid:
        return None
    return Conflict(
        Check.SAME_TABLE,
        f"the table was dropped and another one took its name (uuid {head.uuid}, not {operation.table_uuid})",
        advice="Open the new table and write to it, if that is what you want",
    )


def _branch_exists(operation: Append, head: TableMetadata) -> Conflict | None:
    if operation.branch == MAIN or operation.branch in head.refs:
        return None
    return Conflict(
        Check.BRANCH_EXISTS,
        f"the branch {operation.branch!r} does not exist",
        advice="Create it with create_branch()",
    )


def _schema_compatible(operation: Append, head: TableMetadata) -> Conflict | None:
    schema = head.schema()
    dropped = [name for field_id, name in operation.written_ids.items() if field_id not in schema.field_ids]
    if dropped:
        return Conflict(
            Check.SCHEMA_COMPATIBLE,
            f"the rows hold values of {', '.join(sorted(dropped))}, dropped from the table meanwhile",
            advice="Append again without them; their values would have become invisible",
        )
    lacking = [field.name for field in schema.fields if field.required and field.field_id not in operation.written_ids]
    if lacking:
        return Conflict(
            Check.SCHEMA_COMPATIBLE,
            f"the table has meanwhile got the required {', '.join(lacking)}, which the rows lack",
            advice="Append again with values for it",
        )
    filled = [
        str(schema.find_column_name(field_id))
        for field_id in sorted(operation.nullable_ids & schema.field_ids)
        if schema.find_field(field_id).required
    ]
    if filled:
        return Conflict(
            Check.SCHEMA_COMPATIBLE,
            f"{', '.join(filled)} may not be null any more, and the rows hold nulls there",
            advice="Append again with values for it",
        )
    return None


def _spec_listed(operation: Append, head: TableMetadata) -> Conflict | None:
    if operation.spec_id in head.specs():
        return None
    return Conflict(
        Check.SPEC_LISTED,
        f"the files were staged under partition spec {operation.spec_id}, which the table no longer lists",
        advice="Append again; the rows are then laid out by a current spec",
    )
