"""Rows are forgotten for good: no byte of them is left below the table's location, nor in the catalog's files."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

import frazil
from frazil.format.storage import local_path
from surface.disk import NAME, files, named, stray

SECRET = "eve.adams@mail.example"
HERS = f"email = '{SECRET}'"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        yield lake


def filled(lake: frazil.Lake, partition_by: list[str] | None = None) -> frazil.Table:
    """Her rows are in a file with others, in a file of their own, deleted in three ways, and in a failed write."""
    table = lake.create_table(NAME, "id bigint not null, email string", keys=["id"], partition_by=partition_by or [])
    table.append([{"id": 1, "email": SECRET}, {"id": 2, "email": "bob"}])
    table.append([{"id": 3, "email": SECRET}])
    table.append([{"id": 4, "email": SECRET}, {"id": 5, "email": "zoe"}])
    table.delete("id = 4", mode="merge-on-read")
    table.append([{"id": 6, "email": SECRET}, {"id": 7, "email": "kim"}])
    table.upsert([{"id": 6, "email": "ann"}])
    table.delete(f"id = 3 and {HERS}")
    return table


def emails(table: frazil.Table, ref: str = "main") -> dict[int, str]:
    return {row["id"]: row["email"] for row in table.scan(ref=ref).to_arrow().to_pylist()}


def places_of(secret: str, folder: Path) -> list[str]:
    """Every file below a folder that has the text in its bytes, its name, or what its compression hides."""
    found = []
    for path in (each for each in folder.rglob("*") if each.is_file()):
        data = path.read_bytes()
        texts = [data, str(path).encode(), *_inside(path, data)]
        if any(secret.encode() in each or secret[:16].encode() in each for each in texts):
            found.append(path.name)
    folders = [str(each) for each in folder.rglob("*") if each.is_dir() and secret[:16] in str(each)]
    return found + folders


def _inside(path: Path, data: bytes) -> Iterator[bytes]:
    if path.suffix == ".avro":
        yield repr(list(fastavro.reader(io.BytesIO(data)))).encode()
    if path.suffix == ".parquet":
        yield repr(pq.read_table(io.BytesIO(data)).to_pylist()).encode()
    if path.suffix == ".gz":
        yield gzip.decompress(data)


@pytest.mark.parametrize("partition_by", [None, ["email"]])
def test_nothing_is_left_of_erased_rows(lake: frazil.Lake, tmp_path: Path, partition_by: list[str] | None) -> None:
    table = filled(lake, partition_by)
    assert places_of(SECRET, tmp_path)
    report = table.erase(HERS)
    assert places_of(SECRET, tmp_path) == []
    assert emails(table) == {2: "bob", 5: "zoe", 6: "ann", 7: "kim"}
    assert (report.proven, report.remaining, report.rows_deleted) == (True, (), 1)
    assert report.files_searched >= len(files(lake, table)) > 0
    assert report.files_removed > 10
    assert report.snapshots_expired > 5
    assert files(lake, table) == named(lake)
    assert "no row of the condition is left" in str(report)
    facts = json.loads(report.to_json())
    assert facts["proven"] is True
    assert SECRET not in report.to_json()


def test_every_row_may_be_erased(lake: frazil.Lake, tmp_path: Path) -> None:
    table = filled(lake)
    table.update({"email": f"'{SECRET}'"}, where="true")
    assert table.erase("email = :her", {"her": SECRET}).proven
    assert places_of(SECRET, tmp_path) == []
    assert emails(table) == {}
    table.append([{"id": 1, "email": "new"}])
    assert emails(table) == {1: "new"}


def test_what_only_history_holds_is_erased_as_well(lake: frazil.Lake, tmp_path: Path) -> None:
    table = filled(lake)
    table.delete(HERS)
    report = table.erase(HERS)
    assert (report.proven, report.rows_deleted) == (True, 0)
    assert places_of(SECRET, tmp_path) == []
    again = table.erase(HERS)
    assert (again.proven, again.rows_deleted) == (True, 0)
    assert emails(table) == {2: "bob", 5: "zoe", 6: "ann", 7: "kim"}


def test_branches_are_erased_and_tags_refuse(lake: frazil.Lake, tmp_path: Path) -> None:
    table = filled(lake)
    table.create_branch("side")
    table.append([{"id": 9, "email": SECRET}], branch="side")
    table.create_tag("audit")
    before = emails(table)
    with pytest.raises(frazil.InvalidInput, match="audit"):
        table.erase(HERS)
    assert emails(table) == before
    report = table.erase(HERS, drop_tags=True)
    assert (report.proven, report.refs_dropped) == (True, ("audit",))
    assert set(table.refs) == {"main", "side"}
    assert emails(table, "side") == {2: "bob", 5: "zoe", 6: "ann", 7: "kim"}
    assert places_of(SECRET, tmp_path) == []


def test_a_row_that_arrives_meanwhile_is_reported(lake: frazil.Lake) -> None:
    table = filled(lake)
    left = f"{table.location}/data/young.parquet"
    source = next(each.path for each in table.files() if SECRET in str(pq.read_table(local_path(each.path))))
    lake.storage.write(left, Path(local_path(source)).read_bytes())
    report = table.erase(HERS)
    assert not report.proven
    assert [(each.where.rsplit("/", 1)[-1], each.why) for each in report.remaining] == [
        ("young.parquet", "it holds matching rows")
    ]
    os.utime(local_path(left), (0, 0))
    assert table.erase(HERS).proven


def test_an_open_transaction_is_reported(lake: frazil.Lake) -> None:
    table = filled(lake)
    with lake.transaction() as tx:
        tx.table(NAME).scan(limit=1).to_arrow()
        report = table.erase(HERS)
        assert not report.proven
    assert table.erase(HERS).proven


def test_rows_of_others_stay_and_so_does_the_rest_of_the_lake(lake: frazil.Lake) -> None:
    table = filled(lake)
    other = lake.create_table("s.other", "id bigint, email string")
    other.append([{"id": 1, "email": "bob"}])
    stray(lake, table)
    table.erase("email = 'bob'")
    assert emails(table) == {1: SECRET, 5: "zoe", 6: "ann", 7: "kim"}
    assert emails(other) == {1: "bob"}


class Interrupted(BaseException):
    """As kill -9: nothing cleans up."""


@pytest.mark.parametrize("step", ["clean", "without_removed", "remove_files", "scrub", "searched"])
def test_an_erasure_that_was_interrupted_is_finished_by_the_next(
    lake: frazil.Lake, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frazil.services import erase as service
    from frazil.table import erasing

    table = filled(lake)

    def stop(*_given: Any, **_named: Any) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(erasing if hasattr(erasing, step) else service, step, stop)
        with pytest.raises(Interrupted):
            table.erase(HERS)
    report = table.erase(HERS)
    assert report.proven
    assert places_of(SECRET, tmp_path) == []
    assert emails(table) == {2: "bob", 5: "zoe", 6: "ann", 7: "kim"}


def test_a_purge_leaves_no_file_and_no_condition(lake: frazil.Lake, tmp_path: Path) -> None:
    table = filled(lake, ["email"])
    location = Path(local_path(table.location))
    lake.drop_table(NAME, purge=True)
    assert not location.exists()
    assert places_of(SECRET, tmp_path) == []


def test_postgres_is_scrubbed_and_its_log_is_named(postgres_uri: str, tmp_path: Path) -> None:
    with frazil.connect(postgres_uri, warehouse=f"file://{tmp_path}/warehouse") as lake:
        lake.create_namespace("s")
        table = filled(lake)
        report = table.erase(HERS)
        assert report.proven
        assert "write-ahead log" in report.outside[0]
        assert len(report.outside) == 1
        assert places_of(SECRET, tmp_path) == []
        log = lake.catalog.changes
        assert log is not None
        assert log.find(table.uuid, 0, 1000) == []


def test_on_a_third_party_catalog(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/pyiceberg.db"
    options = {"type": "sql", "uri": uri}
    with frazil.connect("pyiceberg:x", warehouse=f"file://{tmp_path}/warehouse", properties=options) as lake:
        lake.create_namespace("s")
        table = filled(lake)
        report = table.erase(HERS)
        assert report.remaining == ()
        assert report.outside
        assert emails(table) == {2: "bob", 5: "zoe", 6: "ann", 7: "kim"}
        assert places_of(SECRET, tmp_path / "warehouse") == []
