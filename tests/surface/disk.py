"""A table whose files come and go, and what of them is needed, found apart from the services."""

from __future__ import annotations

import os

import frazil
from frazil.format.manifests import read_manifest, read_manifest_list
from frazil.format.storage import is_local, local_path
from frazil.model import Ident
from frazil.runtime import SYSTEM

FUTURE = 10**15
DAY_MS = 24 * 60 * 60 * 1000
NAME = "s.t"


def filled(lake: frazil.Lake, name: str = NAME) -> frazil.Table:
    """Rows 0 to 5 in three files. Metadata files may go at once."""
    table = lake.create_table(
        name, "id bigint not null, v string", keys=["id"], properties={"frazil.retention.min-age-ms": "0"}
    )
    for first in (0, 2, 4):
        table.append([{"id": first, "v": "a"}, {"id": first + 1, "v": "b"}])
    return table


def ids(table: frazil.Table, ref: str = "main") -> list[int]:
    return sorted(row["id"] for row in table.scan(ref=ref).to_arrow().to_pylist())


def files(lake: frazil.Lake, table: frazil.Table) -> set[str]:
    """The names of what is below the table's location."""
    return {info.path.rsplit("/", 1)[-1] for info in lake.storage.list(table.location)}


def named(lake: frazil.Lake, name: str = NAME) -> set[str]:
    """The names of what the table's head needs, found apart from the services."""
    head = lake.catalog.load(Ident.parse(name))
    found = {head.location, *(each["metadata-file"] for each in head.metadata.raw.get("metadata-log") or ())}
    for snapshot in head.metadata.snapshots():
        assert snapshot.manifest_list is not None
        found.add(snapshot.manifest_list)
        found.update([snapshot.summary["frazil.lineage"]] if "frazil.lineage" in snapshot.summary else [])
        for manifest in read_manifest_list(lake.storage, snapshot.manifest_list):
            found.add(manifest.manifest_path)
            found.update(each.file.file_path for each in read_manifest(lake.storage, manifest))
    return {path.rsplit("/", 1)[-1] for path in found}


def change_much(table: frazil.Table) -> None:
    """Data files, both kinds of delete files, manifests and lineage come and go."""
    table.delete("id = 0", mode="merge-on-read")
    table.upsert([{"id": 1, "v": "c"}])
    table.delete("id = 2", mode="copy-on-write")
    table.compact()


def stray(lake: frazil.Lake, table: frazil.Table, name: str = "data/killed.parquet", days_ago: float = 10) -> str:
    """What a killed job has left."""
    path = f"{table.location}/{name}"
    lake.storage.write(path, b"left over")
    if is_local(path):
        then = SYSTEM.now_ms() / 1000 - days_ago * 86400
        os.utime(local_path(path), (then, then))
    return path
