"""A warehouse on S3 (moto's), refereed by SQLite or by Glue: written by processes, read by Frazil and PyIceberg."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as PyIcebergTable

import frazil
from aws.server import KEYS, Aws
from concurrency.writers import SCHEMA, append_many, batches_in, start
from frazil.format.manifests import read_manifest, read_manifest_list
from frazil.model import Ident

WRITERS, BATCHES = 4, 3


@dataclass(frozen=True)
class Address:
    uri: str
    table: str
    warehouse: str
    properties: Mapping[str, str] = field(repr=False)

    def lake(self, **more: Any) -> frazil.Lake:
        return frazil.connect(self.uri, warehouse=self.warehouse, properties=dict(self.properties), **more)

    def open(self) -> frazil.Table:
        return self.lake(create=False).table(self.table)


@pytest.fixture
def bucket(aws: Aws) -> str:
    aws.forget_everything()
    return aws.create_bucket("lake")


@pytest.fixture(params=["sqlite", "glue"])
def address(request: pytest.FixtureRequest, aws: Aws, bucket: str, tmp_path: Path) -> Address:
    uri = f"sqlite:///{tmp_path}/catalog.db" if request.param == "sqlite" else "glue://"
    made = Address(uri, "ns.t", f"{bucket}/wh", aws.properties)
    with made.lake() as lake:
        lake.create_namespace("ns")
        lake.create_table("ns.t", SCHEMA, partition_by=["bucket(2, batch)"])
    return made


def by_pyiceberg(address: Address) -> PyIcebergTable:
    """The same table through PyIceberg alone."""
    if address.uri == "glue://":
        return GlueCatalog("glue", warehouse=address.warehouse, **address.properties).load_table(address.table)
    catalog = SqlCatalog("frazil", uri=address.uri, warehouse=address.warehouse, **address.properties)
    with contextlib.closing(catalog):
        return catalog.load_table(address.table)


def unreferenced(table: frazil.Table) -> set[str]:
    """Objects under the table's location that no version of it names; metadata files set aside."""
    lake = table._lake
    metadata = lake.catalog.load(Ident.parse(table.name)).metadata
    named: set[str] = set()
    for snapshot in metadata.snapshots():
        assert snapshot.manifest_list is not None
        named.add(snapshot.manifest_list)
        for manifest in read_manifest_list(lake.storage, snapshot.manifest_list):
            named.add(manifest.manifest_path)
            named.update(entry.file.file_path for entry in read_manifest(lake.storage, manifest))
    there = {info.path for info in lake.storage.list(metadata.location)}
    return {path for path in there - named if not path.endswith(".metadata.json")}


@pytest.mark.timeout(600)
def test_processes_that_append_to_s3_lose_nothing_and_leave_nothing(address: Address) -> None:
    context = mp.get_context("spawn")
    barrier, answers = context.Barrier(WRITERS), context.Queue()
    processes = [start(append_many, address, writer, BATCHES, barrier, answers) for writer in range(WRITERS)]
    acknowledged: list[tuple[int, int]] = []
    finished = 0
    while finished < WRITERS:
        writer, number, detail = answers.get(timeout=300)
        assert number != "failed", f"writer {writer}: {detail}"
        if number == "done":
            finished += 1
        else:
            acknowledged.append((writer, number))
    for process in processes:
        process.join(60)
    expected = sorted((writer, number) for writer in range(WRITERS) for number in range(BATCHES))
    assert sorted(acknowledged) == expected
    table = address.open()
    assert batches_in(table.scan().to_arrow()) == expected
    assert batches_in(by_pyiceberg(address).scan().to_arrow()) == expected
    assert sum(len(each.commits) for each in table.history()) == WRITERS * BATCHES
    assert unreferenced(table) == set()


def test_rows_written_to_s3_are_read_back_filtered_and_projected(address: Address) -> None:
    table = address.open()
    commit = table.append([{"writer": 1, "batch": n, "n": n} for n in range(10)])
    assert (commit.rows_inserted, commit.files_added) == (10, 2)
    found = table.scan(where="batch >= 7", columns=["batch"]).to_arrow()
    assert set(found["batch"].to_pylist()) == {7, 8, 9}
    assert table.scan().count() == 10
    assert pickle.loads(pickle.dumps(table)).scan().count() == 10


def test_a_commit_id_sent_twice_lands_once(address: Address) -> None:
    first = address.open().append([{"writer": 1, "batch": 1, "n": 1}], commit_id="once")
    again = address.open().append([{"writer": 1, "batch": 1, "n": 1}], commit_id="once")
    assert again.already_committed
    assert (again.snapshot_id, again.rows_inserted) == (first.snapshot_id, 1)
    table = address.open()
    assert table.scan().count() == 1
    assert unreferenced(table) == set()


def rows_that_fail() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"writer": [1], "batch": [1], "n": [1]}, schema=SCHEMA)
    raise RuntimeError("the source broke off")


def test_rows_that_end_in_an_error_leave_no_object(address: Address) -> None:
    table = address.open()
    with pytest.raises(RuntimeError, match="broke off"):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, rows_that_fail()))
    assert table.scan().count() == 0
    assert unreferenced(table) == set()


def test_hadoops_scheme_becomes_s3_in_metadata(aws: Aws, bucket: str, tmp_path: Path) -> None:
    warehouse = bucket.replace("s3://", "s3a://") + "/wh/"
    with frazil.connect(f"sqlite:///{tmp_path}/c.db", warehouse=warehouse, properties=aws.properties) as lake:
        lake.create_namespace("ns")
        table = lake.create_table("ns.t", SCHEMA)
        table.append([{"writer": 1, "batch": 1, "n": 1}])
        assert table.scan().count() == 1
        assert lake.catalog.load(Ident(("ns",), "t")).metadata.location.startswith("s3://lake/wh/ns/t-")


def test_wrong_keys_are_permission_denied_before_anything_is_committed(
    aws: Aws, address: Address, tmp_path: Path
) -> None:
    table = address.open()
    head = table.history()
    with aws.checking_keys(), pytest.raises(frazil.PermissionDenied) as refused:
        table.append([{"writer": 1, "batch": 1, "n": 1}])
    assert KEYS["secret-access-key"] not in str(refused.value)
    assert table.history() == head
