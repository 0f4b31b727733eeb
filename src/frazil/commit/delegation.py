"""Serializes operations for a catalog's queue: those that mean the same on any head, whichever writer commits them."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from frazil.catalog.base import QueuedCommit
from frazil.commit.intents import PropertyChange, SinkMark
from frazil.commit.operations import (
    Base,
    Bundle,
    Identity,
    Kind,
    ManifestMerge,
    MetadataChange,
    Operation,
    RowCounts,
    Write,
)
from frazil.commit.summaries import CannotWrite, file_from_json, file_to_json, origin_from_json, origin_to_json
from frazil.model import DataFile, FieldSummary, Isolation, Manifest

VERSION = 2
MOST_BYTES = 256 << 10
MOST_FILES = 100
"""A ticket lists at most this many files. An operation with more is queued with manifests that list its files."""


class UnreadableTicket(Exception):
    """A ticket that this release cannot read, or that contains an operation which cannot be delegated."""


@dataclass(frozen=True, slots=True, eq=False)
class DelegatedCommit:
    """A commit that another writer may make: added rows, and changes of table properties."""

    write: Write | None
    changes: tuple[MetadataChange, ...] = ()


MakeBundles = Callable[[], tuple[Bundle, ...]]
"""Makes manifests of an operation's files."""


def delegable(operations: Sequence[Operation]) -> DelegatedCommit | None:
    """The operations as a delegated commit; None: only their own writer can commit them."""
    writes = [each for each in operations if isinstance(each, Write)]
    changes = tuple(each for each in operations if isinstance(each, MetadataChange))
    if len(writes) > 1 or not all(each.only_adds for each in writes):
        return None
    if not all(isinstance(each.intent, PropertyChange | SinkMark) for each in changes):
        return None
    return DelegatedCommit(writes[0] if writes else None, changes)


def encode(delegated: DelegatedCommit, identity: Identity, make_bundles: MakeBundles) -> bytes | None:
    """The body of a ticket; None: it is too large, or JSON cannot represent one of its values."""
    # Leaders of earlier versions ignore the origin.
    origin = origin_to_json(identity.origin)
    raw: dict[str, Any] = {"digest": identity.digest, "given": identity.given, "origin": origin}
    write = delegated.write
    try:
        raw["changes"] = [_change(each) for each in delegated.changes]
        if write is not None and write.new_files > MOST_FILES:
            write = replace(write, added=(), deletes=(), bundles=make_bundles())
        body = orjson.dumps({**raw, "write": None if write is None else _write(write)})
        if len(body) > MOST_BYTES and write is not None and not write.bundles:
            write = replace(write, added=(), deletes=(), bundles=make_bundles())
            body = orjson.dumps({**raw, "write": _write(write)})
    except (CannotWrite, TypeError):
        return None
    return body if len(body) <= MOST_BYTES else None


def decode(ticket: QueuedCommit) -> tuple[DelegatedCommit, Identity]:
    """The delegated commit and identity in a ticket. Raises UnreadableTicket, on which the leader returns the ticket to
    its writer (rule P4).
    """
    if ticket.version != VERSION:
        raise UnreadableTicket(f"version {ticket.version}")
    try:
        raw = orjson.loads(ticket.body)
        changes = tuple(_change_of(ticket.table_uuid, *each) for each in raw["changes"])
        write = None if raw["write"] is None else _write_of(ticket, raw["write"])
        origin = origin_from_json(raw.get("origin"))
        return DelegatedCommit(write, changes), Identity(ticket.commit_id, raw["digest"], raw["given"], origin)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        raise UnreadableTicket(type(error).__name__) from error


# Changes without rows


def _change(change: MetadataChange) -> list[Any]:
    match change.intent:
        case PropertyChange(updates, removals):
            return ["properties", change.name, dict(updates), list(removals)]
        case SinkMark(key, before, after):
            return ["sink", change.name, key, before, after]
        case _:
            raise CannotWrite(type(change.intent).__name__)


def _change_of(table_uuid: str, what: str, name: str, *values: Any) -> MetadataChange:
    if what == "properties":
        updates, removals = values
        return MetadataChange(table_uuid, PropertyChange(dict(updates), tuple(removals)), name)
    if what == "sink":
        return MetadataChange(table_uuid, SinkMark(*values), name)
    raise UnreadableTicket(what)


# Rows


def _write(write: Write) -> dict[str, Any]:
    return {
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
        "added": [_file(each) for each in write.added],
        "deletes": [_file(each) for each in write.deletes],
        "bundles": [[each.size_in_bytes, *_manifest(each.manifest)] for each in write.bundles],
        "merges": [[each.parts, *_manifest(_only(each.manifests))] for each in write.merges],
    }


def _write_of(ticket: QueuedCommit, raw: dict[str, Any]) -> Write:
    return Write(
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
        bundles=tuple(Bundle(_manifest_of(*rest), size) for size, *rest in raw["bundles"]),
        merges=tuple(ManifestMerge(tuple(parts), (_manifest_of(*rest),)) for parts, *rest in raw["merges"]),
    )


def _only(manifests: Sequence[Manifest]) -> Manifest:
    """A ticket has one manifest for each merge, as earlier versions read it."""
    if len(manifests) != 1:
        raise CannotWrite
    return manifests[0]


def _file(file: DataFile) -> list[Any]:
    """Every field, unlike in a summary: the leader writes the file into a manifest."""
    rest = [list(file.column_sizes.items()), file.split_offsets, _text(file.key_metadata), file.sort_order_id]
    return [file_to_json(file), rest]


def _file_of(raw: list[Any]) -> DataFile:
    known, (sizes, offsets, secret, order) = raw
    return file_from_json(
        *known,
        column_sizes=dict(sizes),
        split_offsets=tuple(offsets),
        key_metadata=_bytes(secret),
        sort_order_id=order,
    )


def _manifest(manifest: Manifest) -> list[Any]:
    partitions = [
        [each.contains_null, each.contains_nan, _text(each.lower_bound), _text(each.upper_bound)]
        for each in manifest.partitions
    ]
    rest = asdict(replace(manifest, partitions=(), key_metadata=None))
    return [rest, partitions, _text(manifest.key_metadata)]


def _manifest_of(rest: dict[str, Any], partitions: list[list[Any]], secret: str | None) -> Manifest:
    ranges = tuple(FieldSummary(null, nan, _bytes(low), _bytes(high)) for null, nan, low, high in partitions)
    return replace(Manifest(**rest), partitions=ranges, key_metadata=_bytes(secret))


def _text(value: bytes | None) -> str | None:
    return None if value is None else binascii.b2a_base64(value, newline=False).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else binascii.a2b_base64(text)
