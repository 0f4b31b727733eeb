"""Deletes everything of a table that was dropped: what its metadata names, and what else is below its location."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from frazil.catalog.base import Head
from frazil.commit.dropped import statistics_of
from frazil.commit.snapshot_layout import LINEAGE
from frazil.errors import CorruptMetadata
from frazil.format.manifests import iter_manifest, read_manifest_list
from frazil.format.storage import is_below, same_path
from frazil.services.context import ServiceContext
from frazil.services.deletion import delete_files
from frazil.services.reachable import Beside, belongs_to, beside, hash_of, needed

_BATCH = 1000


def purge(context: ServiceContext, dropped: Head) -> list[str]:
    """Delete the files of a version that no name refers to any more; returns those that could not be deleted.

    What another table of the catalog needs stays, and so does the folder of a table below this one. Files that the
    metadata names elsewhere (``add_files``) go as well, folders that are empty then, and leftovers of killed writers.
    """
    others = beside(context, dropped.metadata)
    belongs = belongs_to(dropped.metadata, others, knows_tables=context.catalog.instant() is not None)
    kept = needed(context, others.heads)
    files = [kept.files(part) for part in kept.parts]
    failed: list[str] = []
    batch: list[str] = []
    for path in _everything(context, dropped, others):
        hashed = hash_of(path)
        if belongs(path) and not any(each.has(hashed) for each in files):
            batch.append(path)
        if len(batch) >= _BATCH:
            failed += delete_files(context, batch)
            batch = []
    failed += delete_files(context, batch)
    if not others.heads:
        for folder in (dropped.metadata.location, dropped.metadata.metadata_folder):
            context.storage.remove_empty_folders(folder)
    return failed


def _everything(context: ServiceContext, dropped: Head, others: Beside) -> Iterator[str]:
    """Named files first, as their names are lost with the metadata; then all others below the table's folders."""
    yield from dict.fromkeys(_named(context, dropped))
    metadata = dropped.metadata
    for root in dict.fromkeys((metadata.metadata_folder, metadata.location)):
        form = same_path(root)
        if any(is_below(form, each) for each in others.folders):
            continue
        # Listed before any of them is deleted.
        for info in list(context.storage.list(root)):
            if is_below(same_path(info.path), form):
                yield info.path


def _named(context: ServiceContext, dropped: Head) -> Iterator[str]:
    storage, metadata = context.storage, dropped.metadata
    manifests: set[str] = set()
    for snapshot in metadata.snapshots():
        # A missing file was removed by an earlier purge or an expiry.
        with contextlib.suppress(CorruptMetadata):
            for manifest in read_manifest_list(storage, snapshot.manifest_list or ""):
                if manifest.manifest_path not in manifests:
                    manifests.add(manifest.manifest_path)
                    entries = iter_manifest(storage, manifest, live_only=False, stats=frozenset())
                    yield from (each.file.file_path for each in entries)
    yield from manifests
    yield from (each.manifest_list for each in metadata.snapshots() if each.manifest_list is not None)
    yield from (each.path for each in statistics_of(metadata, [each.snapshot_id for each in metadata.snapshots()]))
    yield from (each.summary[LINEAGE] for each in metadata.snapshots() if LINEAGE in each.summary)
    yield from (each["metadata-file"] for each in metadata.raw.get("metadata-log") or ())
    yield dropped.location
