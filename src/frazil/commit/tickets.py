"""Operations as they travel in a catalog's queue: only those that mean the same whoever commits them, on any head."""

from __future__ import annotations

import binascii
from typing import Any

import orjson

from frazil.catalog.base import Ticket
from frazil.commit.operations import Base, Identity, Kind, Operation, RowCounts, Write
from frazil.commit.summaries import CannotWrite, file_from_json, file_to_json
from frazil.model import DataFile, Isolation

VERSION = 1
MOST_BYTES = 256 << 10
"""Larger operations are committed by their own writers, who take the others along."""


class NotUnderstood(Exception):
    """A ticket that this release cannot read, or that names what may not travel."""


def encode(write: Write, identity: Identity) -> bytes | None:
    """The body of a ticket; None: this operation is not for others to commit."""
    if not write.only_adds:
        return None
    raw = {
        "kind": write.kind,
        "base": [write.base.snapshot_id, write.base.sequence_number],
        "branch": write.branch,
        "isolation": write.isolation,
        "on_deleted": write.on_deleted,
        "schema": write.schema_id,
        "columns": list(write.written_ids.items()),
        "nullable": sorted(write.nullable_ids),
        "keys": write.keys,
        "key_spec": write.key_spec_id,
        "rows": [write.rows.inserted, write.rows.updated, write.rows.deleted],
        "since": write.staged_since_ms,
        "own": write.own_snapshot,
        "properties": dict(write.snapshot_properties),
        "digest": identity.digest,
        "given": identity.given,
    }
    try:
        raw["added"] = [_file(each) for each in write.added]
        raw["deletes"] = [_file(each) for each in write.deletes]
        body = orjson.dumps(raw)
    except (CannotWrite, TypeError):
        return None
    return body if len(body) <= MOST_BYTES else None


def decode(ticket: Ticket) -> tuple[Write, Identity]:
    """What ``encode`` was given. Raises NotUnderstood, whatever is wrong: its own writer knows better (rule P4)."""
    if ticket.version != VERSION:
        raise NotUnderstood(f"version {ticket.version}")
    try:
        return _decode(ticket, orjson.loads(ticket.body))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        raise NotUnderstood(type(error).__name__) from error


def _decode(ticket: Ticket, raw: dict[str, Any]) -> tuple[Write, Identity]:
    write = Write(
        kind=Kind(raw["kind"]),
        table_uuid=ticket.table_uuid,
        base=Base(*raw["base"]),
        branch=raw["branch"],
        isolation=Isolation(raw["isolation"]),
        added=tuple(map(_file_of, raw["added"])),
        deletes=tuple(map(_file_of, raw["deletes"])),
        keys=tuple(raw["keys"]),
        key_spec_id=raw["key_spec"],
        on_deleted=raw["on_deleted"],
        schema_id=raw["schema"],
        written_ids=dict(raw["columns"]),
        nullable_ids=frozenset(raw["nullable"]),
        staged_since_ms=raw["since"],
        rows=RowCounts(*raw["rows"]),
        snapshot_properties=raw["properties"],
        own_snapshot=raw["own"],
    )
    return write, Identity(ticket.commit_id, raw["digest"], raw["given"])


def _file(file: DataFile) -> list[Any]:
    """All of it: unlike a summary, this goes into a manifest."""
    secret = None if file.key_metadata is None else binascii.b2a_base64(file.key_metadata, newline=False).decode()
    rest = [list(file.column_sizes.items()), file.split_offsets, secret, file.sort_order_id]
    return [file_to_json(file), rest]


def _file_of(raw: list[Any]) -> DataFile:
    known, (sizes, offsets, secret, order) = raw
    return file_from_json(
        *known,
        column_sizes=dict(sizes),
        split_offsets=tuple(offsets),
        key_metadata=None if secret is None else binascii.a2b_base64(secret),
        sort_order_id=order,
    )


def travels(operations: tuple[Operation, ...]) -> Write | None:
    """The one operation that others may commit; None: these are for their own writer."""
    if len(operations) != 1 or not isinstance(operations[0], Write):
        return None
    return operations[0] if operations[0].only_adds else None
