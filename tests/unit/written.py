"""Tables written by hand, file by file, so that a test decides everything a reader may meet."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, PrimitiveType, StringType

from frazil.expr import parse_filter
from frazil.format.manifests import DATA_MANIFEST, DELETE_MANIFEST, write_manifest, write_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import PATH_FIELD, POSITION_FIELD, Content, DataFile, Entry, Manifest, Status
from frazil.read.scan import Scan, resolve_snapshot

Row = dict[str, Any]
_LOGGED = ("snapshot-id", "timestamp-ms")
POSITIONS = Schema(
    NestedField(PATH_FIELD, "file_path", StringType(), required=True),
    NestedField(POSITION_FIELD, "pos", LongType(), required=True),
)


@dataclass
class Written:
    """A table under construction; each ``commit`` is one snapshot, with the next sequence number."""

    root: Path
    schemas: list[Schema]
    specs: list[PartitionSpec] = field(default_factory=lambda: [UNPARTITIONED_PARTITION_SPEC])
    properties: dict[str, str] = field(default_factory=dict)
    storage: Storage = field(default_factory=Storage)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    refs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _manifests: list[Manifest] = field(default_factory=list)

    @property
    def schema(self) -> Schema:
        return self.schemas[-1]

    # Files

    def path(self, name: str) -> str:
        return str(self.root / f"{name}-{uuid.uuid4().hex[:8]}.parquet")

    def data(
        self,
        rows: Sequence[Row],
        *,
        schema: Schema | None = None,
        arrow: pa.Schema | None = None,
        spec_id: int = 0,
        partition: tuple[Any, ...] = (),
        row_group: int = 1 << 20,
        statistics: bool = True,
    ) -> DataFile:
        """A data file of these rows, written under ``schema``, or with ``arrow`` as it is."""
        schema = schema or self.schema
        path = self.path("data")
        table = pa.Table.from_pylist(list(rows), schema_to_pyarrow(schema) if arrow is None else arrow)
        pq.write_table(table, path, row_group_size=row_group)
        file = DataFile(path, len(rows), Path(path).stat().st_size, spec_id=spec_id, partition=partition)
        return described(file, rows, schema) if statistics else file

    def position_deletes(
        self,
        deleted: Sequence[tuple[str, int]],
        *,
        spec_id: int = 0,
        partition: tuple[Any, ...] = (),
        named: bool = False,
    ) -> DataFile:
        rows = [{"file_path": path, "pos": pos} for path, pos in deleted]
        path = self.path("pos")
        pq.write_table(pa.Table.from_pylist(rows, schema_to_pyarrow(POSITIONS)), path)
        file = DataFile(
            path, len(rows), Path(path).stat().st_size, spec_id=spec_id, partition=partition,
            content=Content.POSITION_DELETES, referenced_data_file=deleted[0][0] if named else None,
        )  # fmt: skip
        return described(file, rows, POSITIONS)

    def equality_deletes(
        self, rows: Sequence[Row], schema: Schema, *, spec_id: int = 0, partition: tuple[Any, ...] = (), ids: Any = None
    ) -> DataFile:
        file = self.data(rows, schema=schema, spec_id=spec_id, partition=partition)
        chosen = tuple(each.field_id for each in schema.fields) if ids is None else tuple(ids)
        return replace(file, content=Content.EQUALITY_DELETES, equality_ids=chosen)

    # Commits

    def commit(self, *files: DataFile, schema_id: int | None = None, keep: bool = True) -> int:
        """A snapshot that adds these files to those of the one before (``keep=False``: instead of them)."""
        number = len(self.snapshots) + 1
        manifests = list(self._manifests) if keep else []
        for content in (DATA_MANIFEST, DELETE_MANIFEST):
            for spec in self.specs:
                wanted = [
                    file
                    for file in files
                    if file.spec_id == spec.spec_id and (file.content != Content.DATA) == (content == DELETE_MANIFEST)
                ]
                if wanted:
                    new = write_manifest(
                        self.storage, f"{self.root}/m-{uuid.uuid4().hex}.avro",
                        [Entry(Status.ADDED, file) for file in wanted], spec=spec, schema=self.schema, content=content,
                    )  # fmt: skip
                    manifests.append(new.named_by(number, number))
        listed = f"{self.root}/snap-{number}-{uuid.uuid4().hex}.avro"
        parent = number - 1 or None
        write_manifest_list(
            self.storage, listed, manifests, snapshot_id=number, parent_snapshot_id=parent, sequence_number=number
        )
        self._manifests = manifests
        self.snapshots.append(
            {
                "snapshot-id": number,
                "sequence-number": number,
                "timestamp-ms": 1_000 * number,
                "manifest-list": listed,
                "summary": {"operation": "append"},
                "schema-id": self.schema.schema_id if schema_id is None else schema_id,
                **({"parent-snapshot-id": parent} if parent else {}),
            }
        )
        return number

    def metadata(self) -> TableMetadata:
        current = self.snapshots[-1]["snapshot-id"] if self.snapshots else -1
        main = {"main": {"snapshot-id": current, "type": "branch"}} if self.snapshots else {}
        return TableMetadata(
            {
                "format-version": 2,
                "table-uuid": str(uuid.uuid4()),
                "location": str(self.root),
                "last-sequence-number": len(self.snapshots),
                "last-updated-ms": 1_000 * len(self.snapshots),
                "last-column-id": max(schema.highest_field_id for schema in self.schemas),
                "schemas": [each.model_dump(mode="json", by_alias=True) for each in self.schemas],
                "current-schema-id": self.schema.schema_id,
                "partition-specs": [each.model_dump(mode="json", by_alias=True) for each in self.specs],
                "default-spec-id": self.specs[-1].spec_id,
                "last-partition-id": 1099,
                "sort-orders": [{"order-id": 0, "fields": []}],
                "default-sort-order-id": 0,
                "properties": self.properties,
                "snapshots": self.snapshots,
                "snapshot-log": [
                    {key: each[key] for key in ("snapshot-id", "timestamp-ms")} for each in self.snapshots
                ],
                "refs": {**main, **self.refs},
                "current-snapshot-id": current,
            }
        )

    def scan(
        self,
        where: str | None = None,
        columns: tuple[str, ...] | None = None,
        *,
        limit: int | None = None,
        case_sensitive: bool = False,
        **travel: Any,
    ) -> Scan:
        metadata = self.metadata()
        snapshot, schema = resolve_snapshot(metadata, **travel)
        chosen = parse_filter(where, schema, case_sensitive=case_sensitive)
        return Scan(self.storage, metadata, snapshot, schema, chosen, columns, limit, case_sensitive, "t")

    def rows(self, where: str | None = None, columns: tuple[str, ...] | None = None, **travel: Any) -> list[Row]:
        return list(self.scan(where, columns, **travel).to_arrow().to_pylist())


def described(file: DataFile, rows: Sequence[Row], schema: Schema) -> DataFile:
    """The file with the statistics of its top-level columns."""
    lower, upper, counts, nulls = {}, {}, {}, {}
    for each in schema.fields:
        cells = [row.get(each.name) for row in rows]
        known = [cell for cell in cells if cell is not None and cell == cell]
        counts[each.field_id], nulls[each.field_id] = len(cells), sum(cell is None for cell in cells)
        if known and isinstance(each.field_type, PrimitiveType):
            lower[each.field_id] = to_bytes(each.field_type, min(known))
            upper[each.field_id] = to_bytes(each.field_type, max(known))
    return replace(file, value_counts=counts, null_value_counts=nulls, lower_bounds=lower, upper_bounds=upper)
