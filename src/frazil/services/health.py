"""How a table is: small files, deletes, snapshots, manifests and metadata, from its head and its manifests."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from frazil.errors import CorruptMetadata, InvalidInput
from frazil.format.manifests import read_manifest, read_manifest_list
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.partitions import partition_identity
from frazil.format.retention import expired
from frazil.format.storage import Storage
from frazil.model import Content, DataFile, Manifest

TARGET = "write.target-file-size-bytes"
_DEFAULT_TARGET = 512 * 1024 * 1024
_SMALL = 0.75
"""A file below this share of the target size is small, as in Iceberg's own rewrite."""


@dataclass(frozen=True, slots=True)
class TableHealth:
    """Counts of one branch, and of the metadata."""

    data_files: int = 0
    data_bytes: int = 0
    rows: int = 0
    """Without regard to deletes."""
    small_files: int = 0
    """Files below three quarters of the target size that others of the same partition can be put together with."""
    small_bytes: int = 0
    files_instead: int = 0
    """How many files the small ones would become."""
    position_delete_files: int = 0
    position_deletes: int = 0
    equality_delete_files: int = 0
    equality_deletes: int = 0
    delete_bytes: int = 0
    manifests: int = 0
    manifest_bytes: int = 0
    snapshots: int = 0
    expired_snapshots: int = 0
    """Those that have expired by the table's ``history.expire.*`` properties."""
    metadata_bytes: int = 0
    """The size of the metadata file."""

    @property
    def delete_percent(self) -> int:
        """Rows deleted by position, of a hundred rows. How many rows a deleted key has, is not known."""
        return min(100, 100 * self.position_deletes // self.rows) if self.rows else 0

    def to_dict(self) -> dict[str, int]:
        return {**dataclasses.asdict(self), "delete_percent": self.delete_percent}


def health_of(storage: Storage, metadata: TableMetadata, now_ms: int, branch: str = MAIN) -> TableHealth:
    """Reads the manifest list and the manifests, without statistics of columns. Raises CorruptMetadata."""
    snapshot = metadata.head_snapshot(branch)
    listed: tuple[Manifest, ...] = ()
    if snapshot is not None and snapshot.manifest_list is not None:
        listed = read_manifest_list(storage, snapshot.manifest_list)
    files = [entry.file for each in listed for entry in read_manifest(storage, each, live_only=True, stats=frozenset())]
    data = [each for each in files if each.content is Content.DATA]
    return TableHealth(
        **_of_data(data, metadata),
        **_of_deletes([each for each in files if each.content is not Content.DATA]),
        manifests=len(listed),
        manifest_bytes=sum(each.manifest_length for each in listed),
        snapshots=len(metadata.raw.get("snapshots") or ()),
        expired_snapshots=_expired(metadata, now_ms),
        metadata_bytes=metadata.size,
    )


def _of_data(files: list[DataFile], metadata: TableMetadata) -> dict[str, int]:
    target = _target(metadata)
    groups: dict[Any, list[int]] = defaultdict(list)
    for each in files:
        if each.file_size_in_bytes < _SMALL * target:
            groups[each.spec_id, partition_identity(each.partition)].append(each.file_size_in_bytes)
    # A file that is alone in its partition stays as it is.
    small = [sizes for sizes in groups.values() if len(sizes) > 1]
    return {
        "data_files": len(files),
        "data_bytes": _bytes(files),
        "rows": sum(each.record_count for each in files),
        "small_files": sum(map(len, small)),
        "small_bytes": sum(map(sum, small)),
        "files_instead": sum(-(-sum(sizes) // target) for sizes in small),
    }


def _of_deletes(files: list[DataFile]) -> dict[str, int]:
    by_key = [each for each in files if each.content is Content.EQUALITY_DELETES]
    by_position = [each for each in files if each.content is Content.POSITION_DELETES]
    return {
        "position_delete_files": len(by_position),
        "position_deletes": sum(each.record_count for each in by_position),
        "equality_delete_files": len(by_key),
        "equality_deletes": sum(each.record_count for each in by_key),
        "delete_bytes": _bytes(files),
    }


def _bytes(files: Iterable[DataFile]) -> int:
    return sum(each.file_size_in_bytes for each in files)


def _target(metadata: TableMetadata) -> int:
    text = metadata.properties.get(TARGET, "")
    return int(text) if text.isdigit() and int(text) else _DEFAULT_TARGET


def _expired(metadata: TableMetadata, now_ms: int) -> int:
    try:
        return len(expired(metadata, now_ms).snapshot_ids)
    except (InvalidInput, CorruptMetadata):
        # gc.enabled is false, or a ref is damaged: then nothing may be expired.
        return 0
