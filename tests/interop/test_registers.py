"""The interleavings and the workload of ``benchmarks/isolation.py``, under the history checker. No Java is needed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.verify.checker import Kind, Level, check
from frazil.verify.checker.history import History, read_history, write_history

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from peers.interleavings import compaction_over_delete, sqlite_place, two_upserts
from peers.registers import system_of
from peers.workload import Workload, grouped, history_of, play

pytestmark = pytest.mark.interop


@pytest.fixture(autouse=True)
def _calm() -> Iterator[None]:
    with warnings.catch_warnings():
        # PyIceberg leaves its SQLite connections to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def _kinds(history: History) -> set[Kind]:
    return {each.kind for each in check(history.transactions, history.versions).anomalies}


def test_pyiceberg_lets_two_upserts_of_a_new_key_land_and_the_checker_names_it(tmp_path: Path) -> None:
    notes, history = two_upserts(sqlite_place("pyiceberg", tmp_path / "lake"))
    assert [note.outcome for note in notes] == ["ok", "ok", "ok"]
    assert sorted(tuple(row) for row in notes[-1].rows) == [(1, 10), (1, 20)]
    report = check(history.transactions, history.versions)
    assert [each.kind for each in report.anomalies] == [Kind.LOST_UPDATE]
    assert Level.SERIALIZABLE in report.ruled_out(), "PyIceberg's default"


def test_frazil_refuses_the_second_upsert_and_the_history_is_clean(tmp_path: Path) -> None:
    notes, history = two_upserts(sqlite_place("frazil", tmp_path / "lake"))
    assert [note.outcome for note in notes] == ["ok", "failed", "ok"]
    assert notes[1].problem is not None
    assert notes[1].problem.startswith("ConflictError")
    assert [tuple(row) for row in notes[-1].rows] == [(1, 10)]
    assert _kinds(history) == set()


def test_pyiceberg_brings_a_deleted_row_back_and_the_checker_names_it(tmp_path: Path) -> None:
    _, history = compaction_over_delete(sqlite_place("pyiceberg", tmp_path / "lake"))
    assert Kind.RESURRECTED in _kinds(history)


def test_frazil_compacts_around_the_delete(tmp_path: Path) -> None:
    notes, history = compaction_over_delete(sqlite_place("frazil", tmp_path / "lake"))
    assert sorted(tuple(row) for row in notes[-1].rows) == [(2, 20), (3, 30), (4, 40), (5, 50)]
    assert _kinds(history) == set()


def test_a_short_run_of_frazil_has_no_anomaly(tmp_path: Path) -> None:
    place = sqlite_place("frazil", tmp_path / "lake")
    system = system_of(place)
    system.create()
    notes = play(place, Workload(clients=2, seconds=6, keys=2))
    system.open()
    history, twins = history_of(system, notes)
    system.close()
    landed = {note.value for note in notes if note.key is not None and note.outcome == "ok"}
    assert landed
    held = {value for version in history.versions for values in (version.rows or {}).values() for value in values}
    assert held >= landed
    assert (_kinds(history), twins) == (set(), 0)


def test_a_kept_history_is_judged_alike(tmp_path: Path) -> None:
    _, history = two_upserts(sqlite_place("pyiceberg", tmp_path / "lake"))
    write_history(tmp_path / "kept.jsonl", history.transactions, history.versions)
    assert _kinds(read_history(tmp_path / "kept.jsonl")) == {Kind.LOST_UPDATE}


def test_rows_that_an_update_was_right_to_write_count_once() -> None:
    rows = [(1, 10), (1, 10), (2, 20), (2, 20)]
    assert grouped(rows, {10: 2}) == {1: (10,), 2: (20, 20)}
