"""A conflict names the commit that caused it: its application, host, kind of statement and time."""

from __future__ import annotations

import datetime as dt
import logging
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import frazil
from frazil.catalog.base import AttemptsRecord
from frazil.catalog.pointer import PointerCatalog
from frazil.commit import queued_writer, summaries
from frazil.commit.context import Phase
from frazil.commit.group import GROUP_SIZE
from frazil.commit.queued_writer import contention_of
from frazil.model import Ident
from frazil.runtime import SYSTEM

NAME = Ident(("shop",), "events")
SECRET = "alice@example.org"
FIELDS: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("x", pa.string())]
SCHEMA = pa.schema(FIELDS)
Connect = Callable[[str], frazil.Lake]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Lakes of different applications on one catalog with a table."""
    if request.param == "postgres":
        uri = request.getfixturevalue("postgres_uri")
    else:
        uri = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(tmp_path / "lake")
    warehouse = str(tmp_path / "wh") if request.param == "postgres" else None
    with ExitStack() as opened:

        def open_(app: str) -> frazil.Lake:
            return opened.enter_context(frazil.connect(uri, warehouse=warehouse, app=app))

        first = open_("setup")
        first.create_namespace("shop")
        first.create_table("shop.events", SCHEMA).append(rows(1, 2))
        yield open_


def rows(*ids: int, x: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "x": [x] * len(ids)}, schema=SCHEMA)


def at_the_head(action: Callable[[], object], times: int = 1) -> Callable[[Phase, int], None]:
    """Run another writer's action after an attempt has read the head, in the first so many attempts."""

    def on_phase(phase: Phase, attempt: int) -> None:
        if phase is Phase.HEAD_READ and attempt <= times:
            action()

    return on_phase


def refused(write: Callable[..., object], *args: Any, **options: Any) -> frazil.ConflictError:
    with pytest.raises(frazil.ConflictError) as caught:
        write(*args, on_conflict="abort", **options)
    return caught.value


def log_of(lake: frazil.Lake) -> list[AttemptsRecord]:
    assert lake.catalog.attempts is not None
    return lake.catalog.attempts.find(lake.catalog.load(NAME).metadata.uuid, 100)


def test_a_conflict_names_the_update_that_won(connect: Connect) -> None:
    ingest, nightly = connect("ingest"), connect("nightly")
    update = lambda: ingest.table("shop.events").update({"x": "'b'"}, "id = 1", commit_id="u-1")  # noqa: E731
    began = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
    error = refused(nightly.table("shop.events").delete, "id = 1", on_phase=at_the_head(update))
    winners = {each.winner for each in error.conflicts}
    (winner,) = winners
    assert winner is not None
    assert (winner.app, winner.commit_id, winner.verb) == ("ingest", "u-1", "update")
    assert winner.host
    assert winner.committed_at is not None
    assert winner.committed_at.tzinfo is dt.UTC
    assert began < winner.committed_at < began + dt.timedelta(minutes=10)
    assert isinstance(winner, frazil.Winner)
    assert pickle.loads(pickle.dumps(error)).conflicts == error.conflicts
    text = str(error)
    assert text.count(f"update by ingest on {winner.host} at {winner.committed_at:%Y-%m-%d %H:%M:%S} UTC") == 1
    assert text.count("Re-read the table and retry the delete.") == 1
    assert "overwrite" not in text


def test_an_append_that_won_is_named_with_the_file_of_its_rows(connect: Connect) -> None:
    ingest, nightly = connect("ingest"), connect("nightly")
    append = lambda: ingest.table("shop.events").append(rows(1))  # noqa: E731
    error = refused(nightly.table("shop.events").delete, "id = 1", on_phase=at_the_head(append))
    (conflict,) = error.conflicts
    assert conflict.winner is not None
    assert (conflict.winner.app, conflict.winner.verb) == ("ingest", "append")
    assert conflict.files[0].rpartition("/")[2] in str(error)


def test_a_compaction_that_won_is_called_compact(connect: Connect) -> None:
    services, nightly = connect("services"), connect("nightly")
    nightly.table("shop.events").append(rows(3))
    compact = lambda: services.table("shop.events").compact()  # noqa: E731
    error = refused(nightly.table("shop.events").compact, on_phase=at_the_head(compact))
    assert {(each.winner.app, each.winner.verb) for each in error.conflicts if each.winner} == {("services", "compact")}


def test_a_transactions_conflict_names_the_winner_too(connect: Connect) -> None:
    ingest, report = connect("ingest"), connect("report")
    with report.transaction() as tx:
        tx.table("shop.events").scan(where="id = 1").count()
        tx.table("shop.events").append(rows(9))
        ingest.table("shop.events").delete("id = 1")
        with pytest.raises(frazil.ConflictError) as caught:
            tx.commit()
    winners = [each.winner for each in caught.value.conflicts if each.winner]
    assert {each.app for each in winners} == {"ingest"}
    assert {each.verb for each in winners} == {"delete"}


def test_a_foreign_winner_shows_what_its_summary_has(tmp_path: Path) -> None:
    with frazil.connect(f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path), app="nightly") as lake:
        lake.create_namespace("shop")
        table = lake.create_table("shop.events", SCHEMA)
        table.append(rows(1))
        foreign = SqlCatalog("frazil", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))

        def append(**summary: str) -> None:
            foreign.load_table("shop.events").append(rows(1), snapshot_properties=summary)

        spark = {"engine-name": "spark", "spark.app.id": "local-17"}
        error = refused(table.delete, "id = 1", on_phase=at_the_head(lambda: append(**spark)))
        assert error.conflicts[0].winner is not None
        assert (error.conflicts[0].winner.app, error.conflicts[0].winner.verb) == ("spark local-17", "append")
        error = refused(table.delete, "id = 1", on_phase=at_the_head(append))
        winner = error.conflicts[0].winner
        assert winner is not None
        assert (winner.app, winner.host, winner.commit_id, winner.verb) == (None, None, None, "append")
        assert winner.committed_at is not None


# What is recorded


def test_each_kind_of_statement_is_recorded_by_its_name(connect: Connect) -> None:
    lake = connect("jobs")
    table = lake.table("shop.events")
    before = SYSTEM.now_ms()
    table.append(rows(3))
    table.update({"x": "'c'"}, "id = 3")
    table.overwrite(rows(3), where="id = 3")
    table.delete("id = 3")
    table.append(rows(4))
    table.compact()
    with lake.transaction() as tx:
        tx.table("shop.events").delete("id = 4")
        tx.table("shop.events").append(rows(5))
    entries = table.history()[1:]
    verbs = ["append", "update", "overwrite", "delete", "append", "compact", "delete", "append"]
    assert [each.verb for each in entries] == verbs
    assert {each.app for each in entries} == {"jobs"}
    assert all(each.host for each in entries)
    for each in entries:
        assert before <= int(each.summary["frazil.started-ms"]) <= SYSTEM.now_ms()
    kinds = [each.summary["frazil.verb"] for each in entries]
    assert kinds == ["rewrite" if each == "compact" else each for each in verbs]
    log = lake.catalog.changes
    assert log is not None
    metadata = lake.catalog.load(NAME).metadata
    changes = [summaries.decode(each.body) for each in log.find(metadata.uuid, 1, metadata.last_sequence_number)]
    assert len(changes) == len(entries)
    for change, entry in zip(changes, entries, strict=True):
        assert change is not None
        (commit,) = change.commits
        assert commit.origin is not None
        assert (commit.origin.app, commit.origin.host, commit.origin.verb) == (entry.app, entry.host, entry.verb)
        assert commit.commit_id == entry.summary["frazil.commit-id"]
        assert change.committed_ms == round(entry.committed_at.timestamp() * 1000)


def test_the_name_is_the_programs_unless_it_is_given(tmp_path: Path) -> None:
    program = tmp_path / "nightly_job.py"
    program.write_text(
        "import frazil, pickle, sys\n"
        f"with frazil.connect({str(tmp_path / 'lake')!r}) as lake:\n"
        "    lake.create_namespace('shop')\n"
        "    table = lake.create_table('shop.events', 'id bigint')\n"
        "    table.append([{'id': 1}])\n"
        "    sys.argv[0] = 'worker.py'\n"
        "    pickle.loads(pickle.dumps(table)).append([{'id': 2}])\n"
        "    print([each.app for each in table.history()])\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['nightly_job.py', 'nightly_job.py']"


@pytest.mark.parametrize("app", ["", "  ", "a\nb", "x" * 65, 7, " padded"])
def test_a_name_that_cannot_be_shown_is_refused_before_anything_is_made(tmp_path: Path, app: Any) -> None:
    with pytest.raises(frazil.InvalidInput, match="app must be a short name"):
        frazil.connect(str(tmp_path / "lake"), app=app)
    assert not (tmp_path / "lake").exists()


# Groups


@dataclass
class Group:
    """Writers of several applications that commit together: the test holds the commit lock until all are queued."""

    lakes: list[frazil.Lake]

    def append(self, monkeypatch: pytest.MonkeyPatch, *ids: int) -> None:
        monkeypatch.setattr(queued_writer, "_STANDSTILL_S", 600.0)
        monkeypatch.setattr(queued_writer, "_GAPS_WITHOUT", 0.0)
        first = self.lakes[0].catalog
        assert first.locks is not None
        place = queued_writer.place_of(first.name, NAME, first.load(NAME).metadata.uuid)
        release = first.locks.try_lock(NAME)
        assert release is not None
        with ThreadPoolExecutor(len(ids)) as pool:
            for lake, number in zip(self.lakes, ids, strict=True):
                assert lake.catalog.queue is not None
                contention_of(lake.catalog.queue).saw_others(place, SYSTEM.monotonic() + 60)
                queued: list[None] = []
                tell = lambda phase, _, queued=queued: queued.append(None) if phase is Phase.QUEUED else None  # noqa: E731
                done = pool.submit(lake.table("shop.events").append, rows(number), on_phase=tell)
                while not queued and not done.done():
                    SYSTEM.sleep(0.005)
            release()


def test_members_of_a_group_keep_their_own_names(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    apps = ["billing", "clicks", "orders"]
    lakes = [connect(each) for each in apps]
    nightly = connect("nightly").table("shop.events")
    nightly.append(rows(12))

    def meet() -> None:
        Group(lakes).append(monkeypatch, 11, 12, 13)

    error = refused(nightly.delete, "id = 12", on_phase=at_the_head(meet))
    shared = nightly.history()[-1]
    assert shared.summary[GROUP_SIZE] == "3"
    assert sorted(each.origin.app for each in shared.commits if each.origin is not None) == apps
    assert {each.origin.verb for each in shared.commits if each.origin is not None} == {"append"}
    assert (shared.app, shared.verb) == (None, "append")
    assert shared.host, "all of them are on one host"
    clicks = next(each.commit_id for each in shared.commits if each.origin and each.origin.app == "clicks")
    (conflict,) = error.conflicts
    assert conflict.winner is not None
    assert (conflict.winner.app, conflict.winner.commit_id) == ("clicks", clicks), "the file with id 12 is theirs"


def test_a_group_of_one_application_has_its_name(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    Group([connect("ingest"), connect("ingest")]).append(monkeypatch, 11, 12)
    shared = connect("reader").table("shop.events").history()[-1]
    assert shared.summary[GROUP_SIZE] == "2"
    assert shared.app == "ingest"


# The log of attempts


def test_a_commit_without_competition_leaves_no_record(connect: Connect) -> None:
    lake = connect("ingest")
    table = lake.table("shop.events")
    table.append(rows(5))
    table.delete("id = 5")
    table.append(rows(6), on_phase=at_the_head(lambda: table.append(rows(7))))
    assert log_of(lake) == [], "one lost race is how a writer learns of others"


def test_a_conflict_is_recorded_without_anything_of_the_table(connect: Connect) -> None:
    ingest, nightly = connect("ingest"), connect("nightly")
    add = lambda: ingest.table("shop.events").append(rows(8, x=SECRET))  # noqa: E731
    table = nightly.table("shop.events")
    table.append(rows(7, x=SECRET))
    refused(table.delete, f"x = '{SECRET}'", on_phase=at_the_head(add), commit_id="d-1")
    (record,) = log_of(ingest)
    assert (record.app, record.verb, record.outcome, record.commit_id) == ("nightly", "delete", "conflict", "d-1")
    assert (record.attempts, record.lost, record.faults, record.redone) == (2, 1, 0, 0)
    assert record.check == "no added rows match my filter"
    assert record.detail == "no added rows match my filter (1 file)"
    assert (record.winner_app, record.winner_verb) == ("ingest", "append")
    assert record.winner_commit_id == table.history()[-1].summary["frazil.commit-id"]
    assert SECRET not in repr(record)
    for entry in table.history():
        assert SECRET not in repr(entry.summary)


def test_lost_races_and_exhausted_retries_are_recorded(connect: Connect) -> None:
    ingest, other = connect("ingest"), connect("other")
    table, others = ingest.table("shop.events"), other.table("shop.events")
    ids = iter(range(100, 200))
    compete = lambda: others.append(rows(next(ids)))  # noqa: E731
    with pytest.raises(frazil.RetriesExhausted):
        table.append(rows(20), retry=frazil.Retry(tries=1), on_phase=at_the_head(compete))
    change = lambda: others.set_properties({"k": str(next(ids))})  # noqa: E731
    table.update({"x": "'q'"}, "id = 2", on_phase=at_the_head(change, times=2), retry=frazil.Retry(tries=9))
    update, append = log_of(other)
    assert (append.verb, append.outcome, append.attempts, append.lost) == ("append", "exhausted", 1, 1)
    assert (update.verb, update.outcome, update.lost >= 2) == ("update", "committed", True)
    assert update.check is None
    assert update.winner_app is None


def test_faults_are_recorded_by_their_kind_and_other_errors_too(connect: Connect) -> None:
    lake = connect("ingest")
    table = lake.table("shop.events")

    def fail(phase: Phase, attempt: int) -> None:
        if phase is Phase.HEAD_READ and attempt == 1:
            raise frazil.StorageError(f"cannot read the file of {SECRET}")

    def give_up(phase: Phase, _attempt: int) -> None:
        if phase is Phase.HEAD_READ:
            raise frazil.DiskFull(f"no space for {SECRET}")

    assert table.append(rows(8), on_phase=fail).attempts == 2
    with pytest.raises(frazil.DiskFull):
        table.append(rows(9), on_phase=give_up)
    error, fault = log_of(lake)
    assert (fault.outcome, fault.faults, fault.lost, fault.detail) == ("committed", 1, 0, "last fault: StorageError")
    assert (error.outcome, error.attempts, error.detail) == ("error", 1, "DiskFull")
    assert SECRET not in repr((error, fault))


def test_a_log_that_cannot_be_written_to_fails_no_commit(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = connect("ingest")
    assert isinstance(lake.catalog, PointerCatalog)
    table = lake.table("shop.events")

    class Broken:
        def add(self, record: AttemptsRecord) -> None:
            raise OSError(record.commit_id)

        def find(self, table_uuid: str, most: int) -> list[AttemptsRecord]:
            raise OSError(table_uuid, most)

    table.append(rows(8))
    monkeypatch.setattr(lake.catalog, "attempts", Broken())
    add = lambda: table.append(rows(8))  # noqa: E731
    refused(table.delete, "id = 8", on_phase=at_the_head(add))
    assert table.append(rows(9)).changed


def test_the_line_of_an_attempt_has_the_application_and_the_verb(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "frazil.commit"):
        connect("ingest").table("shop.events").compact()
        connect("ingest").table("shop.events").append(rows(3))
    last = [each for each in caplog.records if each.__dict__.get("event") == "commit.attempt"][-1]
    assert last.getMessage() == "append on shop.events by ingest: attempt 1 committed"
    assert (last.__dict__["app"], last.__dict__["verb"]) == ("ingest", "append")
