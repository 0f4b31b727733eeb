"""A table's metadata.json as a read-only view, and the pure function that applies updates to it.

The JSON itself is the value: the commit path parses and prints it with orjson and never builds PyIceberg's model of
all snapshots, whose cost grows with history. Schemas, specs and sort orders become PyIceberg objects when asked for.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import orjson
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from frazil.errors import CorruptMetadata, Unsupported
from frazil.model import Snapshot

if TYPE_CHECKING:
    from pyiceberg.table.name_mapping import NameMapping
    from pyiceberg.table.sorting import SortOrder

MAIN = "main"
READABLE_VERSIONS = (1, 2)
WRITTEN_VERSION = 2
UPGRADE = 'Upgrade it: table.set_properties({"format-version": "2"})'
"""The advice on a table of format version 1."""
_REQUIRED = ("table-uuid", "location", "last-updated-ms", "last-column-id")
_GZIP_MAGIC = b"\x1f\x8b"
_SNAPSHOTS = b'"snapshots":['
_END = b"]}"
_WORTH_KEEPING = 100
"""Snapshots; fewer are parsed faster than they are compared."""
_NEWEST = 20


class TableMetadata:
    """One metadata.json. Treat ``raw`` as frozen: other heads share parts of it."""

    def __init__(self, raw: Mapping[str, Any], snapshots_text: bytes = b"") -> None:
        self.raw = raw
        self._snapshots_text = snapshots_text
        """The snapshots as the file had them, without the brackets around them; empty: not kept."""

    @staticmethod
    def parse(data: bytes, location: str, before: TableMetadata | None = None) -> TableMetadata:
        """Parse a file's bytes. Raises CorruptMetadata, and Unsupported for an unknown format version.

        ``before``: an earlier version, with which this one probably shares most of its snapshots.
        """
        if data[:2] == _GZIP_MAGIC:
            data = gzip.decompress(data)
        try:
            raw, text = _parsed_after(data, before) or (orjson.loads(data), b"")
        except orjson.JSONDecodeError as error:
            raise CorruptMetadata(
                f"The metadata file {location} is not valid JSON", evidence=str(error), advice=_RESTORE
            ) from error
        version = raw.get("format-version") if isinstance(raw, dict) else None
        if version is None or "location" not in raw:
            raise CorruptMetadata(f"The file {location} is JSON, but not a table's metadata", advice=_RESTORE)
        if version not in READABLE_VERSIONS:
            raise Unsupported(
                f"The table at {raw.get('location', location)} has Iceberg format version {version}",
                advice="This release reads and writes format version 2 (and reads 1)",
            )
        missing = [key for key in _REQUIRED if key not in raw and not (version == 1 and key == "table-uuid")]
        if missing:
            raise CorruptMetadata(f"The metadata file {location} lacks {', '.join(missing)}", advice=_RESTORE)
        return TableMetadata(raw, text or _snapshots_in(data, raw))

    def to_json(self) -> bytes:
        """The JSON of the file. Snapshots come last, so that a reader of an earlier version parses only new ones."""
        rest = {key: value for key, value in self.raw.items() if key != "snapshots"}
        return orjson.dumps({**rest, "snapshots": self.raw.get("snapshots") or []})

    @property
    def size(self) -> int:
        """About how many bytes of JSON this is, without printing it."""
        logs = len(self.raw.get("snapshot-log") or ()) + len(self.raw.get("metadata-log") or ())
        return 4_000 + 700 * len(self.raw.get("snapshots") or ()) + 120 * logs

    @property
    def uuid(self) -> str:
        return str(self.raw.get("table-uuid", ""))

    @property
    def location(self) -> str:
        return str(self.raw["location"]).rstrip("/")

    @property
    def format_version(self) -> int:
        return int(self.raw["format-version"])

    @property
    def last_sequence_number(self) -> int:
        return int(self.raw.get("last-sequence-number", 0))

    @property
    def last_updated_ms(self) -> int:
        return int(self.raw["last-updated-ms"])

    @property
    def last_column_id(self) -> int:
        return int(self.raw["last-column-id"])

    @property
    def properties(self) -> Mapping[str, str]:
        return self.raw.get("properties") or {}

    # Schemas, specs, orders

    @property
    def current_schema_id(self) -> int:
        return int(self.raw.get("current-schema-id", self.raw.get("schema", {}).get("schema-id", 0)))

    @cached_property
    def _schemas(self) -> dict[int, Mapping[str, Any]]:
        found = self.raw.get("schemas") or [self.raw["schema"]]
        return {int(schema.get("schema-id", 0)): schema for schema in found}

    def schema(self, schema_id: int | None = None) -> Schema:
        """The current schema, or the one with this id."""
        return _schema(orjson.dumps(self._schemas[self.current_schema_id if schema_id is None else schema_id]))

    def schemas(self) -> dict[int, Schema]:
        return {schema_id: self.schema(schema_id) for schema_id in self._schemas}

    @property
    def default_spec_id(self) -> int:
        return int(self.raw.get("default-spec-id", 0))

    @cached_property
    def _specs(self) -> dict[int, Mapping[str, Any]]:
        specs = self.raw.get("partition-specs")
        if specs is None:
            specs = [{"spec-id": 0, "fields": self.raw.get("partition-spec", [])}]
        return {int(spec["spec-id"]): spec for spec in specs}

    def spec(self, spec_id: int | None = None) -> PartitionSpec:
        """The default partition spec, or the one with this id."""
        return _spec(orjson.dumps(self._specs[self.default_spec_id if spec_id is None else spec_id]))

    def specs(self) -> dict[int, PartitionSpec]:
        return {spec_id: self.spec(spec_id) for spec_id in self._specs}

    def spec_schema(self, spec_id: int) -> Schema:
        """A schema with every source column of a spec, one of which may since have been dropped."""
        sources = {field.source_id for field in self.spec(spec_id).fields}
        newest_first = (self.current_schema_id, *sorted(self._schemas, reverse=True))
        for schema_id in newest_first:
            if sources <= self.schema(schema_id).field_ids:
                return self.schema(schema_id)
        raise CorruptMetadata(f"No schema of the table at {self.location} has all the source columns of spec {spec_id}")

    @property
    def metadata_folder(self) -> str:
        """Where metadata files, manifest lists and manifests go."""
        return str(self.properties.get("write.metadata.path") or f"{self.location}/metadata").rstrip("/")

    @property
    def default_sort_order_id(self) -> int:
        return int(self.raw.get("default-sort-order-id", 0))

    def sort_order(self) -> SortOrder:
        from pyiceberg.table.sorting import SortOrder

        for order in self.raw.get("sort-orders") or ():
            if order["order-id"] == self.default_sort_order_id:
                return SortOrder.model_validate(order)
        return SortOrder(order_id=0)

    @cached_property
    def name_mapping(self) -> NameMapping | None:
        """How to read files that carry no field ids (``schema.name-mapping.default``)."""
        text = self.properties.get("schema.name-mapping.default")
        if not text:
            return None
        from pyiceberg.table.name_mapping import parse_mapping_from_json

        try:
            return parse_mapping_from_json(text)
        except ValueError as error:
            raise CorruptMetadata(
                "The table property schema.name-mapping.default is not a name mapping",
                evidence=str(error),
                advice="Set it right with set_properties(), or remove it with remove_properties()",
            ) from error

    # Snapshots and refs

    @cached_property
    def _snapshots(self) -> dict[int, Mapping[str, Any]]:
        return {snapshot["snapshot-id"]: snapshot for snapshot in self.raw.get("snapshots") or ()}

    def _raw_snapshot(self, snapshot_id: int) -> Mapping[str, Any] | None:
        # Nearly always one of the newest is requested, and indexing all of them costs more than a short scan.
        kept = self.raw.get("snapshots") or ()
        for snapshot in reversed(kept[-_NEWEST:]):
            if snapshot["snapshot-id"] == snapshot_id:
                found: Mapping[str, Any] = snapshot
                return found
        return self._snapshots.get(snapshot_id) if len(kept) > _NEWEST else None

    def has_snapshot(self, snapshot_id: int) -> bool:
        return self._raw_snapshot(snapshot_id) is not None

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        """The snapshot with this id, or None if it never existed or has expired."""
        raw = self._raw_snapshot(snapshot_id)
        return None if raw is None else _snapshot(raw)

    def with_snapshot(self, snapshot: Snapshot) -> TableMetadata:
        """The same table with an expired snapshot added back. For reading history only: never write it."""
        again = {
            "snapshot-id": snapshot.snapshot_id,
            "parent-snapshot-id": snapshot.parent_snapshot_id,
            "sequence-number": snapshot.sequence_number,
            "timestamp-ms": snapshot.timestamp_ms,
            "manifest-list": snapshot.manifest_list,
            "summary": snapshot.summary,
            "schema-id": snapshot.schema_id,
        }
        return TableMetadata({**self.raw, "snapshots": [*(self.raw.get("snapshots") or ()), again]})

    def snapshots(self) -> Iterator[Snapshot]:
        """All snapshots kept, of every branch, in the order of the file."""
        return (_snapshot(raw) for raw in self.raw.get("snapshots") or ())

    @cached_property
    def refs(self) -> Mapping[str, Mapping[str, Any]]:
        """Branches and tags by name; ``main`` is there as soon as the table has a snapshot."""
        refs = dict(self.raw.get("refs") or {})
        current = self.raw.get("current-snapshot-id")
        if MAIN not in refs and current is not None and current != -1:
            refs[MAIN] = {"snapshot-id": current, "type": "branch"}
        return refs

    def ref_snapshot_id(self, ref: str = MAIN) -> int | None:
        found = self.refs.get(ref)
        return None if found is None else int(found["snapshot-id"])

    def head_snapshot(self, ref: str = MAIN) -> Snapshot | None:
        """The newest snapshot of a branch, or the one a tag names; None while there is none."""
        snapshot_id = self.ref_snapshot_id(ref)
        return None if snapshot_id is None else self.snapshot(snapshot_id)

    def ancestors(self, snapshot_id: int | None) -> Iterator[Snapshot]:
        """A snapshot, its parent, and so on, as far as the metadata has them."""
        while snapshot_id is not None and (found := self.snapshot(snapshot_id)) is not None:
            yield found
            snapshot_id = found.parent_snapshot_id

    def is_ancestor(self, snapshot_id: int, of: int | None) -> bool:
        return any(each.snapshot_id == snapshot_id for each in self.ancestors(of))

    def snapshot_log(self) -> list[tuple[int, int]]:
        """(time in ms, snapshot id) each time ``main`` moved, oldest first."""
        return [(entry["timestamp-ms"], entry["snapshot-id"]) for entry in self.raw.get("snapshot-log") or ()]


def _parsed_after(data: bytes, before: TableMetadata | None) -> tuple[Any, bytes] | None:
    """The JSON of ``data`` and the text of its snapshots, of which only those are parsed that came after ``before``.

    None: it does not begin with the same snapshots, or does not end with them, as all files that Frazil writes do.
    A table may keep thousands of snapshots and add a few per version, and every writer reads every version.
    """
    start = data.find(_SNAPSHOTS) + len(_SNAPSHOTS)
    if before is None or not before._snapshots_text or not data.startswith(before._snapshots_text, start):
        return None
    after, end = start + len(before._snapshots_text), len(data) - len(_END)
    separator = data[after : min(after + 1, end)]
    if separator not in (b"", b",") or not data.endswith(_END):
        return None
    try:
        raw = orjson.loads(data[:start] + _END)
        new = orjson.loads(b"[" + data[after + len(separator) : end] + b"]")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(raw, dict) or raw.get("snapshots") != []:
        return None
    raw["snapshots"] = [*before.raw["snapshots"], *new]
    return raw, data[start:end]


def _snapshots_in(data: bytes, raw: Mapping[str, Any]) -> bytes:
    """The text of a long list of snapshots, if the file ends with it."""
    kept = raw.get("snapshots") or ()
    if len(kept) < _WORTH_KEEPING or not data.endswith(_END):
        return b""
    text = orjson.dumps(kept)[1:-1]
    is_last = data.endswith(text, 0, -len(_END)) and data.endswith(_SNAPSHOTS, 0, -len(_END) - len(text))
    return text if is_last else b""


_RESTORE = (
    "Register the table again from an older file of its metadata folder: "
    "frazil.connect(...).register_table(name, metadata_location)"
)


@lru_cache(maxsize=512)
def _schema(data: bytes) -> Schema:
    return Schema.model_validate_json(data)


@lru_cache(maxsize=512)
def _spec(data: bytes) -> PartitionSpec:
    return PartitionSpec.model_validate_json(data)


def _snapshot(raw: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        snapshot_id=raw["snapshot-id"],
        parent_snapshot_id=raw.get("parent-snapshot-id"),
        sequence_number=raw.get("sequence-number") or 0,
        timestamp_ms=raw["timestamp-ms"],
        manifest_list=raw.get("manifest-list"),
        summary=raw.get("summary") or {},
        schema_id=raw.get("schema-id"),
    )
