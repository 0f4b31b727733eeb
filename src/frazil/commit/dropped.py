"""What a commit that expires snapshots leaves to the services that delete files (rules P18 and P42). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from frazil.catalog.base import DroppedManifestLists, FileKind, NotedFile
from frazil.commit.snapshot_layout import LINEAGE
from frazil.format.metadata import TableMetadata

_STATISTICS = ("statistics", "partition-statistics")


def dropped_by(updates: Iterable[Mapping[str, Any]], head: TableMetadata) -> DroppedManifestLists | None:
    """The manifest lists of the snapshots that these updates remove from a head, with the other files of these.

    Recorded in the swap's own transaction. None: no snapshot is removed.
    """
    ids = {each for update in updates if update["action"] == "remove-snapshots" for each in update["snapshot-ids"]}
    if not ids:
        return None
    gone = [snapshot for snapshot in map(head.snapshot, sorted(ids)) if snapshot is not None]
    lists = tuple(each.manifest_list for each in gone if each.manifest_list is not None)
    lineages = (each.summary.get(LINEAGE) for each in gone)
    files = [*statistics_of(head, ids), *(NotedFile(path, FileKind.LINEAGE) for path in lineages if path)]
    return DroppedManifestLists(head.uuid, lists, tuple(files))


def statistics_of(metadata: TableMetadata, snapshot_ids: Iterable[int]) -> Iterator[NotedFile]:
    """The statistics files of these snapshots."""
    wanted = set(snapshot_ids)
    for key in _STATISTICS:
        for each in metadata.raw.get(key) or ():
            if each["snapshot-id"] in wanted:
                yield NotedFile(each["statistics-path"], FileKind.STATISTICS)
