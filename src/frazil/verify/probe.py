"""A scratch table, and a minimal commit: an empty snapshot on ``main``."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from frazil.catalog.base import Head, OpenedCatalog, Proposal
from frazil.errors import FrazilError
from frazil.format.manifests import write_manifest_list
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.storage import is_local, local_path
from frazil.format.updates import next_time_ms
from frazil.model import Ident
from frazil.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Scratch:
    """A table to race on, and the empty manifest list that all its snapshots share."""

    ident: Ident
    location: str
    manifest_list: str


@contextlib.contextmanager
def scratch_table(opened: OpenedCatalog, purpose: str, runtime: Runtime, leftovers: list[str]) -> Iterator[Scratch]:
    """Create the table, and remove it again. What could not be removed is added to ``leftovers``."""
    token = runtime.new_hex()
    namespace = (f"frazil_{purpose}_{token[:16]}",)
    ident = Ident(namespace, f"scratch_{token[16:]}")
    opened.catalog.create_namespace(namespace, {})
    location = ""
    try:
        head = opened.catalog.create(ident, empty_table(_location(opened, ident), runtime))
        location = head.metadata.location
        manifest_list = f"{location}/metadata/empty-{token}.avro"
        write_manifest_list(
            opened.storage, manifest_list, (), snapshot_id=1, parent_snapshot_id=None, sequence_number=1
        )
        yield Scratch(ident, location, manifest_list)
    finally:
        _remove(opened, ident, location, leftovers)


def empty_snapshot(head: Head, scratch: Scratch, snapshot_id: int, marker: str) -> Proposal:
    """A snapshot without files, valid only on the head it was made for (rule P29's requirements of a write)."""
    metadata = head.metadata
    parent = metadata.ref_snapshot_id()
    snapshot = {
        "snapshot-id": snapshot_id,
        "sequence-number": metadata.last_sequence_number + 1,
        "timestamp-ms": next_time_ms(metadata, head.now_ms),
        "manifest-list": scratch.manifest_list,
        "summary": {"operation": "append", "frazil.marker": marker},
        "schema-id": metadata.current_schema_id,
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent
    return Proposal(
        updates=(
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": snapshot_id},
        ),
        requirements=(
            {"type": "assert-table-uuid", "uuid": metadata.uuid},
            {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": parent},
        ),
    )


def _location(opened: OpenedCatalog, ident: Ident) -> str:
    """The table's location; empty: the catalog's server chooses."""
    warehouse = opened.warehouse
    if warehouse is None and opened.kind == "postgres":
        # Only processes of this host read the scratch table, so its few files need no shared storage.
        warehouse = f"file://{tempfile.gettempdir()}"
    return f"{warehouse.rstrip('/')}/{ident.namespace[0]}/{ident.name}" if warehouse else ""


def empty_table(location: str, runtime: Runtime) -> TableMetadata:
    """Metadata of a new table with one column."""
    return TableMetadata(
        {
            "format-version": 2,
            "table-uuid": str(runtime.new_uuid()),
            "location": location,
            "last-sequence-number": 0,
            "last-updated-ms": runtime.now_ms(),
            "last-column-id": 1,
            "current-schema-id": 0,
            "schemas": [
                {
                    "type": "struct",
                    "schema-id": 0,
                    "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
                }
            ],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "current-snapshot-id": -1,
            "refs": {},
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [],
        }
    )


def _remove(opened: OpenedCatalog, ident: Ident, location: str, leftovers: list[str]) -> None:
    """Best effort: an error here must not hide what the race found."""
    if location:
        try:
            opened.catalog.drop(ident)
        except FrazilError:
            leftovers.append(f"table {ident}")
        leftovers.extend(_remove_files(opened, ident, location))
    try:
        opened.catalog.drop_namespace(ident.namespace)
    except FrazilError:
        leftovers.append(f"namespace {ident.namespace[0]}")


def _remove_files(opened: OpenedCatalog, ident: Ident, location: str) -> list[str]:
    if ident.name not in location:
        # A server chose the location without the random name: it may hold files of other tables.
        return [f"files under {location}"]
    try:
        kept = opened.storage.delete([info.path for info in opened.storage.list(location)])
    except (FrazilError, OSError):
        return [f"files under {location}"]
    if is_local(location) and not kept:
        shutil.rmtree(local_path(location), ignore_errors=True)
        _remove_empty_parent(location, ident)
    return kept


def _remove_empty_parent(location: str, ident: Ident) -> None:
    parent = os.path.dirname(local_path(location))
    if os.path.basename(parent) == ident.namespace[0]:
        with contextlib.suppress(OSError):
            os.rmdir(parent)
