"""Manifests and manifest lists (Iceberg specification, "Manifests"): Avro in and out, by fastavro.

A manifest written here may be reused by every later attempt of its commit: ADDED entries carry neither snapshot id nor
sequence number and inherit both from the manifest list that names them (rule P14).
"""

from __future__ import annotations

import datetime as dt
import io
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast

import fastavro
import orjson
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.decimal import decimal_required_bytes

from frazil.errors import CorruptMetadata, FrazilError, StorageError, Unsupported
from frazil.format._avro_entries import ById, Unusual, read_records
from frazil.format._avro_writer import EntryEncoder, write_container
from frazil.format.storage import Storage
from frazil.model import Content, DataFile, Entry, FieldSummary, Manifest, Status

Json = dict[str, Any]
DATA_MANIFEST, DELETE_MANIFEST = 0, 1
_CODEC = "deflate"
# The approximate size of an entry of a manifest list.
_LINE_BYTES = 300
_STATISTICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


@dataclass(frozen=True, slots=True)
class NewManifest:
    """A manifest on disk that no manifest list refers to yet; ``named_by`` returns its entry in such a list."""

    manifest: Manifest

    def named_by(self, snapshot_id: int, sequence_number: int) -> Manifest:
        lowest = self.manifest.min_sequence_number
        return replace(
            self.manifest,
            added_snapshot_id=snapshot_id,
            sequence_number=sequence_number,
            min_sequence_number=sequence_number if lowest == _UNASSIGNED else lowest,
        )


_UNASSIGNED = -1

# fastavro knows uuids as text only; Iceberg keeps them as 16 bytes. This table is its documented way to add a type.
fastavro.read.LOGICAL_READERS["fixed-uuid"] = lambda value, *_: uuid.UUID(bytes=value)


# Writing


def write_manifest(
    storage: Storage,
    path: str,
    entries: Sequence[Entry],
    *,
    spec: PartitionSpec,
    schema: Schema,
    content: int = DATA_MANIFEST,
    sync: bool = True,
) -> NewManifest:
    """Write one manifest of one spec (rule P15), durably. ``sync``: as for ``Storage.write``."""
    data = _encoded(entries, spec, schema, content)
    storage.write(path, data, sync=sync)
    return NewManifest(_describe(path, len(data), entries, spec, schema, content))


def write_manifests(
    storage: Storage,
    new_path: Callable[[], str],
    entries: Sequence[Entry],
    *,
    target: int,
    spec: PartitionSpec,
    schema: Schema,
    content: int = DATA_MANIFEST,
    sync: bool = True,
) -> list[tuple[NewManifest, Sequence[Entry]]]:
    """Write entries of one spec into manifests of about ``target`` bytes, durably and in order; each with its entries.

    ``sync``: as for ``Storage.write``.
    """
    data = _encoded(entries, spec, schema, content)
    count = min(len(entries), -(-len(data) // target))
    if count <= 1:
        path = new_path()
        storage.write(path, data, sync=sync)
        return [(NewManifest(_describe(path, len(data), entries, spec, schema, content)), entries)]
    made = []
    for number in range(count):
        part = entries[len(entries) * number // count : len(entries) * (number + 1) // count]
        new = write_manifest(storage, new_path(), part, spec=spec, schema=schema, content=content, sync=sync)
        made.append((new, part))
    return made


def _encoded(entries: Sequence[Entry], spec: PartitionSpec, schema: Schema, content: int) -> bytes:
    schema_json, spec_json = schema.model_dump_json(), spec.model_dump_json()
    avro = _manifest_schema(spec_json, schema_json)
    header = {
        "schema": schema_json,
        "partition-spec": orjson.dumps(orjson.loads(spec_json)["fields"]).decode(),
        "partition-spec-id": str(spec.spec_id),
        "format-version": "2",
        "content": "deletes" if content == DELETE_MANIFEST else "data",
    }
    encode = EntryEncoder([field.field_type for field in spec.partition_type(schema).fields])
    return write_container(avro, header, map(encode, entries))


def write_manifest_list(
    storage: Storage,
    path: str,
    manifests: Iterable[Manifest],
    *,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    sync: bool = True,
) -> None:
    """Write the list of a snapshot's manifests, durably. ``sync``: as for ``Storage.write``."""
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_snapshot_id is None else str(parent_snapshot_id),
        "sequence-number": str(sequence_number),
        "format-version": "2",
    }
    named = tuple(manifests)
    out = io.BytesIO()
    fastavro.writer(out, _LIST_SCHEMA, map(_manifest_record, named), codec=_CODEC, metadata=header)
    storage.write(path, out.getvalue(), sync=sync)
    storage.parsed.put(path, named, _LINE_BYTES * len(named))


def _describe(
    path: str, length: int, entries: Sequence[Entry], spec: PartitionSpec, schema: Schema, content: int
) -> Manifest:
    counts = dict.fromkeys(Status, 0)
    rows = dict.fromkeys(Status, 0)
    lowest: int | None = None
    for entry in entries:
        counts[entry.status] += 1
        rows[entry.status] += entry.file.record_count
        if entry.status != Status.DELETED and entry.sequence_number is not None:
            lowest = entry.sequence_number if lowest is None else min(lowest, entry.sequence_number)
    return Manifest(
        manifest_path=path,
        manifest_length=length,
        partition_spec_id=spec.spec_id,
        content=content,
        sequence_number=_UNASSIGNED,
        # Entries that inherit are newer than any explicit number in the same manifest.
        min_sequence_number=_UNASSIGNED if lowest is None else lowest,
        added_snapshot_id=_UNASSIGNED,
        added_files_count=counts[Status.ADDED],
        existing_files_count=counts[Status.EXISTING],
        deleted_files_count=counts[Status.DELETED],
        added_rows_count=rows[Status.ADDED],
        existing_rows_count=rows[Status.EXISTING],
        deleted_rows_count=rows[Status.DELETED],
        partitions=summarize_partitions([entry.file.partition for entry in entries], spec, schema),
    )


def with_counts(storage: Storage, manifest: Manifest, spec: PartitionSpec, schema: Schema) -> Manifest:
    """The same manifest with the counts and ranges that a list of format v1 may leave out, and v2 must not."""
    unknown = UNKNOWN_COUNT in (manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count)
    if not unknown and (manifest.partitions or not spec.fields):
        return manifest
    entries = read_manifest(storage, manifest, live_only=False, stats=frozenset())
    found = _describe(manifest.manifest_path, manifest.manifest_length, entries, spec, schema, manifest.content)
    return replace(
        found,
        sequence_number=manifest.sequence_number,
        min_sequence_number=manifest.min_sequence_number,
        added_snapshot_id=manifest.added_snapshot_id,
        key_metadata=manifest.key_metadata,
    )


def summarize_partitions(
    partitions: Sequence[tuple[Any, ...]], spec: PartitionSpec, schema: Schema
) -> tuple[FieldSummary, ...]:
    """The range of each partition field, for pruning whole manifests."""
    types = [field.field_type for field in spec.partition_type(schema).fields]
    return tuple(_summarize([partition[index] for partition in partitions], kind) for index, kind in enumerate(types))


def _summarize(values: Sequence[Any], kind: IcebergType) -> FieldSummary:
    nans = sum(1 for value in values if isinstance(value, float) and value != value)
    known = {value for value in values if value is not None and value == value}
    return FieldSummary(
        contains_null=any(value is None for value in values),
        contains_nan=nans > 0,
        lower_bound=to_bytes(kind, min(known, key=_order)) if known else None,  # type: ignore[arg-type]
        upper_bound=to_bytes(kind, max(known, key=_order)) if known else None,  # type: ignore[arg-type]
    )


def _order(value: Any) -> Any:
    # Iceberg compares uuids as unsigned bytes; Python's UUID does the same by its integer.
    return value.bytes if isinstance(value, uuid.UUID) else value


def _manifest_record(manifest: Manifest) -> Json:
    return {
        "manifest_path": manifest.manifest_path,
        "manifest_length": manifest.manifest_length,
        "partition_spec_id": manifest.partition_spec_id,
        "content": manifest.content,
        "sequence_number": manifest.sequence_number,
        "min_sequence_number": manifest.min_sequence_number,
        "added_snapshot_id": manifest.added_snapshot_id,
        "added_files_count": manifest.added_files_count,
        "existing_files_count": manifest.existing_files_count,
        "deleted_files_count": manifest.deleted_files_count,
        "added_rows_count": manifest.added_rows_count,
        "existing_rows_count": manifest.existing_rows_count,
        "deleted_rows_count": manifest.deleted_rows_count,
        "partitions": [
            {
                "contains_null": each.contains_null,
                "contains_nan": each.contains_nan,
                "lower_bound": each.lower_bound,
                "upper_bound": each.upper_bound,
            }
            for each in manifest.partitions
        ],
        "key_metadata": manifest.key_metadata,
    }


# Reading


def read_manifest_list(storage: Storage, path: str) -> tuple[Manifest, ...]:
    """The manifests of a snapshot. Lists of format v1 are read too: their sequence numbers are 0."""
    cached: tuple[Manifest, ...] | None = storage.parsed.get(path)
    if cached is None:
        data = _read_bytes(storage, path, "manifest list")
        cached = tuple(_to_manifest(record) for record in _decoded(data, path, "manifest list", None))
        storage.parsed.put(path, cached, _LINE_BYTES * len(cached))
    return cached


def snapshot_of_list(storage: Storage, path: str) -> int | None:
    """The snapshot that a manifest list was written for, by its header; None: its writer left it out."""
    data = _read_bytes(storage, path, "manifest list")
    try:
        text = fastavro.reader(io.BytesIO(data)).metadata.get("snapshot-id")
    except Exception as error:
        raise CorruptMetadata(f"The manifest list {path} is damaged", evidence=repr(error)) from error
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def read_manifest(
    storage: Storage, manifest: Manifest, *, live_only: bool = True, stats: frozenset[int] | None = None
) -> list[Entry]:
    """A manifest's entries with everything inherited filled in.

    ``stats`` names the columns whose statistics are wanted; None: all of them. Naming none skips their decoding.
    """
    return list(iter_manifest(storage, manifest, live_only=live_only, stats=stats))


def iter_manifest(
    storage: Storage, manifest: Manifest, *, live_only: bool = True, stats: frozenset[int] | None = None
) -> Iterator[Entry]:
    """The same, one by one: cheaper than a list where most entries are pruned at once."""
    data = _read_bytes(storage, manifest.manifest_path, "manifest")
    return _entries(data, manifest, live_only=live_only, stats=stats)


def read_manifest_with(storage: Storage, manifest: Manifest, paths: Collection[str]) -> list[Entry]:
    """Its live entries: with all statistics if one of these files is among them, otherwise without.

    The manifest is fetched once, and what is decoded twice is only what comes before the first of the files.
    """
    data = _read_bytes(storage, manifest.manifest_path, "manifest")
    found: list[Entry] = []
    for entry in _entries(data, manifest, live_only=True, stats=frozenset()):
        if entry.file.file_path in paths:
            return list(_entries(data, manifest, live_only=True, stats=None))
        found.append(entry)
    return found


def _entries(data: bytes, manifest: Manifest, *, live_only: bool, stats: frozenset[int] | None) -> Iterator[Entry]:
    path = manifest.manifest_path
    try:
        for record in _entry_records(data, path, stats):
            if not live_only or record["status"] != Status.DELETED:
                yield _to_entry(record, manifest, stats)
    except FrazilError:
        raise
    except Exception as error:
        raise CorruptMetadata(f"The manifest {path} is damaged", evidence=repr(error)) from error


def _entry_records(data: bytes, path: str, stats: frozenset[int] | None) -> Iterable[Json]:
    try:
        return read_records(data, stats)
    except Unusual:
        narrow = None if stats is None else _without_sizes if stats else _without_statistics
        return _decoded(data, path, "manifest", narrow)


def _read_bytes(storage: Storage, path: str, kind: str) -> bytes:
    try:
        return storage.read(path)
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise CorruptMetadata(f"The {kind} {path} cannot be read", evidence=error.problem) from error


def _decoded(data: bytes, path: str, kind: str, narrow: Callable[[Json], Json] | None) -> Iterable[Json]:
    try:
        reader = fastavro.reader(io.BytesIO(data))
        if narrow is not None:
            reader = fastavro.reader(io.BytesIO(data), reader_schema=narrow(cast("Json", reader.writer_schema)))
        return cast("list[Json]", list(reader))
    except FrazilError:
        raise
    except Exception as error:
        # fastavro raises many kinds for damaged bytes; each means the same to a reader of the table.
        raise CorruptMetadata(f"The {kind} {path} is damaged", evidence=repr(error)) from error


def _without_sizes(schema: Json) -> Json:
    return _narrowed(schema, ("column_sizes", "key_metadata"))


def _without_statistics(schema: Json) -> Json:
    return _narrowed(schema, ("column_sizes", "key_metadata", *_STATISTICS))


def _narrowed(schema: Json, unwanted: tuple[str, ...]) -> Json:
    fields = []
    for field in schema["fields"]:
        if field["name"] == "data_file":
            inner = [each for each in field["type"]["fields"] if each["name"] not in unwanted]
            field = {**field, "type": {**field["type"], "fields": inner}}
        fields.append(field)
    return {**schema, "fields": fields}


def _to_manifest(record: Json) -> Manifest:
    return Manifest(
        manifest_path=record["manifest_path"],
        manifest_length=record["manifest_length"],
        partition_spec_id=record["partition_spec_id"],
        content=record.get("content") or 0,
        sequence_number=record.get("sequence_number") or 0,
        min_sequence_number=record.get("min_sequence_number") or 0,
        added_snapshot_id=record["added_snapshot_id"],
        # Writers of v1 may leave counts out, and older ones call them "…_data_files_count".
        added_files_count=_count(record, "added", "files"),
        existing_files_count=_count(record, "existing", "files"),
        deleted_files_count=_count(record, "deleted", "files"),
        added_rows_count=_count(record, "added", "rows"),
        existing_rows_count=_count(record, "existing", "rows"),
        deleted_rows_count=_count(record, "deleted", "rows"),
        partitions=tuple(
            FieldSummary(
                each["contains_null"], each.get("contains_nan"), each.get("lower_bound"), each.get("upper_bound")
            )
            for each in record.get("partitions") or ()
        ),
        key_metadata=record.get("key_metadata"),
    )


def _count(record: Json, what: str, of: str) -> int:
    found = record.get(f"{what}_{of}_count")
    if found is None and of == "files":
        found = record.get(f"{what}_data_files_count")
    # A manifest with an unknown count must not be skipped.
    return UNKNOWN_COUNT if found is None else int(found)


UNKNOWN_COUNT = -1


# Looking up is several times faster than calling an enum, and there may be 100,000 entries.
_STATUSES = tuple(Status)
_CONTENTS = tuple(Content)


def _to_entry(record: Json, manifest: Manifest, stats: frozenset[int] | None) -> Entry:
    status = _STATUSES[record["status"]]
    inherits = status == Status.ADDED or manifest.sequence_number == 0
    number, file_number = record.get("sequence_number"), record.get("file_sequence_number")
    snapshot_id = record.get("snapshot_id")
    return Entry(
        status=status,
        file=_to_file(record["data_file"], manifest.partition_spec_id, stats),
        snapshot_id=manifest.added_snapshot_id if snapshot_id is None else snapshot_id,
        sequence_number=manifest.sequence_number if number is None and inherits else number,
        file_sequence_number=manifest.sequence_number if file_number is None and inherits else file_number,
    )


def _to_file(raw: Json, spec_id: int, stats: frozenset[int] | None) -> DataFile:
    content = _CONTENTS[raw.get("content") or 0]
    if raw.get("content_offset") is not None:
        raise Unsupported(f"The file {raw['file_path']} holds a deletion vector, which format version 2 does not have")
    return DataFile(
        file_path=raw["file_path"],
        record_count=raw["record_count"],
        file_size_in_bytes=raw["file_size_in_bytes"],
        spec_id=spec_id,
        partition=tuple(map(_internal, raw["partition"].values())) if raw["partition"] else (),
        content=content,
        file_format=raw["file_format"].upper(),
        column_sizes=_mapping(raw.get("column_sizes"), stats),
        value_counts=_mapping(raw.get("value_counts"), stats),
        null_value_counts=_mapping(raw.get("null_value_counts"), stats),
        nan_value_counts=_mapping(raw.get("nan_value_counts"), stats),
        lower_bounds=_mapping(raw.get("lower_bounds"), stats),
        upper_bounds=_mapping(raw.get("upper_bounds"), stats),
        key_metadata=raw.get("key_metadata"),
        split_offsets=tuple(raw.get("split_offsets") or ()),
        equality_ids=tuple(raw.get("equality_ids") or ()),
        sort_order_id=raw.get("sort_order_id"),
        referenced_data_file=raw.get("referenced_data_file"),
    )


def _mapping(pairs: Any, wanted: frozenset[int] | None) -> dict[int, Any]:
    if not pairs:
        return {}
    if type(pairs) is ById:
        return pairs  # chosen while it was read
    if isinstance(pairs, dict):  # some writers use Avro's own map type, whose keys are text
        pairs = [{"key": int(key), "value": value} for key, value in pairs.items()]
    if wanted is None:
        return {pair["key"]: pair["value"] for pair in pairs}
    return {pair["key"]: pair["value"] for pair in pairs if pair["key"] in wanted}


_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def _internal(value: Any) -> Any:
    """fastavro gives dates and times as Python's; Iceberg's expressions count days and microseconds."""
    if value is None or isinstance(value, int | str | float | Decimal | bytes):
        return value
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=value.tzinfo or dt.UTC) - _EPOCH) // _MICROSECOND
    if isinstance(value, dt.date):
        return value.toordinal() - _EPOCH_DAY
    if isinstance(value, dt.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return value


# Avro schemas


def _field(field_id: int, name: str, kind: Any, *, optional: bool = False) -> Json:
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}
    return {"name": name, "type": kind, "field-id": field_id}


def _map(key_id: int, value_id: int, value: str) -> Json:
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_field(key_id, "key", "int"), _field(value_id, "value", value)],
    }
    return {"type": "array", "logicalType": "map", "items": pair}


def _list(element_id: int, element: str) -> Json:
    return {"type": "array", "items": element, "element-id": element_id}


@lru_cache(maxsize=256)
def _manifest_schema(spec_json: str, schema_json: str) -> Any:
    # Keyed by text: PyIceberg's schemas cannot be hashed.
    schema = Schema.model_validate_json(schema_json)
    partition = PartitionSpec.model_validate_json(spec_json).partition_type(schema)
    data_file = {
        "type": "record",
        "name": "r2",
        "fields": [
            _field(134, "content", "int"),
            _field(100, "file_path", "string"),
            _field(101, "file_format", "string"),
            _field(102, "partition", _partition_record(partition)),
            _field(103, "record_count", "long"),
            _field(104, "file_size_in_bytes", "long"),
            _field(108, "column_sizes", _map(117, 118, "long"), optional=True),
            _field(109, "value_counts", _map(119, 120, "long"), optional=True),
            _field(110, "null_value_counts", _map(121, 122, "long"), optional=True),
            _field(137, "nan_value_counts", _map(138, 139, "long"), optional=True),
            _field(125, "lower_bounds", _map(126, 127, "bytes"), optional=True),
            _field(128, "upper_bounds", _map(129, 130, "bytes"), optional=True),
            _field(131, "key_metadata", "bytes", optional=True),
            _field(132, "split_offsets", _list(133, "long"), optional=True),
            _field(135, "equality_ids", _list(136, "int"), optional=True),
            _field(140, "sort_order_id", "int", optional=True),
            _field(143, "referenced_data_file", "string", optional=True),
        ],
    }
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field(0, "status", "int"),
            _field(1, "snapshot_id", "long", optional=True),
            _field(3, "sequence_number", "long", optional=True),
            _field(4, "file_sequence_number", "long", optional=True),
            _field(2, "data_file", data_file),
        ],
    }


def _partition_record(partition: StructType) -> Json:
    fields = [
        _field(
            field.field_id,
            make_compatible_name(field.name),
            _avro_type(field.field_type, field.field_id),
            optional=True,
        )
        for field in partition.fields
    ]
    return {"type": "record", "name": "r102", "fields": fields}


_PLAIN_AVRO: dict[type, Any] = {
    BooleanType: "boolean",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimeType: {"type": "long", "logicalType": "time-micros"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    TimestamptzType: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
}


def _avro_type(kind: IcebergType, field_id: int) -> Any:
    if isinstance(kind, DecimalType):
        size = decimal_required_bytes(kind.precision)
        name = f"decimal_{kind.precision}_{kind.scale}_{field_id}"
        logical = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {"type": "fixed", "name": name, "size": size, **logical}
    if isinstance(kind, UUIDType):
        return {"type": "fixed", "name": f"uuid_fixed_{field_id}", "size": 16, "logicalType": "uuid"}
    if isinstance(kind, FixedType):
        return {"type": "fixed", "name": f"fixed_{len(kind)}_{field_id}", "size": len(kind)}
    if type(kind) not in _PLAIN_AVRO:
        raise Unsupported(f"A partition of type {kind} cannot be written to a manifest")
    return _PLAIN_AVRO[type(kind)]


_LIST_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            _field(500, "manifest_path", "string"),
            _field(501, "manifest_length", "long"),
            _field(502, "partition_spec_id", "int"),
            _field(517, "content", "int"),
            _field(515, "sequence_number", "long"),
            _field(516, "min_sequence_number", "long"),
            _field(503, "added_snapshot_id", "long"),
            _field(504, "added_files_count", "int"),
            _field(505, "existing_files_count", "int"),
            _field(506, "deleted_files_count", "int"),
            _field(512, "added_rows_count", "long"),
            _field(513, "existing_rows_count", "long"),
            _field(514, "deleted_rows_count", "long"),
            _field(
                507,
                "partitions",
                {
                    "type": "array",
                    "element-id": 508,
                    "items": {
                        "type": "record",
                        "name": "r508",
                        "fields": [
                            _field(509, "contains_null", "boolean"),
                            _field(518, "contains_nan", "boolean", optional=True),
                            _field(510, "lower_bound", "bytes", optional=True),
                            _field(511, "upper_bound", "bytes", optional=True),
                        ],
                    },
                },
                optional=True,
            ),
            _field(519, "key_metadata", "bytes", optional=True),
        ],
    }
)
