"""Files leave the disk when nothing needs them, and not before: expiry, orphan removal, purge (rules P13, P18, P42)."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.catalog.base import FileKind, NotedFile
from frazil.commit.context import Phase
from frazil.format.storage import local_path
from frazil.lake import Lake
from frazil.model import Ident
from frazil.runtime import SYSTEM
from frazil.services.context import DeletionPhase, ServiceContext
from frazil.services.deletion import DeletionRun
from frazil.services.orphans import OrphanReport
from surface.disk import DAY_MS, FUTURE, NAME, change_much, files, filled, ids, named, stray

NOW = dt.timedelta(0)


@pytest.fixture(params=["folder", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    uri = str(tmp_path / "lake") if request.param == "folder" else f"memory://{tmp_path.name}"
    with frazil.connect(uri) as lake:
        lake.create_namespace("s")
        yield lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    return filled(lake)


# Expiry


def test_expiry_deletes_exactly_what_nothing_needs(lake: frazil.Lake, table: frazil.Table) -> None:
    change_much(table)
    done = table.expire_snapshots(FUTURE, retain_last=1)
    assert ids(table) == [1, 3, 4, 5]
    assert files(lake, table) == named(lake)
    found = done.expired
    assert found is not None
    assert (found.snapshots, found.unfinished, found.deferred, found.kept) == (6, "", 0, 0)
    assert found.data_files == 5
    assert found.position_delete_files == 1
    assert found.equality_delete_files == 1
    assert found.manifest_lists == 6
    assert found.manifests > 0
    again = table.expire_snapshots(FUTURE, retain_last=1)
    assert again.expired is not None
    assert (again.changed, again.expired.files_deleted) == (False, 0)


def test_files_of_an_earlier_expiry_go_with_the_next_one(lake: frazil.Lake, table: frazil.Table) -> None:
    change_much(table)
    before = files(lake, table)
    kept = table.expire_snapshots(FUTURE, delete_files=False)
    assert kept.expired is not None
    assert (kept.expired.snapshots, kept.expired.files_deleted) == (6, 0)
    assert before <= files(lake, table)
    table.expire_snapshots(FUTURE)
    assert files(lake, table) == named(lake)


def test_files_of_snapshots_that_commits_expired_go_as_well(lake: frazil.Lake, table: frazil.Table) -> None:
    table.set_properties({"frazil.retention.in-commit": "true", "history.expire.max-snapshot-age-ms": "0"})
    for number in range(60):
        table.append([{"id": 100 + number, "v": "x"}])
        table.delete(f"id = {100 + number}")
    kept = len(table.history())
    assert kept < 120
    table.expire_snapshots()
    assert ids(table) == [0, 1, 2, 3, 4, 5]
    assert files(lake, table) == named(lake)


def test_branches_and_tags_keep_their_files(lake: frazil.Lake, table: frazil.Table) -> None:
    table.create_tag("before")
    table.create_branch("side")
    table.append([{"id": 50, "v": "side"}], branch="side")
    table.delete("true")
    table.expire_snapshots(FUTURE)
    assert files(lake, table) == named(lake)
    assert ids(table, "before") == [0, 1, 2, 3, 4, 5]
    assert ids(table, "side") == [0, 1, 2, 3, 4, 5, 50]
    table.drop_tag("before")
    table.drop_branch("side")
    table.expire_snapshots(FUTURE)
    assert ids(table) == []
    assert files(lake, table) == named(lake)


def test_p42_an_open_transaction_keeps_the_files_that_it_reads(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction() as tx:
        mine = tx.table(NAME)
        mine.scan(limit=1).to_arrow()
        table.delete("true")
        done = table.expire_snapshots(FUTURE)
        assert done.expired is not None
        assert (done.expired.deferred, done.expired.data_files) == (1, 0)
        assert mine.scan().count() == 6
    table.expire_snapshots(FUTURE)
    assert files(lake, table) == named(lake)


def test_p42_a_transaction_whose_snapshot_expires_while_it_begins_is_told(
    lake: frazil.Lake, table: frazil.Table
) -> None:
    filled(lake, "s.other")
    late = lake.transaction()
    late.table("s.other")  # pins the instant of all tables
    table.delete("true")
    table.expire_snapshots(FUTURE)
    with pytest.raises(frazil.StorageError, match="expired while it began"):
        late.table(NAME)
    late.rollback()


def test_another_name_of_the_same_table_keeps_what_it_needs(lake: frazil.Lake, table: frazil.Table) -> None:
    other = lake.register_table("s.same", table.metadata_location)
    table.delete("true")
    done = table.expire_snapshots(FUTURE)
    assert done.expired is not None
    assert done.expired.data_files == 0
    assert ids(other) == [0, 1, 2, 3, 4, 5]
    lake.drop_table("s.same")
    table.append([{"id": 1, "v": "n"}])
    table.expire_snapshots(FUTURE)
    table.remove_orphans(NOW, dry_run=False)
    assert files(lake, table) == named(lake)


def test_p13_files_in_the_folder_of_another_table_stay(lake: frazil.Lake, table: frazil.Table) -> None:
    other = filled(lake, "s.other")
    paths = [each.path for each in other.files()]
    table.add_files(paths)
    table.delete("true")
    table.expire_snapshots(FUTURE)
    assert ids(other) == [0, 1, 2, 3, 4, 5]
    lake.drop_table(NAME, purge=True)
    assert ids(other) == [0, 1, 2, 3, 4, 5]


def test_earlier_metadata_files_go_by_age(lake: frazil.Lake, table: frazil.Table) -> None:
    table.set_properties({"write.metadata.previous-versions-max": "3"})
    for number in range(12):
        table.set_properties({"n": str(number)})
    assert sum(name.endswith(".metadata.json") for name in files(lake, table)) > 12
    table.set_properties({"frazil.retention.min-age-ms": str(DAY_MS)})
    table.expire_snapshots(FUTURE)
    assert sum(name.endswith(".metadata.json") for name in files(lake, table)) > 12
    table.remove_properties("frazil.retention.min-age-ms")
    table.set_properties({"frazil.retention.min-age-ms": "0"})
    table.expire_snapshots(FUTURE)
    assert files(lake, table) == named(lake)


@pytest.mark.parametrize("most_hashes", [1, 2, 1000])
def test_the_work_is_split_into_passes(lake: frazil.Lake, table: frazil.Table, most_hashes: int) -> None:
    change_much(table)
    table.append([{"id": 70 + number, "v": "x"} for number in range(3)])
    table.expire_snapshots(FUTURE, delete_files=False)
    context = ServiceContext(lake.catalog, lake.storage, Ident.parse(NAME))
    DeletionRun(context, most_hashes=most_hashes).run()
    assert files(lake, table) == named(lake)


def test_a_noted_file_that_is_needed_again_stays(lake: frazil.Lake, table: frazil.Table) -> None:
    path = next(each.path for each in table.files())
    log = lake.catalog.deletions
    assert log is not None
    log.note(table.uuid, [NotedFile(path, FileKind.DATA)])
    done = table.expire_snapshots(FUTURE)
    assert done.expired is not None
    assert (done.expired.kept, done.expired.data_files) == (1, 0)
    assert ids(table) == [0, 1, 2, 3, 4, 5]
    assert log.noted(table.uuid, "", 10) == []


class Interrupted(BaseException):
    """As kill -9: nothing cleans up."""


@pytest.mark.parametrize("phase", [each for each in DeletionPhase if each is not DeletionPhase.LISTED])
def test_an_expiry_that_is_interrupted_anywhere_is_finished_by_the_next(
    lake: frazil.Lake, table: frazil.Table, phase: DeletionPhase
) -> None:
    change_much(table)

    def stop(reached: DeletionPhase) -> None:
        if reached is phase:
            raise Interrupted

    with pytest.raises(Interrupted):
        table.expire_snapshots(FUTURE, on_phase=stop)
    assert ids(table) == [1, 3, 4, 5]
    table.expire_snapshots(FUTURE)
    assert ids(table) == [1, 3, 4, 5]
    assert files(lake, table) == named(lake)
    log = lake.catalog.deletions
    assert log is not None
    assert log.noted(table.uuid, "", 10) == []


def test_a_dry_run_says_how_many_would_expire(table: frazil.Table) -> None:
    before = table.history()
    done = table.expire_snapshots(FUTURE, dry_run=True)
    assert done.expired is not None
    assert (done.changed, done.expired.snapshots) == (False, 2)
    assert table.history() == before


def test_call_returns_icebergs_row(lake: frazil.Lake, table: frazil.Table) -> None:
    change_much(table)
    rows = lake.sql(f"CALL system.expire_snapshots(table => '{NAME}', older_than => TIMESTAMP '2200-01-01T00:00:00Z')")
    assert list(rows[0]) == [
        "deleted_data_files_count",
        "deleted_position_delete_files_count",
        "deleted_equality_delete_files_count",
        "deleted_manifest_files_count",
        "deleted_manifest_lists_count",
        "deleted_statistics_files_count",
    ]
    assert list(rows[0].values())[:3] == [5, 1, 1]
    assert rows.commit.changed


# Orphans


def test_orphans_are_found_and_removed_on_request(tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        table = filled(lake)
        change_much(table)
        old, young = stray(lake, table), stray(lake, table, "data/young.parquet", days_ago=1)
        report = table.remove_orphans()
        assert (report.dry_run, report.orphans, report.files_removed, report.kept_young) == (True, (old,), 0, 1)
        assert files(lake, table) >= {"killed.parquet", "young.parquet"}
        report = table.remove_orphans(dry_run=False)
        assert (report.orphans, report.files_removed, report.bytes) == ((old,), 1, 9)
        assert young.rsplit("/", 1)[-1] in files(lake, table)
        assert files(lake, table) - {"young.parquet"} == named(lake)
        assert ids(table) == [1, 3, 4, 5]


def test_orphans_at_once(lake: frazil.Lake, table: frazil.Table) -> None:
    change_much(table)
    stray(lake, table)
    table.expire_snapshots(FUTURE, delete_files=False)
    table.remove_orphans(NOW, dry_run=False)
    assert files(lake, table) == named(lake)
    assert ids(table) == [1, 3, 4, 5]
    assert table.remove_orphans(NOW).orphans == ()


def test_a_table_inside_the_folder_is_left_alone(tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        table = filled(lake)
        inner = lake.create_table("s.inner", "id bigint", location=f"{table.location}/inner")
        inner.append([{"id": 1}])
        left = stray(lake, inner)
        table.remove_orphans(NOW, dry_run=False)
        assert os.path.exists(local_path(left))
        assert ids(inner) == [1]
        lake.drop_table("s.inner")
        with pytest.raises(frazil.InvalidInput, match="Another table"):
            table.remove_orphans(NOW, dry_run=False)
        assert os.path.exists(local_path(left))


def test_the_clock_of_this_host_does_not_decide(tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        table = filled(lake)
        young = stray(lake, table, days_ago=1)
        ahead = Lake(lake._connection, replace(SYSTEM, now_ms=lambda: SYSTEM.now_ms() + 100 * DAY_MS))
        with ahead:
            ahead.table(NAME).remove_orphans(dry_run=False)
        assert os.path.exists(local_path(young))


def test_other_spellings_of_a_location_are_one(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    with frazil.connect(uri, warehouse=f"file://{tmp_path}/ware house%20") as lake:
        lake.create_namespace("s")
        table = filled(lake)
        plain = table.location.removeprefix("file://")
        path = f"{plain}/data/old%20one.parquet"
        Path(path).write_bytes(b"x")
        os.utime(path, (0, 0))
        table.remove_orphans(NOW, dry_run=False)
        assert not os.path.exists(path)
        assert ids(table) == [0, 1, 2, 3, 4, 5]
        assert files(lake, table) == named(lake)


@pytest.mark.parametrize("phase", [Phase.HEAD_READ, Phase.PREPARED])
def test_p42_a_writer_that_was_stopped_fails_when_its_files_were_removed(tmp_path: Path, phase: Phase) -> None:
    """Its heartbeat is gone, and it goes on with its attempt after orphan removal."""
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        table = filled(lake)
        done: list[int] = []

        def stopped(reached: Phase, attempt: int) -> None:
            if reached is phase and attempt == 1:
                done.append(table.remove_orphans(NOW, dry_run=False).files_removed)

        with pytest.raises(frazil.FrazilError, match="were removed before it could land"):
            table.append([{"id": 7, "v": "x"}], on_phase=stopped)
        assert done[0] > 0
        assert ids(table) == [0, 1, 2, 3, 4, 5]


def test_p42_files_of_queued_commits_stay(lake: frazil.Lake, table: frazil.Table) -> None:
    """A leader may commit them at any moment, without their writer."""
    done: list[str] = []
    locks = lake.catalog.locks
    assert locks is not None
    release = locks.try_lock(Ident.parse(NAME))
    assert release is not None

    def at(phase: Phase, attempt: int) -> None:
        if phase is Phase.PREPARED and attempt == 1:
            # It loses this race, and joins the queue, as the commit lock is held.
            table.set_properties({"other": "writer"})
        if phase is Phase.QUEUED and not done:
            queue = lake.catalog.queue
            assert queue is not None
            assert [each.is_reservation for each in queue.undecided(table.uuid)] == [False]
            left = stray(lake, table)
            done.extend(table.remove_orphans(NOW).orphans)
            assert left in done
            release()

    table.append([{"id": 9, "v": "z"}], on_phase=at)
    assert [each for each in done if each.endswith(".parquet")] == [f"{table.location}/data/killed.parquet"]
    assert ids(table) == [0, 1, 2, 3, 4, 5, 9]


def test_p42_a_writer_that_lands_between_listing_and_fence_is_seen(tmp_path: Path) -> None:
    """The removal lists and notes staged files; then their writer swaps."""
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        table = filled(lake)
        left = stray(lake, table)
        go, noted = threading.Event(), threading.Event()

        def staged(reached: Phase, attempt: int) -> None:
            if reached is Phase.PREPARED and attempt == 1:
                staged_now.set()
                assert noted.wait(60)

        staged_now = threading.Event()

        def at_noted(reached: DeletionPhase) -> None:
            if reached is DeletionPhase.NOTED:
                noted.set()
                assert go.wait(60)

        with ThreadPoolExecutor() as pool:
            append = pool.submit(table.append, [{"id": 8, "v": "y"}], on_phase=staged)
            assert staged_now.wait(60)
            removal = pool.submit(table.remove_orphans, NOW, dry_run=False, on_phase=at_noted)
            append.result()
            go.set()
            assert removal.result().files_removed == 1
        assert not os.path.exists(local_path(left))
        assert ids(table) == [0, 1, 2, 3, 4, 5, 8]
        assert files(lake, table) == named(lake)


def test_p42_noted_files_are_not_committed_any_more(tmp_path: Path) -> None:
    """The removal has decided, and not deleted yet, when the stopped writer goes on."""
    with frazil.connect(str(tmp_path / "lake")) as lake, ThreadPoolExecutor() as pool:
        lake.create_namespace("s")
        table = filled(lake)
        decided, go_on = threading.Event(), threading.Event()
        removals: list[Future[OrphanReport]] = []

        def hold(reached: DeletionPhase) -> None:
            if reached is DeletionPhase.CHECKED:
                decided.set()
                assert go_on.wait(60)

        def stopped(reached: Phase, attempt: int) -> None:
            if reached is Phase.HEAD_READ and attempt == 1:
                removals.append(pool.submit(table.remove_orphans, NOW, dry_run=False, on_phase=hold))
                assert decided.wait(60)

        try:
            with pytest.raises(frazil.FrazilError, match="were removed before it could land"):
                table.append([{"id": 7, "v": "x"}], on_phase=stopped)
        finally:
            go_on.set()
        removals[0].result()
        assert ids(table) == [0, 1, 2, 3, 4, 5]


def test_p42_what_a_live_writer_stages_stays_and_what_was_there_before_goes(
    lake: frazil.Lake, table: frazil.Table
) -> None:
    if lake.uri.startswith("memory"):
        pytest.skip("files in memory have no age of their own")
    table.set_properties({"frazil.staging.register-after-ms": "0"})
    before = stray(lake, table, days_ago=1)
    kept: list[int] = []

    def slow() -> Iterator[dict[str, object]]:
        for number in range(100, 103):
            yield {"id": number, "v": "x" * 100}
        staged = stray(lake, table, "data/staged.parquet", days_ago=0)
        report = table.remove_orphans(NOW, dry_run=False)
        kept.append(report.kept_staged)
        assert os.path.exists(local_path(staged))
        assert not os.path.exists(local_path(before))
        os.remove(local_path(staged))
        yield {"id": 103, "v": "y"}

    table.append(slow())
    assert kept[0] >= 1
    assert ids(table) == [0, 1, 2, 3, 4, 5, 100, 101, 102, 103]
    assert table.remove_orphans(NOW).kept_staged == 0


def test_call_lists_the_orphans(tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        table = filled(lake)
        left = stray(lake, table)
        rows = lake.sql(f"CALL system.remove_orphan_files(table => '{NAME}', dry_run => true)")
        assert rows == [{"orphan_file_location": left}]
        young = dt.datetime.now(dt.UTC).isoformat()
        with pytest.raises(frazil.InvalidInput, match="24 hours"):
            lake.sql(f"CALL system.remove_orphan_files(table => '{NAME}', older_than => TIMESTAMP '{young}')")
        lake.sql(f"CALL system.remove_orphan_files(table => '{NAME}')")
        assert not os.path.exists(local_path(left))


# Purge


def test_a_purge_leaves_nothing(tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("s")
        table = filled(lake)
        table.set_properties({"write.metadata.previous-versions-max": "2"})
        change_much(table)
        table.expire_snapshots(FUTURE, delete_files=False)
        stray(lake, table)
        (Path(local_path(table.location)) / "data" / "empty").mkdir()
        location = table.location
        other = filled(lake, "s.other")
        lake.drop_table(NAME, purge=True)
        assert not os.path.exists(local_path(location))
        assert ids(other) == [0, 1, 2, 3, 4, 5]


def test_a_purge_keeps_what_another_name_needs(lake: frazil.Lake, table: frazil.Table) -> None:
    other = lake.register_table("s.same", table.metadata_location)
    table.append([{"id": 9, "v": "z"}])
    lake.drop_table(NAME, purge=True)
    assert ids(other) == [0, 1, 2, 3, 4, 5]
    assert files(lake, other) == named(lake, "s.same")


def test_reports_are_json(table: frazil.Table) -> None:
    assert json.loads(json.dumps(table.remove_orphans().to_dict()))["dry_run"] is True


# Object stores


def test_an_object_store_gets_its_space_back(aws: Any, tmp_path: Path) -> None:
    bucket = aws.create_bucket("lake")
    place = f"{bucket.replace('s3://', 's3a://')}/wh"
    with frazil.connect(f"sqlite:///{tmp_path}/catalog.db", warehouse=place, properties=aws.properties) as lake:
        lake.create_namespace("s")
        table = filled(lake)
        change_much(table)
        left = stray(lake, table, "data/old%20file.parquet")
        table.expire_snapshots(FUTURE)
        report = table.remove_orphans(NOW)
        assert report.orphans == (left,)
        table.remove_orphans(NOW, dry_run=False)
        assert files(lake, table) == named(lake)
        assert ids(table) == [1, 3, 4, 5]
        location = table.location
        lake.drop_table(NAME, purge=True)
        assert list(lake.storage.list(location)) == []
