"""Pointer catalogs write one metadata file per version; which, where and how is Iceberg's convention."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.samples import EVENTS, commit, create_table, prepared, set_property
from frazil.catalog.base import Committed, OpenedCatalog
from frazil.catalog.memory import MemoryStore
from frazil.catalog.open import open_catalog
from frazil.catalog.pointer import PointerCatalog, version_of
from frazil.errors import CorruptMetadata, InvalidInput, NoSuchTable, StorageError
from frazil.format.storage import Storage, local_path
from frazil.model import Ident

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenedCatalog]:
    found = open_catalog(str(tmp_path / "lake"))
    yield found
    found.catalog.close()


def test_versions_are_numbered_and_named_as_iceberg_names_them(opened: OpenedCatalog) -> None:
    head = create_table(opened)
    folder = f"{head.metadata.location}/metadata"
    assert re.fullmatch(rf"{re.escape(folder)}/00000-{UUID}\.metadata\.json", head.location)
    outcome = commit(opened.catalog, "1")
    assert isinstance(outcome, Committed)
    assert re.fullmatch(rf"{re.escape(folder)}/00001-{UUID}\.metadata\.json", outcome.location)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("file:///t/metadata/00007-abc.metadata.json", 7),
        ("s3://b/t/metadata/00012-abc.gz.metadata.json", 12),
        ("s3://b/t/metadata/123456-abc.metadata.json", 123456),
        ("/t/metadata/v3.metadata.json", 3),
        ("/t/metadata/v3.gz.metadata.json", 3),
        ("/t/metadata/mine.metadata.json", -1),
    ],
)
def test_the_version_is_read_from_the_files_name(name: str, version: int) -> None:
    assert version_of(name) == version


def test_metadata_is_compressed_and_placed_as_the_table_says(opened: OpenedCatalog, tmp_path: Path) -> None:
    elsewhere = f"file://{tmp_path}/elsewhere/"
    properties = {"write.metadata.compression-codec": "gzip", "write.metadata.path": elsewhere}
    head = create_table(opened, properties=properties)
    assert re.fullmatch(rf"{re.escape(elsewhere)}00000-{UUID}\.gz\.metadata\.json", head.location)
    assert gzip.decompress(Path(local_path(head.location)).read_bytes()).startswith(b"{")
    outcome = commit(opened.catalog, "1")
    assert isinstance(outcome, Committed)
    assert outcome.location.startswith(f"{elsewhere}00001-")
    fresh = PointerCatalog(opened.catalog.store, opened.storage)  # type: ignore[attr-defined]
    assert fresh.load(EVENTS).metadata.properties["k"] == "1"


def test_an_unknown_compression_is_refused_before_anything_is_written(opened: OpenedCatalog) -> None:
    with pytest.raises(InvalidInput, match=r"zstd.*gzip"):
        create_table(opened, properties={"write.metadata.compression-codec": "zstd"})
    assert not list(opened.storage.list(opened.warehouse or ""))
    assert opened.catalog.tables() == []


@pytest.mark.parametrize("damage", [None, b"", b"{", b"[]", b"{}", b"\x1f\x8b\x08 broken"])
def test_a_missing_or_damaged_metadata_file_is_said_with_its_table_and_path(
    opened: OpenedCatalog, tmp_path: Path, damage: bytes | None
) -> None:
    head = create_table(opened)
    file = Path(local_path(head.location))
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    fresh = open_catalog(str(tmp_path / "lake"))
    try:
        with pytest.raises(CorruptMetadata, match=r"shop\.events") as refused:
            fresh.catalog.load(EVENTS)
        assert head.location in str(refused.value)
        assert "register" in str(refused.value)
    finally:
        fresh.catalog.close()


def test_a_file_that_was_cleaned_up_because_the_table_moved_on_is_no_damage(opened: OpenedCatalog) -> None:
    """Between the pointer's read and the file's, another writer commits and removes the old file."""
    head = create_table(opened)
    theirs = opened.catalog

    class MovingOn(Storage):
        def read(self, path: str) -> bytes:
            if path == head.location and Path(local_path(path)).exists():
                assert isinstance(commit(theirs, "moved on"), Committed)
                opened.storage.delete([path])
            return super().read(path)

    reader = PointerCatalog(theirs.store, MovingOn())  # type: ignore[attr-defined]
    assert reader.load(EVENTS).metadata.properties["k"] == "moved on"


def test_a_table_dropped_between_the_two_reads_is_no_such_table(opened: OpenedCatalog) -> None:
    head = create_table(opened)
    theirs = opened.catalog

    class Dropping(Storage):
        def read(self, path: str) -> bytes:
            theirs.drop(EVENTS)
            opened.storage.delete([head.location])
            return super().read(path)

    with pytest.raises(NoSuchTable):
        PointerCatalog(theirs.store, Dropping()).load(EVENTS)  # type: ignore[attr-defined]


def test_the_pointer_is_read_in_every_load_and_each_file_once(opened: OpenedCatalog) -> None:
    create_table(opened)
    reads: list[str] = []

    class Counting(Storage):
        def read(self, path: str) -> bytes:
            reads.append(path)
            return super().read(path)

    catalog = PointerCatalog(opened.catalog.store, Counting())  # type: ignore[attr-defined]
    catalog.load(EVENTS)
    catalog.load(EVENTS)
    assert len(reads) == 1
    commit(opened.catalog, "theirs")
    assert catalog.load(EVENTS).metadata.properties["k"] == "theirs"
    assert len(reads) == 2
    commit(catalog, "mine")
    catalog.load(EVENTS)
    assert len(reads) == 2


def test_p6_nothing_points_to_a_file_that_could_not_be_written(opened: OpenedCatalog) -> None:
    create_table(opened)
    before = opened.catalog.load(EVENTS)

    class Full(Storage):
        def write(self, path: str, data: bytes, *, sync: bool = True) -> None:  # noqa: ARG002
            raise StorageError("the disk is full")

    catalog = PointerCatalog(opened.catalog.store, Full())  # type: ignore[attr-defined]
    with pytest.raises(StorageError):
        prepared(catalog, "x")
    with pytest.raises(StorageError):
        catalog.create(Ident(("shop",), "other"), before.metadata)
    assert opened.catalog.load(EVENTS).location == before.location
    assert opened.catalog.tables() == [EVENTS]


def test_p7_time_never_runs_back_when_a_hosts_clock_does(opened: OpenedCatalog) -> None:
    create_table(opened)
    commit(opened.catalog, "1")
    catalog = opened.catalog
    head = catalog.load(EVENTS)
    earlier = type(head)(head.location, head.metadata, head.now_ms - 3_600_000)
    ready = catalog.prepare(EVENTS, earlier, set_property(earlier, "2"))
    assert ready.metadata is not None
    assert ready.metadata.last_updated_ms >= head.metadata.last_updated_ms


def test_a_commit_prepared_elsewhere_is_refused() -> None:
    storage = Storage()
    catalog = PointerCatalog(MemoryStore(), storage)
    opened = OpenedCatalog(catalog, storage, "memory://w", "memory://", "memory", True)
    create_table(opened)
    ready = prepared(catalog, "1")
    unprepared = type(ready)(ready.ident, ready.head, ready.proposal)
    with pytest.raises(InvalidInput, match="another kind"):
        catalog.swap(unprepared)
