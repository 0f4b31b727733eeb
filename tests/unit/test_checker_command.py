"""Histories in files, and ``frazil check`` as a person or a script meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from frazil import cli
from frazil.errors import InvalidInput
from frazil.verify.checker import Key, Outcome, Read, Transaction, Value, Version, Write, check
from frazil.verify.checker.history import parse_history, read_history, write_history
from frazil.verify.checker.report import sentences, to_json
from unit.checker_language import history, versions

CLEAN = "A p 0-1: put x 1\nB q 2-3: read x=1 @1"
STALE = "A p 0-1: put x 1\nB q 2-3: put x 2\nC r 4-5: read x=1 @1"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Run = Callable[..., Answer]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("FRAZIL_URI", raising=False)

    def call(*arguments: object) -> Answer:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(each) for each in arguments])
        printed = capsys.readouterr()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, printed.out, printed.err)

    return call


def kept(folder: Path, text: str, order: str) -> Path:
    path = folder / "history.jsonl"
    write_history(path, history(text), versions(order))
    return path


def test_a_clean_history_ends_with_zero(run: Run, tmp_path: Path) -> None:
    answer = run("check", kept(tmp_path, CLEAN, "A"))
    assert answer.code == 0
    assert "t: nothing found; no level is ruled out" in answer.out


def test_an_anomaly_ends_with_one_and_is_told_in_sentences(run: Run, tmp_path: Path) -> None:
    answer = run("check", kept(tmp_path, STALE, "A B"))
    assert answer.code == 1
    assert "t: ruled out: strict serializable. Serializable is not" in answer.out
    assert "C read 1 in key 'x' of t and did not see that B wrote 2 there; but B was answered" in answer.out


def test_only_what_breaks_the_wanted_level_ends_with_one(run: Run, tmp_path: Path) -> None:
    path = kept(tmp_path, STALE, "A B")
    assert run("check", path, "--level", "serializable").code == 0
    assert run("check", path, "--level", "strict-serializable").code == 1


def test_clocks_may_differ(run: Run, tmp_path: Path) -> None:
    assert run("check", kept(tmp_path, STALE, "A B"), "--slack", "2").code == 0


def test_the_report_is_there_for_programs(run: Run, tmp_path: Path) -> None:
    found = json.loads(run("check", kept(tmp_path, STALE, "A B"), "--json").out)
    assert found["clean"] is False
    assert found["holds"] == "serializable"
    assert found["tables"]["t"]["ruled_out"] == ["strict serializable"]
    assert found["counts"] == {"stale read": 1}
    assert found["anomalies"][0]["transactions"] == ["C", "B"]


@pytest.mark.parametrize(
    "text",
    [
        "nonsense\n",
        "[1, 2]\n",
        '{"no": "event"}\n',
        '{"event": "version"}\n',
        '{"event": "read", "tx": "a"}\n',
        '{"event": "transaction", "id": "a", "ops": [{"op": "write", "table": "t", "writes": [["steal", 1, 2]]}]}\n',
        '{"event": "write", "tx": "a", "table": "t", "writes": [["put"]]}\n',
    ],
)
def test_what_is_no_history_ends_with_two(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    answer = run("check", path)
    assert answer.code == 2
    assert "Traceback" not in answer.err


def test_a_history_that_is_not_there_ends_with_two(run: Run, tmp_path: Path) -> None:
    assert run("check", tmp_path / "nowhere").code == 2
    assert run("check", tmp_path).code == 2


EVENTS: list[dict[str, Any]] = [
    {"event": "recorder", "host": "one"},
    {"event": "begin", "tx": "a", "process": "p", "mono": 1.0, "wall": 101.0, "isolation": "snapshot"},
    {"event": "read", "tx": "a", "table": "t", "version": 7, "whole": True, "seen": [[1, [5]], [[2, "b"], [6, 6]]]},
    {"event": "write", "tx": "a", "table": "t", "writes": [["put", 1, 8], ["clear", None, None], ["take", 2, 9]]},
    {"event": "commit", "tx": "a", "commit_id": "c"},
    {"event": "something new"},
    {"event": "ok", "tx": "a", "mono": 2.0, "wall": 102.0, "changed": False},
    {"event": "begin", "tx": "b", "process": "p", "mono": 3.0, "wall": 103.0},
    {"event": "commit", "tx": "b", "commit_id": "d"},
    {"event": "version", "table": "t", "id": 7, "commits": ["x", "y"], "parent": 6, "rows": [[1, [5]]], "live": False},
]


def test_events_become_transactions() -> None:
    found = parse_history(EVENTS)
    one, other = found.transactions
    seen: dict[Key, tuple[Value, ...]] = {1: (5,), (2, "b"): (6, 6)}
    ops = (
        Read("t", seen, whole=True, version=7),
        Write("t", "put", 1, 8),
        Write("t", "remove", every_key=True),
        Write("t", "remove", 2, 9, one_value=True),
    )
    assert one == Transaction("a", "p", ops, Outcome.OK, "c", 1.0, 2.0, changed=False, isolation="snapshot")
    # Whoever was killed was told nothing.
    assert other == Transaction("b", "p", (), Outcome.UNKNOWN, "d", 3.0, None)
    assert found.versions == (Version("t", 7, ("x", "y"), 6, {1: (5,)}, live=False),)


def test_several_machines_share_no_clock_but_the_wall() -> None:
    found = parse_history([{"event": "recorder", "host": "two"}, *EVENTS])
    assert found.transactions[0].began == 101.0


def test_the_last_line_of_a_killed_process_may_be_cut(tmp_path: Path) -> None:
    text = b"".join(json.dumps(each).encode() + b"\n" for each in EVENTS)
    path = tmp_path / "a.jsonl"
    path.write_bytes(text[:-20])
    assert len(read_history(tmp_path).transactions) == 2
    # In the middle it is no accident.
    path.write_bytes(text[:-20] + b"\n" + text)
    with pytest.raises(InvalidInput, match="not JSON"):
        read_history(tmp_path)


def test_a_folder_is_read_as_one_history(tmp_path: Path) -> None:
    write_history(tmp_path / "a.jsonl", history("A p 0-1: put x 1"), [])
    write_history(tmp_path / "b.jsonl", history("B q 2-3: read x=1 @1"), versions("A"))
    found = read_history(tmp_path)
    assert [each.id for each in found.transactions] == ["A", "B"]
    assert check(found.transactions, found.versions).is_clean


def test_a_cycle_is_told_step_by_step() -> None:
    report = check(history("A p 0-9: scan @0; put x 1\nB q 0-9: scan @0; put y 2"), versions("A B"))
    text = "\n".join(sentences(report))
    assert "phantom in t (forbidden from serializable on)" in text
    assert "A read all of t and did not see that B wrote 2 to key 'y' in version 2" in text
    assert "would have to come before itself" in text
    assert len(to_json(report)["anomalies"][0]["cycle"]) == 2
