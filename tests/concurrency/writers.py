"""Writers that run in processes of their own. Each batch is ten rows that name their writer and number."""

from __future__ import annotations

import multiprocessing as mp
import sys
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa

import frazil

ROWS = 10
SCHEMA = pa.schema([("writer", pa.int64()), ("batch", pa.int64()), ("n", pa.int64())])


@dataclass(frozen=True)
class Address:
    """Where a table is, in a form that travels to another process."""

    uri: str
    table: str
    warehouse: str | None = None

    def open(self) -> frazil.Table:
        return frazil.connect(self.uri, warehouse=self.warehouse, create=False).table(self.table)


def batch(writer: int, number: int) -> pa.Table:
    columns = {"writer": [writer] * ROWS, "batch": [number] * ROWS, "n": list(range(ROWS))}
    return pa.table(columns, schema=SCHEMA)


def append_many(address: Address, writer: int, count: int, barrier: Any, answers: Any) -> None:
    """Append ``count`` batches and report each acknowledgement with its number of attempts."""
    try:
        table = address.open()
        barrier.wait(120)
        for number in range(count):
            done = table.append(batch(writer, number))
            answers.put((writer, number, done.attempts))
        answers.put((writer, "done", None))
    except BaseException as error:
        answers.put((writer, "failed", f"{type(error).__name__}: {error}"))
        raise


def append_with_ids(address: Address, writer: int, first: int, count: int, acknowledged: str) -> None:
    """Append batches under commit ids; after each one, write its number to a file, which survives a kill."""
    table = address.open()
    with open(acknowledged, "a") as acks:
        for number in range(first, count):
            table.append(batch(writer, number), commit_id=f"{writer}-{number}")
            acks.write(f"{number}\n")
            acks.flush()


def start(target: Any, *arguments: Any) -> BaseProcess:
    process = mp.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    return process


def batches_in(rows: pa.Table) -> list[tuple[int, int]]:
    """(writer, batch) once for each time all of its ten rows are there; half a batch raises."""
    counts = rows.group_by(["writer", "batch"]).aggregate([("n", "count"), ("n", "sum")]).to_pylist()
    found: list[tuple[int, int]] = []
    for each in counts:
        times, rest = divmod(each["n_count"], ROWS)
        assert rest == 0, f"a part of a batch is there: {each}"
        assert each["n_sum"] == times * sum(range(ROWS)), f"wrong rows: {each}"
        found += [(each["writer"], each["batch"])] * times
    return sorted(found)


def unreferenced_files(table: frazil.Table) -> set[str]:
    """Files under the table's folder that no version of it names."""
    from frazil.format.manifests import read_manifest, read_manifest_list
    from frazil.format.storage import local_path
    from frazil.model import Ident

    lake = table._lake
    head = lake.catalog.load(Ident.parse(table.name))
    log = [entry["metadata-file"] for entry in head.metadata.raw.get("metadata-log") or ()]
    named = {local_path(head.location), *map(local_path, log)}
    for snapshot in head.metadata.snapshots():
        assert snapshot.manifest_list is not None
        named.add(local_path(snapshot.manifest_list))
        for manifest in read_manifest_list(lake.storage, snapshot.manifest_list):
            if local_path(manifest.manifest_path) not in named:
                named.add(local_path(manifest.manifest_path))
                entries = read_manifest(lake.storage, manifest, live_only=False, stats=frozenset())
                named.update(local_path(entry.file.file_path) for entry in entries)
    there = {str(path) for path in Path(local_path(head.metadata.location)).rglob("*") if path.is_file()}
    # Metadata files older than the log's length are the expiry service's business, not orphans of an attempt.
    return {path for path in there - named if not path.endswith(".metadata.json") or len(log) < 100}


if __name__ == "__main__":
    uri, name, writer, first, count, acknowledged = sys.argv[1:7]
    append_with_ids(Address(uri, name), int(writer), int(first), int(count), acknowledged)
