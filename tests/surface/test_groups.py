"""Concurrent writers are committed together. Tests hold the commit lock until all writers are queued."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import LongType
from urllib3.exceptions import NewConnectionError

import frazil
from frazil.catalog._db import OutcomeUnknown
from frazil.catalog._memory_queue import MemoryQueue
from frazil.catalog._queue import SqlQueue
from frazil.catalog.base import (
    RESERVATION,
    CommitLocks,
    CommitQueue,
    Committed,
    QueuedCommit,
    QueueState,
    Stale,
    Unknown,
)
from frazil.catalog.foreign import ForeignCatalog
from frazil.commit import delegation, queued_writer
from frazil.commit.context import Phase
from frazil.commit.group import GROUP_DIGEST, GROUP_SIZE, MOST_TRIES
from frazil.commit.intents import PropertyChange
from frazil.commit.loop import commit
from frazil.commit.manifest_merge import merged
from frazil.commit.operations import Identity, MetadataChange, Write
from frazil.commit.queued_writer import Contention, contention_of
from frazil.commit.retry import Retry
from frazil.format.manifests import read_manifest, read_manifest_list
from frazil.format.storage import Storage
from frazil.model import Ident, Manifest
from frazil.runtime import SYSTEM

NAME = Ident(("shop",), "events")
FIELDS: list[pa.Field[Any]] = [pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.string())]
SCHEMA = pa.schema(FIELDS)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    if request.param == "postgres":
        uri = request.getfixturevalue("postgres_uri")
    else:
        uri = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(tmp_path / "lake")
    with frazil.connect(uri, warehouse=None if request.param != "postgres" else str(tmp_path / "wh")) as found:
        found.create_namespace("shop")
        found.create_table("shop.events", SCHEMA, keys=["id"])
        yield found


def rows(*ids: int, x: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "x": [x] * len(ids)}, schema=SCHEMA)


def ids_in(table: frazil.Table) -> list[int]:
    found: list[Any] = table.scan(columns=["id"]).to_arrow()["id"].to_pylist()
    return sorted(found)


def queue_of(lake: frazil.Lake) -> CommitQueue:
    assert lake.catalog.queue is not None
    return lake.catalog.queue


def locks_of(lake: frazil.Lake) -> CommitLocks:
    assert lake.catalog.locks is not None
    return lake.catalog.locks


def expect_others(lake: frazil.Lake) -> None:
    """As if this process had just seen other writers of the table."""
    contention_of(queue_of(lake)).saw_others(place(lake), SYSTEM.monotonic() + 60)


def place(lake: frazil.Lake) -> str:
    return queued_writer.place_of(lake.catalog.name, NAME, lake.catalog.load(NAME).metadata.uuid)


def lose_tickets(patch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """New tickets do not arrive, with an unknown outcome. Returns their arguments, so that they can arrive later."""
    in_flight: list[tuple[Any, ...]] = []

    def cut_off(*arguments: Any) -> None:
        in_flight.append(arguments)
        raise OutcomeUnknown("the connection broke")

    patch.setattr(SqlQueue, "_insert", cut_off)
    return in_flight


def go_away_at_the_swap(lake: frazil.Lake, patch: pytest.MonkeyPatch, *, has_landed: bool) -> None:
    """The next swap lands, or not; its answer is lost, and the catalog is unreachable afterwards."""
    swap, load = lake.catalog.swap, lake.catalog.load
    away = threading.Event()

    def lost(prepared: Any) -> Unknown:
        if has_landed:
            swap(prepared)
        away.set()
        return Unknown("no answer")

    def unreachable(ident: Ident) -> Any:
        if away.is_set():
            raise frazil.CatalogUnavailable("the catalog is away")
        return load(ident)

    patch.setattr(lake.catalog, "swap", lost)
    patch.setattr(lake.catalog, "load", unreachable)


class Meeting:
    """Holds the table's commit lock until all writers are queued."""

    def __init__(self, lake: frazil.Lake) -> None:
        self.lake = lake
        self._pool = ThreadPoolExecutor(16)
        self._queued = threading.Semaphore(0)
        self._expected = 0

    def write(self, write: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        """Start a write whose ticket is in the queue before this returns."""

        def on_phase(phase: Phase, _attempt: int) -> None:
            if phase is Phase.QUEUED:
                self._queued.release()

        future = self._pool.submit(write, *args, on_phase=on_phase, **options)
        assert self._queued.acquire(timeout=60), future.exception(0) if future.done() else "it is not queued"
        return future

    def close(self) -> None:
        self._pool.shutdown()


@contextmanager
def meeting(lake: frazil.Lake) -> Iterator[Meeting]:
    expect_others(lake)
    release = locks_of(lake).try_lock(NAME)
    assert release is not None
    found = Meeting(lake)
    try:
        yield found
    finally:
        release()
        found.close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No writer goes ahead without the commit lock while others queue, and no gap is left for foreign writers."""
    monkeypatch.setattr(queued_writer, "_STANDSTILL_S", 600.0)
    monkeypatch.setattr(queued_writer, "_GAPS_WITHOUT", 0.0)


def test_appends_that_meet_share_one_snapshot(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.append(rows(0))
    with meeting(lake) as met:
        futures = [met.write(table.append, rows(number, number + 100)) for number in (1, 2, 3, 4, 5)]
    done = [future.result() for future in futures]
    assert ids_in(table) == [0, 1, 2, 3, 4, 5, 101, 102, 103, 104, 105]
    assert {each.snapshot_id for each in done} == {done[0].snapshot_id}
    assert {each.sequence_number for each in done} == {2}
    assert [each.group_size for each in done] == [5] * 5
    assert sorted(each.group_index for each in done) == [0, 1, 2, 3, 4]
    assert all(each.shared and each.changed and not each.already_committed for each in done)
    assert all((each.rows_inserted, each.files_added, each.rebased_over) == (2, 1, 0) for each in done)
    assert all(each.bytes_written > 0 for each in done)
    summary = table.history()[-1].summary
    assert (summary[GROUP_SIZE], summary["added-data-files"], summary["added-records"]) == ("5", "5", "10")
    assert summary["total-records"] == "11"
    assert GROUP_DIGEST in summary


def test_p17_history_names_each_commit_of_a_shared_snapshot(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    with meeting(lake) as met:
        futures = [met.write(table.append, rows(number), commit_id=f"c{number}") for number in (1, 2, 3)]
    assert len({future.result().snapshot_id for future in futures}) == 1
    alone = table.append(rows(9))
    *_, shared, last = table.history()
    assert sorted((each.commit_id, each.rows, each.files) for each in shared.commits) == [
        ("c1", 1, 1),
        ("c2", 1, 1),
        ("c3", 1, 1),
    ]
    assert [each.commit_id for each in last.commits] == [alone.commit_id]


def test_a_lone_writer_shares_nothing_and_leaves_no_ticket(lake: frazil.Lake) -> None:
    done = lake.table("shop.events").append(rows(1))
    assert (done.group_size, done.group_index, done.shared) == (1, 0, False)
    assert queue_of(lake).count(place(lake)) == 0


def test_who_wants_a_snapshot_of_its_own_gets_it_in_the_same_swap(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    before = table.metadata_location
    with meeting(lake) as met:
        futures = [
            met.write(table.append, rows(1), own_snapshot=True),
            met.write(table.append, rows(2), snapshot_properties={"job": "nightly"}),
            met.write(table.append, rows(3)),
            met.write(table.append, rows(4)),
        ]
    own, named, *others = (future.result() for future in futures)
    assert len({own.snapshot_id, named.snapshot_id, others[0].snapshot_id}) == 3
    assert not own.shared
    assert not named.shared
    assert {each.group_size for each in (own, named, *others)} == {4}
    log = lake.catalog.load(NAME).metadata.raw["metadata-log"]
    assert log[-1]["metadata-file"] == before, "one metadata file for all"
    (entry,) = (each for each in table.history() if each.snapshot_id == named.snapshot_id)
    assert entry.summary["job"] == "nightly"
    assert ids_in(table) == [1, 2, 3, 4]


@pytest.mark.parametrize("most_files", [0, 100])
def test_large_operations_write_their_own_manifests(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, most_files: int
) -> None:
    monkeypatch.setattr(delegation, "MOST_FILES", most_files)
    table = lake.table("shop.events")
    table.append(rows(1))
    with meeting(lake) as met:
        futures = [met.write(table.append, rows(number, number + 1)) for number in (10, 20, 30)]
        bodies = [each.ticket.body for each in queue_of(lake).waiting(place(lake), 10)]
    done = [future.result() for future in futures]
    assert all((b"parquet" in body) is (most_files > 0) for body in bodies), "only a reference travels"
    assert len({each.snapshot_id for each in done}) == 1
    assert {(each.rows_inserted, each.files_added, each.group_size) for each in done} == {(2, 1, 3)}
    assert ids_in(table) == [1, 10, 11, 20, 21, 30, 31]
    head = lake.catalog.load(NAME).metadata
    newest = head.head_snapshot("main")
    assert newest is not None
    own = [each for each in _manifests(lake) if each.added_snapshot_id == newest.snapshot_id]
    assert len(own) == (3 if most_files == 0 else 1), "named as they are, or one for all"
    assert {each.added_rows_count for each in own} == {2 if most_files == 0 else 6}
    assert (newest.summary["added-records"], newest.summary["total-records"]) == ("6", "7")
    assert (newest.summary["added-data-files"], newest.summary["total-data-files"]) == ("3", "4")
    assert sum(each.rows for each in table.history()[-1].commits) == 6
    assert _metadata_files(lake) == _named_manifests(lake)
    table.delete("id = 10")
    assert ids_in(table) == [1, 11, 20, 21, 30, 31]


def test_large_upserts_write_their_own_manifests(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation, "MOST_FILES", 0)
    table = lake.table("shop.events")
    table.upsert(rows(1, 2, 3, x="first"))
    with meeting(lake) as met:
        futures = [met.write(table.upsert, rows(1, 2, x=value)) for value in "bc"]
    done = [future.result() for future in futures]
    last = max(zip(done, "bc", strict=True), key=lambda pair: pair[0].sequence_number)[1]
    found = {row["id"]: row["x"] for row in table.scan().to_arrow().to_pylist()}
    assert found == {1: last, 2: last, 3: "first"}
    assert {each.group_size for each in done} == {2}
    newest = lake.catalog.load(NAME).metadata.head_snapshot("main")
    assert newest is not None
    assert newest.operation == "overwrite"
    assert (newest.summary["added-equality-deletes"], newest.summary["total-equality-deletes"]) == ("2", "7")
    assert newest.summary["added-equality-delete-files"] == "1"
    assert _metadata_files(lake) == _named_manifests(lake)


def test_a_large_append_of_deleted_rows_is_left_to_its_writer(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation, "MOST_FILES", 0)
    table = lake.table("shop.events")
    table.append(rows(1, 2))
    with meeting(lake) as met:
        futures = {number: met.write(table.append, rows(number)) for number in (7, 8)}
        table.delete("id in (1, 8)", retry=frazil.Retry.none(), isolation="snapshot")
    with pytest.raises(frazil.ConflictError, match="a concurrent delete"):
        futures[8].result()
    futures[7].result()
    assert ids_in(table) == [2, 7]
    assert len(_data_files(lake)) == 3, "the first rows, their copy without row 1, and row 7"
    assert _metadata_files(lake) == _named_manifests(lake)


def test_manifests_of_groups_are_merged_beside_them(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.set_properties({"commit.manifest.min-count-to-merge": "4"})
    counts = []
    for first in range(0, 100, 10):
        with meeting(lake) as met:
            futures = [met.write(table.append, rows(first + number)) for number in range(2)]
        assert {future.result().group_size for future in futures} == {2}
        counts.append(len(_manifests(lake)))
    assert ids_in(table) == sorted(first + number for first in range(0, 100, 10) for number in range(2))
    assert max(counts) < 4
    by_others = [each.operation for each in table.history()]
    assert by_others.count("append") == 10
    assert by_others.count("replace") >= 2, "each of them a commit of its own, as there were no other writers"
    assert _metadata_files(lake) == _named_manifests(lake)


def test_a_merge_of_manifests_is_committed_in_a_group(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    for number in range(4):
        table.append(rows(number))
    table.set_properties({"commit.manifest.min-count-to-merge": "4"})
    merge, again = _merge_of(lake), _merge_of(lake)
    queued = threading.Semaphore(0)
    context = lake.commit_context(NAME, lambda phase, _: queued.release() if phase is Phase.QUEUED else None)

    def send(write: Write) -> frazil.Commit:
        return commit(context, write, Identity(str(uuid.uuid4()), "", given=False), Retry())

    with ThreadPoolExecutor(2) as pool, meeting(lake) as met:
        merging = pool.submit(send, merge)
        assert queued.acquire(timeout=60)
        appending = met.write(table.append, rows(10))
        late = pool.submit(send, again)
        assert queued.acquire(timeout=60)
    # Whichever writer leads, one of the two merges is too late.
    failed = [each for each in (merging, late) if each.exception() is not None]
    (landed,) = (each for each in (merging, late) if each not in failed)
    assert [str(each.exception()).count("no longer in the table") for each in failed] == [1]
    assert landed.result().snapshot_id == appending.result().snapshot_id
    assert not appending.result().shared, "a merge brings no rows"
    assert ids_in(table) == [0, 1, 2, 3, 10]
    assert [each.existing_files_count for each in _manifests(lake)] == [0, 4]
    assert _metadata_files(lake) == _named_manifests(lake)
    table.delete("id = 2")
    assert ids_in(table) == [0, 1, 3, 10]


def test_a_merge_of_manifests_changed_concurrently_leaves_nothing(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    for number in range(4):
        table.append(rows(number))
    table.set_properties({"commit.manifest.min-count-to-merge": "4"})
    merge = _merge_of(lake)
    table.delete("id = 2")
    identity = Identity(str(uuid.uuid4()), "", given=False)
    with pytest.raises(frazil.ConflictError, match="no longer in the table"):
        commit(lake.commit_context(NAME, None), merge, identity, Retry())
    assert ids_in(table) == [0, 1, 3]
    assert _metadata_files(lake) == _named_manifests(lake)


def _merge_of(lake: frazil.Lake) -> Write:
    found = merged(lake.storage, SYSTEM, lake.catalog.load(NAME).metadata, "main")
    assert found is not None
    return found


def _manifests(lake: frazil.Lake) -> list[Manifest]:
    newest = lake.catalog.load(NAME).metadata.head_snapshot()
    assert newest is not None
    assert newest.manifest_list is not None
    return list(read_manifest_list(lake.storage, newest.manifest_list))


def test_p11_a_sinks_mark_is_committed_with_its_batch(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")

    def write(sink: str, batch: int, *ids: int, on_phase: Any) -> Any:
        return table.stream_sink(id=sink, on_phase=on_phase)(rows(*ids), batch)

    with meeting(lake) as met:
        futures = [met.write(write, f"sink-{number}", 0, number) for number in (1, 2, 3)]
        twins = [met.write(write, "twins", 0, 50), met.write(write, "twins", 0, 50)]
    done = [future.result() for future in futures]
    assert len({each.snapshot_id for each in done}) == 1, "they share a snapshot"
    assert {each.group_size for each in done} == {5 - 1}
    failed = [future.exception() for future in twins]
    assert sorted(map(str, map(type, failed))) == sorted(map(str, (type(None), frazil.ConflictError)))
    assert ids_in(table) == [1, 2, 3, 50]
    marks = {key: value for key, value in table.properties.items() if key.startswith("frazil.sink.")}
    assert set(marks) == {"frazil.sink.sink-1", "frazil.sink.sink-2", "frazil.sink.sink-3", "frazil.sink.twins"}
    assert table.stream_sink(id="sink-1")(rows(1), 0) is None, "written before"
    assert _data_files(lake) == _live(table)


@pytest.mark.parametrize("losses", [0, 3], ids=["at first", "after a race that each has lost"])
def test_properties_that_are_set_at_once_are_set_by_one_swap(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    table = lake.table("shop.events")
    swap, lost = lake.catalog.swap, iter(range(losses))
    if losses:
        monkeypatch.setattr(lake.catalog, "swap", lambda each: swap(each) if next(lost, None) is None else Stale(None))
        monkeypatch.setattr(Contention, "is_busy", lambda *_: False)
    before = lake.catalog.load(NAME).metadata.raw.get("metadata-log", [])
    queued = threading.Semaphore(0)

    def set_one(number: int) -> frazil.Commit:
        context = lake.commit_context(NAME, lambda phase, _: queued.release() if phase is Phase.QUEUED else None)
        change = MetadataChange(table.uuid, PropertyChange({f"p{number}": "x"}))
        given = number == 2
        return commit(context, change, Identity(f"id-{number}" if given else str(uuid.uuid4()), "d", given), Retry())

    with ThreadPoolExecutor(3) as pool, meeting(lake):
        futures = [pool.submit(set_one, number) for number in range(3)]
        for _ in futures:
            assert queued.acquire(timeout=60)
    done = [future.result() for future in futures]
    assert {each.group_size for each in done} == {3}
    assert sorted(each.group_index for each in done) == [0, 1, 2]
    assert all(each.changed for each in done)
    assert {f"p{number}" for number in range(3)} <= set(table.properties)
    assert len(lake.catalog.load(NAME).metadata.raw["metadata-log"]) == len(before) + 1
    again = set_one(2)
    assert again.already_committed
    assert again.changed


def test_p7_only_the_last_snapshot_of_a_group_is_in_the_log(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    with meeting(lake) as met:
        for number in (1, 2, 3):
            met.write(table.append, rows(number), own_snapshot=True)
    metadata = lake.catalog.load(NAME).metadata
    assert len(metadata.raw["snapshots"]) == 3
    assert [each for _, each in metadata.snapshot_log()] == [metadata.ref_snapshot_id()]


def test_upserts_that_meet_keep_numbers_of_their_own(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.append(rows(1, 2, 3))
    table.upsert(rows(3, x="first"))
    with meeting(lake) as met:
        futures = [met.write(table.upsert, rows(1, 2, x=text)) for text in ("b", "c", "d")]
        futures.append(met.write(table.append, rows(7)))
    done = [future.result() for future in futures]
    assert len({each.sequence_number for each in done}) == 4
    assert {each.group_size for each in done} == {4}
    last = max(zip(done, "bcd", strict=False), key=lambda pair: pair[0].sequence_number)[1]
    found = {row["id"]: row["x"] for row in table.scan().to_arrow().to_pylist()}
    assert found == {1: last, 2: last, 3: "first", 7: "a"}
    assert table.scan().count() == 4, "one row for each key"


def test_a_conflict_fails_alone(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.append(rows(1, 2))
    with meeting(lake) as met:
        futures = {number: met.write(table.append, rows(number)) for number in (7, 8, 9)}
        # The queued appends have an older base; the delete lands before all of them.
        # It is one attempt, as of a writer without the queue.
        table.delete("id in (1, 8)", retry=frazil.Retry.none(), isolation="snapshot")
    with pytest.raises(frazil.ConflictError, match="a concurrent delete"):
        futures[8].result()
    assert futures[7].result().group_size >= 2
    assert futures[9].result().group_size >= 2
    assert ids_in(table) == [2, 7, 9]


def test_p4_a_member_is_checked_against_its_leader(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued_writer, "_MAX_YIELDS", 1_000_000)
    table = lake.table("shop.events")
    table.append(rows(1, 2))
    with meeting(lake) as met:
        doomed, fine = (met.write(table.append, rows(number)) for number in (8, 9))
        deleting = met.write(table.delete, "id in (1, 8)")
    with pytest.raises(frazil.ConflictError, match="a concurrent delete"):
        doomed.result()
    assert deleting.result().snapshot_id != fine.result().snapshot_id
    assert fine.result().group_size == 2
    assert ids_in(table) == [2, 9]


def test_an_operation_that_reads_can_lead_a_group(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.append(rows(1, 2))
    with meeting(lake) as met:
        futures = [met.write(table.append, rows(number)) for number in (5, 6)]
        deleting = met._pool.submit(table.delete, "id = 1")
    done, deleted = [future.result() for future in futures], deleting.result()
    assert ids_in(table) == [2, 5, 6]
    assert deleted.rows_deleted == 1
    assert done[0].shared
    assert deleted.snapshot_id != done[0].snapshot_id


def test_a_writer_that_has_reserved_the_lock_gets_it_before_newcomers(lake: frazil.Lake) -> None:
    """Appends follow each other without end, and each finds the commit lock free; the delete still commits."""
    table = lake.table("shop.events")
    table.append(rows(1, 2))
    expect_others(lake)
    release = locks_of(lake).try_lock(NAME)
    assert release is not None
    met = Meeting(lake)
    deleting = met.write(table.delete, "id = 1")
    reserved = queue_of(lake).first(place(lake))
    assert reserved is not None
    assert reserved.ticket.is_reservation
    # The lock is free, and its reserving writer sleeps: a newcomer yields and notifies it.
    release()
    done = table.append(rows(5))
    deleted = deleting.result(timeout=60)
    met.close()
    assert (deleted.rows_deleted, deleted.attempts) == (1, 1)
    assert deleted.sequence_number < done.sequence_number
    assert done.group_size == 2, "the delete took it along"
    assert ids_in(table) == [2, 5]
    assert queue_of(lake).first(place(lake)) is None


def test_p3_a_reservation_of_a_dead_writer_stops_no_other_writer(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    expect_others(lake)
    dead = QueuedCommit("dead", lake.catalog.load(NAME).metadata.uuid, "dead", RESERVATION, b"", "", place(lake))
    queue_of(lake).put(dead, 60_000)
    for number in range(4):
        table.append(rows(number))
    assert ids_in(table) == [0, 1, 2, 3]
    left = queue_of(lake).first(place(lake))
    assert left is not None
    assert left.tries == queued_writer._MAX_YIELDS


@pytest.mark.parametrize("verb", ["delete", "conflict", "nothing"])
def test_a_reservation_does_not_outlive_its_write(lake: frazil.Lake, verb: str) -> None:
    table = lake.table("shop.events")
    table.append(rows(1))
    with meeting(lake) as met:
        where = "id = 9" if verb == "nothing" else "id = 1"
        waiting = met.write(table.update, set={"x": "'new'"}, where=where, on_conflict="abort")
        if verb == "conflict":
            table.update(set={"x": "'other'"}, where="id = 1", retry=frazil.Retry.none())
    if verb == "conflict":
        with pytest.raises(frazil.ConflictError):
            waiting.result()
    else:
        assert waiting.result().changed is (verb == "delete")
    assert queue_of(lake).first(place(lake)) is None


@pytest.mark.parametrize("verb", ["delete", "upsert", "append"])
@pytest.mark.parametrize("lake", ["sqlite", "postgres"], indirect=True)
def test_p9_a_ticket_tells_that_a_swap_has_landed_whose_answer_was_lost(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Without it this would be an unknown outcome: the head cannot be read any more."""
    table = lake.table("shop.events")
    table.append(rows(1, 2))
    catalog, sent = lake.catalog, lake.catalog.swap

    def lost(prepared: Any) -> Any:
        sent(prepared)
        monkeypatch.setattr(catalog, "load", unreachable)
        return Unknown("the answer was lost")

    def unreachable(_ident: Ident) -> Any:
        raise frazil.CatalogUnavailable("no answer")

    with meeting(lake) as met:
        monkeypatch.setattr(catalog, "swap", lost)
        write: Callable[..., Any] = getattr(table, verb)
        what = "id = 1" if verb == "delete" else rows(2 if verb == "upsert" else 3, x="new")
        waiting = met.write(write, what, retry=frazil.Retry(base_ms=1, cap_ms=1))
    done = waiting.result(timeout=60)
    monkeypatch.undo()
    assert (done.rows_deleted, done.rows_inserted) == {"delete": (1, 0), "upsert": (0, 1), "append": (0, 1)}[verb]
    assert ids_in(table) == {"delete": [2], "upsert": [1, 2], "append": [1, 2, 3]}[verb]
    assert _metadata_files(lake) == _named_manifests(lake)


def test_a_column_that_is_dropped_concurrently_fails_alone(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.append(rows(1))
    with meeting(lake) as met:
        doomed = met.write(table.append, rows(2))
        table.drop_column("x", retry=frazil.Retry.none())
        fine = met.write(table.append, pa.table({"id": [3]}, schema=SCHEMA.remove(1)))
    with pytest.raises(frazil.ConflictError, match="dropped"):
        doomed.result()
    fine.result()
    assert ids_in(table) == [1, 3]


@pytest.mark.parametrize("lake", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("place_in_line", [0, 1, 2, 3])
def test_a_member_that_differs_in_nulls_only_fails_alone(lake: frazil.Lake, place_in_line: int) -> None:
    table = lake.table("shop.events")
    table.append(rows(1))
    given = [rows(2), rows(3), rows(4)]
    given.insert(place_in_line, pa.table({"id": [5], "x": [None]}, schema=SCHEMA))
    with meeting(lake) as met:
        found = [met.write(table.append, each) for each in given]
        with table.pyiceberg().update_schema(allow_incompatible_changes=True) as update:
            update._set_column_requirement("x", required=True)
    with pytest.raises(frazil.ConflictError, match="was made required concurrently"):
        found.pop(place_in_line).result()
    assert [each.result().rows_inserted for each in found] == [1, 1, 1]
    assert ids_in(table) == [1, 2, 3, 4]


def test_p3_a_writer_that_gives_up_withdraws_and_leaves_no_file(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.append(rows(1))
    with meeting(lake) as met:
        gone = met.write(table.append, rows(2), retry=frazil.Retry(total_s=0.05))
        stays = met.write(table.append, rows(3))
        with pytest.raises(frazil.RetriesExhausted):
            gone.result()
    stays.result()
    assert ids_in(table) == [1, 3]
    assert _data_files(lake) == _live(table)


def test_p3_an_interrupted_caller_withdraws(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    with meeting(lake):

        def interrupt(phase: Phase, _attempt: int) -> None:
            if phase is Phase.QUEUED:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            table.append(rows(1), on_phase=interrupt)
    assert queue_of(lake).count(place(lake)) == 0
    table.append(rows(2))
    assert ids_in(table) == [2]
    assert _data_files(lake) == _live(table)


def test_p3_an_interrupt_after_the_commit_says_so(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    release = locks_of(lake).try_lock(NAME)
    assert release is not None
    expect_others(lake)

    def late(phase: Phase, _attempt: int) -> None:
        if phase is Phase.QUEUED:
            # A leader commits it at this moment.
            release()
            table.append(rows(2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        table.append(rows(1), on_phase=late)
    assert any("committed nevertheless" in note for note in caught.value.__notes__)
    assert ids_in(table) == [1, 2]


def test_p2_writers_go_ahead_without_a_lock_that_is_never_released(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued_writer, "_STANDSTILL_S", 0.05)
    monkeypatch.setattr(queued_writer, "_SLEEP_S", 0.02)
    table = lake.table("shop.events")
    expect_others(lake)
    stuck = locks_of(lake).try_lock(NAME)
    assert stuck is not None
    done = table.append(rows(1))
    assert done.changed
    assert locks_of(lake).try_lock(NAME) is None, "the stopped one still has its lock"
    stuck()


def _put(lake: frazil.Lake, key: str, **more: Any) -> QueuedCommit:
    """A ticket as another process would have put it, of an append whose file exists."""
    table_uuid = lake.catalog.load(NAME).metadata.uuid
    found = replace(
        QueuedCommit(key, table_uuid, f"commit-{key}", delegation.VERSION, b"{}", queue_key=place(lake)), **more
    )
    queue_of(lake).put(found, 60_000)
    return found


@pytest.mark.parametrize(
    "bad",
    [
        {"body": b"\xff no JSON"},
        {"body": b"{}"},
        {"body": b'{"kind": "append"}'},
        {"body": b"[]"},
    ],
    ids=["no JSON", "empty", "half of it", "a list"],
)
def test_p4_an_unreadable_ticket_is_returned_and_stops_no_other_writer(lake: frazil.Lake, bad: dict[str, Any]) -> None:
    table = lake.table("shop.events")
    expect_others(lake)
    _put(lake, "odd", **bad)
    table.append(rows(1))
    status = queue_of(lake).status("odd")
    assert status is not None
    assert status.state is QueueState.RETURNED
    assert ids_in(table) == [1]


def test_p4_a_ticket_of_a_later_version_is_not_read(lake: frazil.Lake) -> None:
    """Its body may look like one of today and mean something else."""
    table = lake.table("shop.events")
    with meeting(lake) as met:
        waiting = met.write(table.append, rows(1))
        (today,) = queue_of(lake).waiting(place(lake), 10)
        _put(lake, "later", version=delegation.VERSION + 1, body=today.ticket.body)
    waiting.result()
    status = queue_of(lake).status("later")
    assert status is not None
    assert status.state is QueueState.RETURNED
    assert ids_in(table) == [1]


def test_p4_a_leader_opens_no_file_for_members(lake: frazil.Lake) -> None:
    """Statistics do not decide here whether the rows match a concurrent delete."""
    table = lake.table("shop.events")
    table.append(rows(1, 2))
    with meeting(lake) as met:
        futures = [
            met.write(table.append, pa.table({"id": [number, number + 1], "x": ["a", "z"]}, schema=SCHEMA))
            for number in (10, 20, 30)
        ]
        table.delete("id = 1 or x = 'm'", retry=frazil.Retry.none(), isolation="snapshot")
    # The leader has read its own file; the two members were returned and have read theirs.
    assert sorted(future.result().attempts for future in futures) == [1, 2, 2]
    assert ids_in(table) == [2, 10, 11, 20, 21, 30, 31]


def test_p4_a_member_of_failed_groups_is_left_to_its_writer(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table, me = lake.table("shop.events"), threading.current_thread()
    with meeting(lake) as met:
        suspect = met.write(table.append, rows(1))
        fine = met.write(table.append, rows(2))
        oldest, _ = queue_of(lake).waiting(place(lake), 2)
        for _ in range(MOST_TRIES):
            queue_of(lake).tried([oldest.ticket.key])
        with monkeypatch.context() as alone:
            # No other writer leads concurrently.
            alone.setattr(
                locks_of(lake), "try_lock", lambda _: (lambda: None) if threading.current_thread() is me else None
            )
            done = table.append(rows(3))
        assert fine.result().snapshot_id == done.snapshot_id
        status = queue_of(lake).status(oldest.ticket.key)
        assert status is not None
        assert status.state is QueueState.RETURNED
    assert suspect.result().snapshot_id != done.snapshot_id
    assert ids_in(table) == [1, 2, 3]


def test_the_same_commit_id_twice_in_one_group_lands_once(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    with meeting(lake) as met:
        futures = [met.write(table.append, rows(1), commit_id="same") for _ in range(3)]
        other = met.write(table.append, rows(2))
    done = [future.result() for future in futures]
    other.result()
    assert ids_in(table) == [1, 2]
    assert sorted(each.already_committed for each in done) == [False, True, True]
    again = table.append(rows(1), commit_id="same")
    assert again.already_committed
    assert again.snapshot_id == done[0].snapshot_id
    assert again.rows_inserted == 1
    assert _data_files(lake) == _live(table)


def test_two_names_of_one_table_do_not_mix(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.append(rows(0))
    copy = lake.register_table("shop.copy", table.metadata_location)
    with meeting(lake) as met:
        futures = [met.write(table.append, rows(number)) for number in (1, 2)]
        copy.append(rows(3))
        copy.append(rows(4))
    assert {future.result().group_size for future in futures} == {2}
    assert ids_in(table) == [0, 1, 2]
    assert ids_in(copy) == [0, 3, 4]


def test_branches_do_not_mix(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.append(rows(0))
    table.create_branch("audit")
    with meeting(lake) as met:
        futures = [met.write(table.append, rows(n), branch=b) for n, b in ((1, "main"), (2, "audit"), (3, "main"))]
    assert {future.result().group_size for future in futures} == {3}
    assert ids_in(table) == [0, 1, 3]
    audited: list[Any] = table.scan(ref="audit").to_arrow()["id"].to_pylist()
    assert sorted(audited) == [0, 2]


def test_a_group_leaves_no_orphan_file(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.set_properties({"commit.manifest.min-count-to-merge": "2"})
    for first in (0, 10, 20):
        with meeting(lake) as met:
            for number in range(3):
                met.write(table.append, rows(first + number))
            met.write(table.upsert, rows(first + 5))
    assert _data_files(lake) == _named_files(lake)
    assert _metadata_files(lake) == _named_manifests(lake)


@pytest.fixture
def theirs(tmp_path: Path) -> SqlCatalog:
    (tmp_path / "wh").mkdir()
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/wh")
    catalog.create_namespace("shop")
    catalog.create_table("shop.events", SCHEMA)
    return catalog


@contextmanager
def lake_on(theirs: SqlCatalog) -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as lake:
        lake._opened = replace(lake._opened, catalog=ForeignCatalog(theirs, Storage(), SYSTEM), storage=Storage())
        yield lake


def test_threads_on_a_foreign_catalog_are_committed_together(theirs: SqlCatalog) -> None:
    with lake_on(theirs) as lake:
        table = lake.table("shop.events")
        with meeting(lake) as met:
            futures = [met.write(table.append, rows(number)) for number in (1, 2, 3)]
            futures.append(met.write(table.append, rows(4), commit_id="mine"))
        done = [future.result() for future in futures]
        assert {each.group_size for each in done} == {4}
        assert len({each.snapshot_id for each in done[:3]}) == 1
        assert ids_in(table) == [1, 2, 3, 4]
        assert table.append(rows(4), commit_id="mine").already_committed
        # The leader's own id must also be found again.
        release = locks_of(lake).try_lock(NAME)
        assert release is not None
        with ThreadPoolExecutor(1) as pool:
            queued = threading.Event()
            waits = pool.submit(
                table.append, rows(5), on_phase=lambda phase, _: queued.set() if phase is Phase.QUEUED else None
            )
            assert queued.wait(60)
            release()
            table.append(rows(6), commit_id="leader's")
            waits.result()
        assert table.append(rows(6), commit_id="leader's").already_committed
        assert ids_in(table) == [1, 2, 3, 4, 5, 6]


def _never_sent(*_: Any) -> None:
    raise requests.exceptions.ConnectionError(NewConnectionError(cast("Any", None), "refused"))


@pytest.mark.parametrize("then", ["never sent", "refused"])
def test_p30_a_request_that_may_still_arrive_keeps_its_files(
    theirs: SqlCatalog, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The connection breaks, the table moves on, and what is answered to the second try says nothing of the first."""
    send, in_flight = theirs.commit_table, []

    def broken(*request: Any) -> None:
        in_flight.append(request)
        monkeypatch.setattr(theirs, "commit_table", send)
        # Nothing that the request names is different, or it is different for a while only.
        if then == "never sent":
            with theirs.load_table("shop.events").transaction() as other:
                other.set_properties(owner="somebody")
            monkeypatch.setattr(theirs, "commit_table", _never_sent)
        else:
            with theirs.load_table("shop.events").update_schema() as change:
                change.add_column("y", LongType())
        raise requests.exceptions.ConnectionError("reset by peer")

    with lake_on(theirs) as lake:
        table = lake.table("shop.events")
        monkeypatch.setattr(theirs, "commit_table", broken)
        with pytest.raises(frazil.CommitUnknown):
            table.append(rows(1), retry=Retry(tries=1, fault_tries=0))
        monkeypatch.undo()
        if then == "refused":
            with theirs.load_table("shop.events").update_schema() as change:
                change.delete_column("y")
        send(*in_flight[0])
        assert ids_in(table) == [1]


def test_p30_a_change_of_properties_is_searched_before_it_is_sent_again(
    theirs: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has landed without an answer, and another writer has set the same property since."""
    send, load = theirs.commit_table, theirs.load_table

    def away(*_: Any) -> None:
        monkeypatch.setattr(theirs, "load_table", load)
        raise requests.exceptions.ConnectionError("no answer")

    def unheard(*request: Any) -> None:
        send(*request)
        monkeypatch.setattr(theirs, "commit_table", send)
        with load("shop.events").transaction() as other:
            other.set_properties(owner="somebody")
        monkeypatch.setattr(theirs, "load_table", away)
        raise requests.exceptions.ConnectionError("reset by peer")

    with lake_on(theirs) as lake:
        table = lake.table("shop.events")
        monkeypatch.setattr(theirs, "commit_table", unheard)
        table.set_properties({"owner": "me"})
        assert lake.table("shop.events").properties["owner"] == "somebody"


def _all_files(lake: frazil.Lake) -> list[str]:
    location = lake.catalog.load(NAME).metadata.location
    return [info.path.removeprefix("file://") for info in lake.storage.list(location)]


def _data_files(lake: frazil.Lake) -> set[str]:
    return {path for path in _all_files(lake) if path.endswith(".parquet")}


def _metadata_files(lake: frazil.Lake) -> set[str]:
    return {path for path in _all_files(lake) if path.endswith(".avro")}


def _named_manifests(lake: frazil.Lake) -> set[str]:
    """Every manifest list, and every manifest in one."""
    named = {str(snapshot.manifest_list) for snapshot in lake.catalog.load(NAME).metadata.snapshots()}
    for path in list(named):
        named |= {each.manifest_path for each in read_manifest_list(lake.storage, path)}
    return {path.removeprefix("file://") for path in named}


def _named_files(lake: frazil.Lake) -> set[str]:
    snapshot = lake.catalog.load(NAME).metadata.head_snapshot()
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    lists = read_manifest_list(lake.storage, snapshot.manifest_list)
    entries = (entry for each in lists for entry in read_manifest(lake.storage, each))
    return {entry.file.file_path.removeprefix("file://") for entry in entries}


def _live(table: frazil.Table) -> set[str]:
    return {file.path.removeprefix("file://") for file in table.files()}


@pytest.mark.parametrize("lake", ["sqlite", "postgres"], indirect=True)
def test_p10_a_ticket_that_is_gone_is_an_unknown_outcome(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    table.append(rows(1))
    with meeting(lake) as met:
        lost = met.write(table.append, rows(2), retry=frazil.Retry(total_s=20))
        _run(lake, "DELETE FROM frazil_queue")
    with pytest.raises(frazil.CommitUnknown):
        lost.result()
    assert ids_in(table) == [1]
    assert len(_data_files(lake)) == 2, "what may have landed is not deleted"
    table.append(rows(3))


@pytest.mark.parametrize("lake", ["sqlite", "postgres"], indirect=True)
def test_p10_a_queue_that_was_dropped_comes_back_with_the_next_connection(lake: frazil.Lake) -> None:
    _run(lake, "DROP TABLE frazil_queue")
    with pickle.loads(pickle.dumps(lake)) as again:
        assert queue_of(again).count(place(again)) == 0
        with meeting(again) as met:
            futures = [met.write(again.table("shop.events").append, rows(number)) for number in (1, 2)]
        assert {future.result().group_size for future in futures} == {2}


def _run(lake: frazil.Lake, sql: str) -> None:
    lake.catalog.store._engine.write(lambda db: db.execute(sql))  # type: ignore[attr-defined]


class _Chance:
    """A runtime that notes how long it was asked to sleep."""

    def __init__(self, random: float) -> None:
        self.slept: list[float] = []
        self.runtime = replace(SYSTEM, sleep=self.slept.append, random=lambda: random)


def _line(lake: frazil.Lake, chance: _Chance) -> queued_writer.QueuedWriter:
    table_uuid = lake.catalog.load(NAME).metadata.uuid
    identity = Identity("c", "d", given=False)
    return queued_writer.QueuedWriter(
        NAME, lake.catalog, queue_of(lake), chance.runtime, table_uuid, None, identity, tuple
    )


def test_p8_foreign_writers_are_left_gaps(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued_writer, "_GAPS_WITHOUT", 1 / 128)
    rarely, often = _Chance(0.001), _Chance(0.2)
    _line(lake, rarely).gather()
    assert queued_writer.GAP_S in rarely.slept, "now and then, so that a foreign writer gets a chance"
    _line(lake, often).gather()
    assert queued_writer.GAP_S not in often.slept
    table = lake.table("shop.events")
    if isinstance(queue_of(lake), MemoryQueue):
        contention_of(queue_of(lake)).saw_foreign_commit(place(lake), SYSTEM.monotonic())
    else:
        table.pyiceberg().append(rows(1))
        table.append(rows(2))
    _line(lake, often).gather()
    assert queued_writer.GAP_S in often.slept


@pytest.mark.parametrize("lake", ["sqlite", "postgres"], indirect=True)
def test_p8_a_writer_that_knows_no_queue_lands_beside_a_busy_one(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The chance to be seen for the first time comes sooner than in real life.
    monkeypatch.setattr(queued_writer, "_GAPS_WITHOUT", 1 / 4)
    table = lake.table("shop.events")
    stop = threading.Event()

    def busy(first: int) -> int:
        count = 0
        while not stop.is_set():
            table.append(rows(first + count))
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(busy, first) for first in (1_000, 2_000, 3_000)]
        landed = 0
        try:
            for _ in range(200):
                with suppress(CommitFailedException):
                    table.pyiceberg().append(rows(landed))
                    landed += 1
                if landed == 3:
                    break
        finally:
            stop.set()
        ours = sum(future.result() for future in futures)
    assert landed == 3
    assert len(ids_in(table)) == ours + landed


def test_a_swap_that_could_not_be_sent_does_not_stop_the_members(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table("shop.events")
    swap, failures = lake.catalog.swap, [1, 2]

    def failing(prepared: Any) -> Any:
        if failures:
            failures.pop()
            raise frazil.CatalogUnavailable("the database is away")
        return swap(prepared)

    with meeting(lake) as met:
        monkeypatch.setattr(lake.catalog, "swap", failing)
        futures = [met.write(table.append, rows(number)) for number in (1, 2, 3)]
    assert all(future.result().changed for future in futures)
    assert ids_in(table) == [1, 2, 3]
    assert not failures


@pytest.mark.parametrize("lake", ["memory"], indirect=True)
def test_p9_members_of_a_swap_of_unknown_outcome_get_commit_unknown(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table("shop.events")
    with meeting(lake) as met:
        go_away_at_the_swap(lake, monkeypatch, has_landed=True)
        once = frazil.Retry(tries=2, base_ms=0, fault_tries=1)
        futures = [met.write(table.append, rows(number), retry=once) for number in (1, 2)]
    for future in futures:
        with pytest.raises(frazil.CommitUnknown):
            future.result()
    monkeypatch.undo()
    assert ids_in(table) == [1, 2], "nothing was deleted"


@pytest.mark.parametrize("options", [{}, {"commit_id": "chosen"}], ids=["any id", "chosen id"])
@pytest.mark.parametrize("lake", ["sqlite", "postgres"], indirect=True)
def test_p9_a_ticket_whose_arrival_was_not_confirmed_may_have_been_committed(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    table = lake.table("shop.events")
    expect_others(lake)
    insert = SqlQueue._insert

    def unconfirmed(self: SqlQueue, ticket: QueuedCommit, fate: QueueState, lives_ms: int) -> None:
        insert(self, ticket, fate, lives_ms)
        monkeypatch.undo()
        # The ticket has arrived, and another leader commits it before its writer asks again.
        table.append(rows(100))
        monkeypatch.setattr(Contention, "is_busy", lambda *_: False)
        raise OutcomeUnknown("the connection broke")

    monkeypatch.setattr(SqlQueue, "_insert", unconfirmed)
    done = table.append(rows(1), **options)
    monkeypatch.undo()
    assert ids_in(table) == [1, 100], "once, and its file is there"
    assert done.group_size == 2


@pytest.mark.parametrize("options", [{}, {"commit_id": "chosen"}], ids=["any id", "chosen id"])
def test_p9_a_member_may_have_landed_by_a_late_swap(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    table = lake.table("shop.events")
    in_flight: list[Any] = []

    def cut_off(prepared: Any) -> Unknown:
        in_flight.append(prepared)
        return Unknown("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(lake.catalog, "swap", cut_off)
        with pytest.raises(frazil.CommitUnknown) as unknown:
            table.append(rows(1), retry=frazil.Retry(tries=1), **options)
    with meeting(lake) as met:
        # Whichever writer leads: these two were queued first.
        others = [met.write(table.append, rows(number)) for number in (2, 3)]
        again = met.write(table.append, rows(1), commit_id=unknown.value.commit_id)
        assert isinstance(lake.catalog.swap(in_flight[0]), Committed)
    assert again.result().already_committed
    assert all(other.result().changed for other in others)
    assert ids_in(table) == [1, 2, 3]


@pytest.mark.parametrize("has_landed", [True, False])
@pytest.mark.parametrize("lake", ["memory"], indirect=True)
def test_p9_a_swap_of_its_own_without_an_answer_can_be_sent_again_under_its_id(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, has_landed: bool
) -> None:
    table = lake.table("shop.events")
    expect_others(lake)
    with monkeypatch.context() as patch:
        go_away_at_the_swap(lake, patch, has_landed=has_landed)
        with pytest.raises(frazil.CommitUnknown) as unknown:
            table.append(rows(1), retry=frazil.Retry(tries=2, base_ms=0, fault_tries=1))
    done = table.append(rows(1), commit_id=unknown.value.commit_id)
    assert done.already_committed is has_landed
    assert ids_in(table) == [1]


@pytest.mark.parametrize("lake", ["sqlite", "postgres"], indirect=True)
def test_p9_a_ticket_that_arrives_after_its_id_was_repeated_is_never_committed(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table("shop.events")
    expect_others(lake)
    insert = SqlQueue._insert
    in_flight = lose_tickets(monkeypatch)

    def away(*_: Any) -> None:
        raise frazil.CatalogUnavailable("the catalog is away")

    monkeypatch.setattr(SqlQueue, "withdraw", away)
    with pytest.raises(frazil.CommitUnknown) as unknown:
        table.append(rows(1))
    monkeypatch.undo()
    table.append(rows(1), commit_id=unknown.value.commit_id)
    insert(*in_flight[0])
    expect_others(lake)
    table.append(rows(100))
    assert ids_in(table) == [1, 100], "once"


@pytest.mark.parametrize("lake", ["sqlite", "postgres"], indirect=True)
def test_p9_a_ticket_that_arrives_during_its_withdrawal_is_never_committed(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table("shop.events")
    expect_others(lake)
    insert, status = SqlQueue._insert, SqlQueue.status
    in_flight = lose_tickets(monkeypatch)

    def late(*arguments: Any) -> Any:
        if in_flight:
            insert(*in_flight[0])
            in_flight.clear()
        return status(*arguments)

    monkeypatch.setattr(SqlQueue, "status", late)
    with pytest.raises(frazil.CatalogUnavailable, match="was not committed"):
        table.append(rows(1))
    monkeypatch.undo()
    assert queue_of(lake).count(place(lake)) == 0
    expect_others(lake)
    table.append(rows(100))
    assert ids_in(table) == [100]


@pytest.mark.parametrize("lake", ["sqlite", "postgres"], indirect=True)
def test_p9_a_waiting_ticket_proves_that_the_swap_has_not_landed(
    lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table("shop.events")
    expect_others(lake)
    monkeypatch.setattr(lake.catalog, "swap", lambda _prepared: Unknown("the connection broke before it arrived"))
    with pytest.raises(frazil.CatalogUnavailable, match="was not committed"):
        table.append(rows(1), retry=frazil.Retry(tries=2, base_ms=0, fault_tries=1))
    monkeypatch.undo()
    assert ids_in(table) == []
    assert _data_files(lake) == set()
    assert queue_of(lake).count(place(lake)) == 0
