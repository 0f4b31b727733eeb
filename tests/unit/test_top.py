"""The commits of all writers, observed from a lake's shared state, and ``frazil top``."""

from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import frazil
from frazil.catalog._queue_stats import LATELY_MS, QueueStats, queue_stats
from frazil.catalog.base import CommitQueue, QueuedCommit, QueueUpdate
from frazil.catalog.sqlite import SqliteStore
from frazil.cli._app import app
from frazil.cli._target import Target
from frazil.cli._top import picture, run, watched
from frazil.commit.context import Phase
from frazil.commit.queued_writer import place_of
from frazil.errors import InvalidInput
from frazil.model import Ident, Snapshot
from frazil.runtime import SYSTEM, Runtime
from frazil.watch import (
    AppCommits,
    LakeSample,
    SnapshotCommits,
    TableActivity,
    TableSample,
    activity,
    commits_of,
    sample,
)

EVENTS = Ident(("shop",), "events")
WRITERS = 4
LONG = 60_000


class Clock:
    """Time that stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def runtime(self, meanwhile: Callable[[], object] = lambda: None) -> Runtime:
        def sleep(seconds: float) -> None:
            meanwhile()
            self.now += seconds

        return replace(SYSTEM, monotonic=lambda: self.now, sleep=sleep)


@pytest.fixture(params=["folder", "sqlite", "postgres"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "lake")
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/catalog.db"
    return str(request.getfixturevalue("postgres_uri"))


@pytest.fixture
def lake(uri: str, tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(uri, warehouse=str(tmp_path / "warehouse"), app="ingest") as opened:
        opened.create_namespace("shop")
        opened.create_table("shop.events", "id bigint")
        yield opened


@pytest.fixture
def onlooker(uri: str, lake: frazil.Lake) -> Iterator[frazil.Lake]:
    """Somebody else, who may only read."""
    with frazil.connect(uri, read_only=True, create=False) as opened:
        yield opened


def queue_of(lake: frazil.Lake) -> CommitQueue:
    assert lake.catalog.queue is not None
    return lake.catalog.queue


def uuid_of(lake: frazil.Lake, name: str = "shop.events") -> str:
    return lake.catalog.load(Ident.parse(name)).metadata.uuid


def ticket(lake: frazil.Lake, key: str) -> QueuedCommit:
    """One that no combiner understands."""
    place = place_of(lake.catalog.name, Ident.parse("shop.events"), uuid_of(lake))
    return QueuedCommit(key, uuid_of(lake), f"commit-{key}", 99, b"?", queue_key=place)


def give_back(lake: frazil.Lake, keys: list[str]) -> None:
    """As a swap does that leaves these to their writers."""
    store: Any = lake.catalog.store  # type: ignore[attr-defined]
    store._engine.write(lambda db: store._queue.settle(db, QueueUpdate({}, tuple(keys))))


class Writers:
    """Appends that stand in the queue, all of them, until ``go``: the test has the turn."""

    def __init__(self, lake: frazil.Lake) -> None:
        self._table = lake.table("shop.events")
        self._queued = threading.Semaphore(0)
        assert lake.catalog.locks is not None
        turn = lake.catalog.locks.try_lock(EVENTS)
        assert turn is not None
        self._release = turn
        self.commits: list[frazil.Commit] = []
        self._threads = [threading.Thread(target=self._append, args=(n,)) for n in range(WRITERS)]
        for each in self._threads:
            each.start()
        for _ in self._threads:
            assert self._queued.acquire(timeout=60)

    def _append(self, n: int) -> None:
        def tell(phase: Phase, _attempt: int) -> None:
            if phase is Phase.QUEUED:
                self._queued.release()

        self.commits.append(self._table.append([{"id": n}], on_phase=tell))

    def go(self) -> None:
        self._release()
        for each in self._threads:
            each.join(timeout=60)
        assert len(self.commits) == WRITERS


# On every SQL catalog


def test_a_group_counts_as_its_commits_and_its_waiters_are_seen_before(
    lake: frazil.Lake, onlooker: frazil.Lake
) -> None:
    clock = Clock()
    # Its mere presence sends the writers to the queue; whoever combines gives it back.
    queue_of(lake).put(ticket(lake, "strange"), LONG)
    writers = Writers(lake)
    before = sample(onlooker.catalog, runtime=clock.runtime())
    assert before.queue is not None
    assert before.queue[uuid_of(lake)].waiting == WRITERS + 1
    writers.go()
    clock.now += 2.0
    after = sample(onlooker.catalog, before, clock.runtime())
    (found,) = activity(before, after)
    assert found == TableActivity(
        table="shop.events",
        seconds=2.0,
        commits=WRITERS,
        swaps=1,
        groups=1,
        grouped=WRITERS,
        largest_group=WRITERS,
        apps=(AppCommits("ingest", "append", WRITERS),),
        queue=QueueStats(returned=1),
    )
    assert (found.commits_per_s, found.swaps_per_s, found.groups_per_s, found.foreign_per_s) == (2.0, 0.5, 0.5, 0.0)


def test_tickets_are_counted_by_what_became_of_them(lake: frazil.Lake, onlooker: frazil.Lake) -> None:
    queue = queue_of(lake)
    for key in ("waits", "waits too", "expired", "withdrawn", "withdrawn too", "returned"):
        queue.put(ticket(lake, key), 0 if key == "expired" else LONG)
    queue.put(replace(ticket(lake, "elsewhere"), table_uuid="another"), LONG)
    queue.withdraw("withdrawn")
    queue.withdraw("withdrawn too")
    queue.fence("somebody who never came")
    give_back(lake, ["returned"])
    queue.tried(["waits", "waits too"])
    queue.tried(["waits", "returned"])
    found = sample(onlooker.catalog).queue
    assert found is not None
    assert replace(found[uuid_of(lake)], oldest_wait_ms=0) == QueueStats(
        waiting=2, returned=1, withdrawn=2, late_tries=4
    )
    assert found["another"].waiting == 1
    assert set(found) == {uuid_of(lake), "another"}


def test_a_table_that_nobody_waits_for_has_an_empty_queue(lake: frazil.Lake, onlooker: frazil.Lake) -> None:
    queue_of(lake).put(replace(ticket(lake, "elsewhere"), table_uuid="another"), LONG)
    seen = sample(onlooker.catalog)
    (found,) = activity(seen, seen)
    assert found.queue == QueueStats()


def test_another_process_sees_commits_and_waiters(uri: str, lake: frazil.Lake) -> None:
    queue_of(lake).put(replace(ticket(lake, "waits"), table_uuid=uuid_of(lake)), LONG)
    lake.create_table("shop.busy", "id bigint")
    busy = lake.table("shop.busy")
    command = [sys.executable, "-m", "frazil", "top", uri, "--once", "--json", "--interval", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        sent = 0
        while process.poll() is None:
            busy.append([{"id": 1}])
            sent += 1
        assert process.stdout is not None
        answer = json.loads(process.stdout.read())
    assert process.returncode == 0
    first, second = answer["tables"]
    assert first["table"] == "shop.busy"
    assert 0 < first["commits"] < sent
    assert first["commits_per_s"] == pytest.approx(first["commits"] / first["seconds"])
    assert (second["table"], second["commits"], second["queue"]["waiting"]) == ("shop.events", 0, 1)


# The ages of tickets


def shift(folder: Path, milliseconds: int) -> None:
    """Let all tickets have come so much earlier."""
    with closing(sqlite3.connect(folder / "catalog.db")) as db, db:
        db.execute("UPDATE frazil_queue SET enqueued_at = enqueued_at - ?", (milliseconds,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def local(folder: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(folder)) as opened:
        opened.create_namespace("shop")
        opened.create_table("shop.events", "id bigint")
        yield opened


def stats(lake: frazil.Lake) -> QueueStats:
    found = sample(lake.catalog).queue
    assert found is not None
    return found.get(uuid_of(lake), QueueStats())


def test_the_oldest_wait_is_that_of_the_ticket_that_came_first(local: frazil.Lake, folder: Path) -> None:
    queue = queue_of(local)
    began = SYSTEM.now_ms()
    queue.put(ticket(local, "first"), LONG)
    shift(folder, 5_000)
    queue.put(ticket(local, "second"), LONG)
    assert 5_000 <= stats(local).oldest_wait_ms <= 5_000 + SYSTEM.now_ms() - began
    queue.withdraw("first")
    assert stats(local).oldest_wait_ms <= SYSTEM.now_ms() - began
    queue.withdraw("second")
    assert stats(local).oldest_wait_ms == 0


def test_what_became_of_tickets_long_ago_is_left_out_but_who_waits_long_is_not(
    local: frazil.Lake, folder: Path
) -> None:
    queue = queue_of(local)
    for key in ("waits", "withdrawn", "returned"):
        queue.put(ticket(local, key), LONG)
    queue.withdraw("withdrawn")
    give_back(local, ["returned"])
    queue.tried(["waits", "returned"])
    shift(folder, LATELY_MS)
    found = stats(local)
    assert found.oldest_wait_ms >= LATELY_MS
    assert replace(found, oldest_wait_ms=0) == QueueStats(waiting=1, late_tries=1)


def test_a_catalog_from_before_the_queue_has_no_numbers(local: frazil.Lake, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "catalog.db")) as db, db:
        db.execute("DROP TABLE frazil_queue")
    with closing(SqliteStore(folder / "catalog.db", read_only=True)) as store:
        assert queue_stats(store) is None


# Tables


def test_commits_of_other_writers_are_told_apart(local: frazil.Lake) -> None:
    before = sample(local.catalog)
    local.table("shop.events").append([{"id": 1}])
    local.pyiceberg().load_table("shop.events").append(pa.table({"id": [2]}))
    (found,) = activity(before, sample(local.catalog, before))
    assert (found.commits, found.foreign, found.swaps, found.groups) == (2, 1, 2, 0)


def test_a_change_without_a_snapshot_is_a_swap_and_no_commit(local: frazil.Lake) -> None:
    before = sample(local.catalog)
    local.table("shop.events").set_properties({"owner": "me"})
    (found,) = activity(before, sample(local.catalog, before))
    assert (found.commits, found.swaps) == (0, 1)


def test_swaps_are_unknown_when_the_log_does_not_reach_back(local: frazil.Lake) -> None:
    table = local.table("shop.events")
    table.set_properties({"write.metadata.previous-versions-max": "1"})
    before = sample(local.catalog)
    for n in range(3):
        table.append([{"id": n}])
    (found,) = activity(before, sample(local.catalog, before))
    assert (found.commits, found.swaps, found.swaps_per_s) == (3, None, None)


def test_a_table_seen_for_the_first_time_has_no_rates(local: frazil.Lake) -> None:
    before = sample(local.catalog)
    local.create_table("shop.new", "id bigint").append([{"id": 1}])
    found = {each.table: each for each in activity(before, sample(local.catalog, before))}
    assert found["shop.new"] == TableActivity("shop.new", 0.0)
    assert found["shop.new"].commits_per_s is None


def test_another_table_by_the_same_name_is_seen_for_the_first_time(local: frazil.Lake) -> None:
    before = sample(local.catalog)
    local.drop_table("shop.events")
    local.create_table("shop.events", "id bigint").append([{"id": 1}])
    (found,) = activity(before, sample(local.catalog, before))
    assert (found.commits, found.seconds) == (0, 0.0)


def test_a_dropped_table_is_left_out(local: frazil.Lake) -> None:
    before = sample(local.catalog)
    local.drop_table("shop.events")
    assert activity(before, sample(local.catalog, before)) == ()


def test_a_table_that_cannot_be_read_does_not_hide_the_others(local: frazil.Lake) -> None:
    local.create_table("shop.broken", "id bigint")
    before = sample(local.catalog)
    local.table("shop.broken").append([{"id": 1}])
    local.table("shop.events").append([{"id": 1}])
    Path(local.catalog.load(Ident.parse("shop.broken")).location.removeprefix("file://")).unlink()
    with frazil.connect(local.uri, read_only=True) as fresh:
        after = sample(fresh.catalog, before)
    whole, broken = activity(before, after)
    assert (whole.table, whole.commits, whole.problem) == ("shop.events", 1, None)
    assert (broken.table, broken.commits_per_s, broken.queue) == ("shop.broken", None, None)
    assert broken.problem is not None
    assert broken.problem in drawn([whole, broken])


def test_a_foreign_catalog_has_tables_and_no_queue(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/pyiceberg.db"}
    place = (tmp_path / "warehouse").as_uri()
    with frazil.connect("pyiceberg:standin", warehouse=place, properties=properties) as lake:
        lake.create_namespace("shop")
        table = lake.create_table("shop.events", "id bigint")
        before = sample(lake.catalog)
        table.append([{"id": 1}])
        (found,) = activity(before, sample(lake.catalog, before))
    assert (found.commits, found.foreign, found.swaps, found.queue) == (1, 0, 1, None)
    text = drawn([found])
    assert "commits/s" in text
    assert "waiting" not in text
    assert "no queue" in text


def snapshot(**summary: str) -> Snapshot:
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in summary.items()}
    return Snapshot(1, None, 1, 0, None, named, None)


@pytest.mark.parametrize(
    ("summary", "wanted"),
    [
        ({"operation": "append"}, SnapshotCommits(1, foreign=True, verb="append")),
        ({"frazil__commit_id": "x"}, SnapshotCommits(1, foreign=False)),
        ({"frazil__group_size": "7"}, SnapshotCommits(7, foreign=False)),
        ({"frazil__group_size": "0"}, SnapshotCommits(1, foreign=False)),
        ({"frazil__group_size": "many"}, SnapshotCommits(1, foreign=False)),
        ({"frazil__group_size": "-3"}, SnapshotCommits(1, foreign=False)),
    ],
)
def test_a_summary_says_how_many_commits_a_snapshot_stands_for(
    summary: dict[str, str], wanted: SnapshotCommits
) -> None:
    assert commits_of(snapshot(**summary)) == wanted


def test_the_busiest_table_comes_first_then_the_one_with_most_waiters() -> None:
    def seen(count: int, at: float, uuid: str) -> TableSample:
        return TableSample(at, f"v{count}", uuid, {n: SnapshotCommits(1, foreign=False) for n in range(count)}, ("v0",))

    names = ("a", "b", "c", "d")
    idents = {name: Ident(("n",), name) for name in names}
    before = LakeSample({idents[name]: seen(0, 0.0, name) for name in names}, {})
    counts = {"a": 0, "b": 0, "c": 2, "d": 5}
    after = LakeSample({idents[name]: seen(counts[name], 1.0, name) for name in names}, {"b": QueueStats(waiting=1)})
    assert [each.table for each in activity(before, after)] == ["n.d", "n.c", "n.b", "n.a"]


def test_looks_follow_each_other_at_the_interval(local: frazil.Lake) -> None:
    table, clock = local.table("shop.events"), Clock()
    answers = watched(local.catalog, 0.5, clock.runtime(lambda: table.append([{"id": 1}])))
    rates = [next(answers)[0].commits_per_s for _ in range(3)]
    assert rates == [2.0, 2.0, 2.0]


# The command


def drawn(found: list[TableActivity]) -> str:
    from rich.console import Console

    console = Console(width=1000)
    with console.capture() as caught:
        console.print(picture(found))
    return caught.get()


def test_once_prints_one_line_for_each_table(local: frazil.Lake, folder: Path) -> None:
    queue_of(local).put(ticket(local, "waits"), LONG)
    answer = CliRunner().invoke(app, ["top", str(folder), "--once", "--interval", "0.05"])
    assert answer.exit_code == 0
    # Plain text, as stdout is no terminal.
    assert "\x1b" not in answer.stdout
    lines = [line.split() for line in answer.stdout.splitlines() if line.strip().startswith("shop.events")]
    assert len(lines) == 1
    assert lines[0][:6] == ["shop.events", "0.0", "0.0", "0.0", "0.0", "1"]
    assert "1 table · 0.0 commits/s · 1 waiting" in answer.stdout
    for name in ("commits/s", "foreign/s", "swaps/s", "waiting", "oldest wait", "returned", "withdrawn", "late tries"):
        assert name in answer.stdout
    # They would claim what nobody records where others can see it.
    assert "retries" not in answer.stdout


@pytest.mark.parametrize("how", [["--json"], ["--output", "json"]])
def test_once_as_json_has_a_document_for_each_table(local: frazil.Lake, folder: Path, how: list[str]) -> None:
    queue_of(local).put(ticket(local, "waits"), LONG)
    answer = CliRunner().invoke(app, ["top", "--uri", str(folder), "--once", "--interval", "0.05", *how])
    assert answer.exit_code == 0
    document: dict[str, Any] = json.loads(answer.stdout)
    (found,) = document["tables"]
    assert document["interval"] == 0.05
    assert found["queue"].pop("oldest_wait_ms") >= 0
    assert found["queue"] == {"waiting": 1, "returned": 0, "withdrawn": 0, "late_tries": 0}
    assert found["table"] == "shop.events"
    assert found["seconds"] >= 0.05
    assert found["commits_per_s"] == 0.0


def test_a_lake_without_tables_says_so(tmp_path: Path) -> None:
    frazil.connect(str(tmp_path / "empty")).close()
    answer = CliRunner().invoke(app, ["top", str(tmp_path / "empty"), "--once", "--interval", "0.05"])
    assert answer.stdout == "The lake has no tables.\n"


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    assert "\\x1b[31m" in drawn([TableActivity("shop.\x1b[31mred", 1.0)])


def test_the_live_view_needs_a_terminal_and_json_needs_an_end(local: frazil.Lake, folder: Path) -> None:
    for json_wanted, advice in ((False, "terminal"), (True, "JSON")):
        with pytest.raises(InvalidInput, match=advice):
            run(Target(), str(folder), 1.0, once=False, json=json_wanted)


def test_ctrl_c_ends_the_live_view_cleanly(local: frazil.Lake, folder: Path) -> None:
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "frazil", "top", str(folder), "--interval", "0.05"]
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, text=True) as process:
        os.close(terminal)
        shown = b""
        while b"commits/s" not in shown:
            shown += os.read(screen, 4096)
        process.send_signal(signal.SIGINT)
        # The rest, until the other end is closed.
        try:
            while more := os.read(screen, 4096):
                shown += more
        except OSError:
            pass
        assert process.stderr is not None
        complaint = process.stderr.read()
    os.close(screen)
    assert (process.returncode, complaint) == (0, "")
    # The cursor that a live view hides is back.
    assert shown.rindex(b"\x1b[?25h") > shown.index(b"\x1b[?25l")
