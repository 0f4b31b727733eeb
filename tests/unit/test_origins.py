"""Where commits come from, and how a conflict says whose commit caused it."""

from __future__ import annotations

import datetime as dt
import pickle
import sys
from typing import Any

import pytest

from frazil.catalog.base import ChangeRecord
from frazil.commit import origins
from frazil.commit.checks import Check
from frazil.commit.operations import Identity, Kind
from frazil.commit.origins import author_of, in_summary, of_write, program, shared_in_summary, winner_of
from frazil.commit.results import conflict_error
from frazil.commit.summaries import encode
from frazil.commit.winners import with_winners
from frazil.format.metadata import TableMetadata
from frazil.model import Change, Conflict, DataFile, Entry, Ident, Origin, SharedCommit, Snapshot, Status, Winner
from frazil.wording import short

EVENTS = Ident(("shop",), "events")
INGEST = Origin("ingest", "h1", "append", 1_000)
AT = dt.datetime(2026, 11, 1, 12, 0, 0, tzinfo=dt.UTC)
MS = round(AT.timestamp() * 1000)


def snapshot(summary: dict[str, str], snapshot_id: int = 7) -> Snapshot:
    return Snapshot(snapshot_id, None, 3, MS, "list", {"operation": "append", **summary})


# Names


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/opt/jobs/nightly.py", "x"], "nightly.py"),
        (["jobs/etl/__main__.py"], "etl"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
        (["/bin/" + "n" * 100], "n" * 64),
        (["/bin/a\x1b[31mb"], "a [31mb"),
    ],
)
def test_a_program_has_a_short_name_that_can_be_shown(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], name: str
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert program() == name


def test_a_text_is_shortened_to_printable_characters() -> None:
    assert short("  a\tb\ud800 ") == "a b"
    assert short("é" * 70) == "é" * 64
    assert short("a" * 63 + " b") == "a" * 63


# In summaries


def test_a_summary_gives_back_what_it_was_given() -> None:
    written = {**in_summary(INGEST), "frazil.verb": "update", "frazil.commit-id": "c"}
    assert written["frazil.started-ms"] == "1000"
    found = author_of(snapshot(written))
    assert (found.app, found.host, found.verb, found.started_ms) == ("ingest", "h1", "update", 1_000)
    assert found.origin == Origin("ingest", "h1", "update", 1_000)
    assert winner_of(snapshot(written)) == Winner("ingest", "h1", "c", "update", AT)


def test_a_shared_summary_has_what_all_commits_have() -> None:
    other = Origin("clicks", "h1", "append", 2_000)
    assert shared_in_summary([INGEST, INGEST]) == {"frazil.app": "ingest", "frazil.host": "h1"}
    assert shared_in_summary([INGEST, other]) == {"frazil.host": "h1"}
    assert shared_in_summary([INGEST, None]) == {}


@pytest.mark.parametrize(
    ("summary", "app", "verb"),
    [
        ({"frazil.commit-id": "of an earlier version"}, None, "append"),
        ({"frazil.verb": "rewrite"}, None, "compact"),
        ({}, None, "append"),
        ({"operation": "unknown"}, None, None),
        ({"engine-name": "spark", "spark.app.id": "local-1"}, "spark local-1", "append"),
        ({"app-id": "x\ny"}, "x y", "append"),
        ({"engine-name": "flink", "operation": "overwrite"}, "flink", "overwrite"),
        ({"frazil.app": "a", "frazil.started-ms": "soon"}, "a", "append"),
    ],
)
def test_what_other_writers_summaries_say(summary: dict[str, str], app: str | None, verb: str | None) -> None:
    found = author_of(snapshot(summary))
    assert (found.app, found.verb, found.origin) == (app, verb, None)


def test_each_snapshot_of_a_transaction_has_the_kind_of_its_write() -> None:
    whole = Identity("c", "d", given=False, origin=Origin("a", "h", "transaction", 1))
    assert of_write(whole, Kind.REWRITE) == Origin("a", "h", "compact", 1)
    single = Identity("c", "d", given=False, origin=INGEST)
    assert of_write(single, Kind.REWRITE) == INGEST
    assert of_write(Identity("c", "d", given=False), Kind.APPEND) is None


# Conflicts


def metadata(*found: Snapshot) -> TableMetadata:
    snapshots: list[dict[str, Any]] = [
        {
            "snapshot-id": each.snapshot_id,
            "sequence-number": each.sequence_number,
            "timestamp-ms": each.timestamp_ms,
            "manifest-list": each.manifest_list,
            "summary": dict(each.summary),
        }
        for each in found
    ]
    return TableMetadata({"table-uuid": "u", "format-version": 2, "snapshots": snapshots})


class Log:
    """Keeps the change of snapshot 7."""

    def __init__(self, change: Change) -> None:
        body = encode(change)
        assert body is not None
        self._record = ChangeRecord("u", change.snapshot_id, change.sequence_number, body)

    def find(self, table_uuid: str, after: int, up_to: int) -> list[ChangeRecord]:
        inside = table_uuid == "u" and after < self._record.sequence_number <= up_to
        return [self._record] if inside else []

    def forget(self, table_uuid: str) -> None:
        raise NotImplementedError(table_uuid)

    def dropped_lists(self, table_uuid: str) -> list[str]:
        raise NotImplementedError(table_uuid)


def conflict(*files: str, snapshot_id: int | None = 7) -> Conflict:
    return Conflict(Check.NO_ADDED_ROWS, "rows were added", snapshot_id, "append", files, "Retry")


def test_the_winner_in_a_shared_snapshot_is_the_one_whose_file_it_is() -> None:
    added = tuple(Entry(Status.ADDED, DataFile(path, 1, 1), 7, 3, 3) for path in ("a1", "a2", "b1"))
    commits = (
        SharedCommit("a", 2, 2, INGEST),
        SharedCommit("b", 1, 1, Origin("clicks", "h2", "append", 5)),
    )
    head = metadata(snapshot({"frazil.group-size": "2"}))
    log = Log(Change(7, 3, "append", added, commits=commits))
    asked = [conflict("a2"), conflict("b1"), conflict("a1", "b1"), conflict("c1"), conflict("a1", "a2")]
    first, second, both, other, two = (each.winner for each in with_winners(asked, head, log))
    assert first == two == Winner("ingest", "h1", "a", "append", AT)
    assert second == Winner("clicks", "h2", "b", "append", AT)
    assert both == other == Winner(None, None, None, "append", AT)
    assert with_winners([conflict("a2")], head, None)[0].winner == Winner(None, None, None, "append", AT)


def test_a_conflict_with_an_expired_snapshot_has_a_winner_of_which_nothing_is_known() -> None:
    known, unknown = with_winners([conflict(snapshot_id=None), conflict(snapshot_id=8)], metadata(), None)
    assert known.winner is None
    assert unknown.winner == Winner()
    assert pickle.loads(pickle.dumps(unknown)) == unknown


def test_an_error_says_winner_and_advice_once() -> None:
    summary = {**in_summary(INGEST), "frazil.verb": "merge", "frazil.commit-id": "c"}
    found = [conflict("s3://b/key=alice/f1.parquet"), conflict("f2.parquet", "f3.parquet")]
    text = str(conflict_error("delete", EVENTS, found, metadata(snapshot(summary))))
    assert text.splitlines() == [
        "The delete on shop.events conflicts with concurrent commits and was not committed.",
        "  no added rows match my filter: rows were added: f1.parquet.",
        "  no added rows match my filter: rows were added: f2.parquet and 1 more.",
        "  Committed first: merge by ingest on h1 at 2026-11-01 12:00:00 UTC, snapshot 7.",
        "  Retry.",
    ]


def test_advice_that_two_conflicts_share_in_part_is_said_once() -> None:
    retry = "Re-read the table and retry the delete"
    found = [
        Conflict(
            Check.NO_ADDED_ROWS, "x", advice="Re-read the table and retry the delete. Or choose snapshot isolation"
        ),
        Conflict(Check.NO_REMOVED_ROWS, "y", advice=retry),
    ]
    text = str(conflict_error("delete", EVENTS, found))
    assert text.splitlines()[-1] == "  Re-read the table and retry the delete. Or choose snapshot isolation."
    assert text.count("Re-read") == 1


def test_a_conflict_alone_names_its_winner() -> None:
    found = Conflict("a", "x", 7, "append", winner=Winner("ingest", None, None, "merge", AT))
    assert str(found) == "a: x (merge by ingest at 2026-11-01 12:00:00 UTC, snapshot 7)"
    assert str(Conflict("a", "x", 7, "append")) == "a: x (append, snapshot 7)"
    assert str(Conflict("a", "x", 7, "append", winner=Winner())) == "a: x (append, snapshot 7)"
    assert str(Conflict("a", "x")) == "a: x"


def test_the_host_is_named_shortly() -> None:
    assert origins.host() == short(origins.host()) != ""
