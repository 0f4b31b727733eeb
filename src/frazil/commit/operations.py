"""What a writer wants, as a value. An operation never changes while it is retried; attempts are built from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import orjson
import pyarrow as pa

from frazil.format.metadata import MAIN
from frazil.model import DataFile


@dataclass(frozen=True, slots=True)
class Append:
    """Add files. They were staged under ``schema_id`` and ``spec_id`` of the table ``table_uuid``."""

    table_uuid: str
    files: tuple[DataFile, ...]
    schema_id: int
    spec_id: int
    written_ids: Mapping[int, str]
    """Field id → name at staging time, for every column the files hold, nested ones included."""
    nullable_ids: frozenset[int] = frozenset()
    """Columns that were optional at staging time and in which the files may hold a null."""
    branch: str = MAIN
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    name: str = "append"

    @property
    def rows(self) -> int:
        return sum(file.record_count for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.file_size_in_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class SchemaUnion:
    """Make the schema hold every column of ``incoming``, matched by name."""

    incoming: pa.Schema


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """Set and remove table properties. Different keys commute; on one key the last writer wins."""

    updates: Mapping[str, str] = field(default_factory=dict)
    removals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NewRef:
    """Create a branch or a tag at a snapshot; the name must be free."""

    ref: str
    kind: Literal["branch", "tag"]
    snapshot_id: int | None = None
    """None: the head of main when the commit lands."""


Intent = SchemaUnion | PropertyChange | NewRef


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """A change without rows, kept as an intent so that each attempt replays it on the head it finds."""

    table_uuid: str
    intent: Intent
    name: str = "metadata"


Operation = Append | MetadataChange


def digest(verb: str, **parameters: object) -> str:
    """Names an operation, so that one commit id means one operation. Values are hashed: they may be personal."""
    text = orjson.dumps([verb, parameters], option=orjson.OPT_SORT_KEYS, default=str)
    return hashlib.sha256(text).hexdigest()[:16]
