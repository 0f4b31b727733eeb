"""The judge of histories is judged: by SQLite for its conditions, by hand-made histories, and by engines with flaws."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concurrency.histories import interleave
from concurrency.histories.model import LAYOUTS, Layout, Row, Step, apply, assignment_sql, condition_sql, counted
from concurrency.histories.processes import read_logs
from concurrency.histories.programs import COLUMNS, VERBS, Writer
from concurrency.histories.records import Record, Remains, Version
from concurrency.histories.replay import Divergence, Verdict, replay, statistics
from unit.toy_lake import Counts, Sqlite, ToyLake, replaced, upserted

BY_P, BY_P_AND_K = LAYOUTS[:2]


def row(k: int, p: str = "a", v: int | None = 0, **more: Any) -> Row:
    return {"k": k, "p": p, "v": v, **more}


# The model beside SQLite


def drawn(seed: int, layout: Layout) -> tuple[list[Row], Step]:
    writer = Writer(random.Random(seed), "w", layout, COLUMNS)
    verb = writer.pick([each for each in VERBS if each.__name__ not in ("compact", "add_column", "set_properties")])
    return [each for _ in range(8) for each in writer.rows(4)], verb(writer)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_verb_does_to_rows_what_sqlite_does(layout: Layout) -> None:
    verbs: set[str] = set()
    for seed in range(150):
        rows, step = drawn(seed, layout)
        with contextlib.closing(Sqlite(rows)) as sqlite:
            counts = performed(sqlite, step, layout)
            effect = apply(tuple(rows), step, layout)
            assert counted(effect.state) == counted(sqlite.rows()), step
            if step.verb != "upsert":
                assert (effect.inserted, effect.updated, effect.deleted) == counts, step
        verbs.add(step.verb)
    assert verbs >= {"append", "overwrite", "delete", "update", "upsert"}
    assert ("replace_partitions" in verbs) == bool(layout.partition_by)


def performed(sqlite: Sqlite, step: Step, layout: Layout) -> Counts:
    """A step in SQL: rows inserted, updated, deleted."""
    where = condition_sql(step.where) if step.where is not None else ""
    match step.verb:
        case "update":
            return 0, sqlite.update({name: assignment_sql(each) for name, each in step.set.items()}, where), 0
        case "replace_partitions":
            where = replaced(step.rows, layout)
        case "upsert":
            where = upserted(step.rows, layout)
    deleted = sqlite.delete(where) if where else 0
    return sqlite.insert(step.rows), 0, deleted


def test_an_upsert_counts_what_it_knows() -> None:
    state = (row(1), row(1), row(2))
    step = Step("upsert", rows=(row(1, v=5), row(3, v=5)), mode="position")
    effect = apply(state, step, BY_P)
    assert (effect.inserted, effect.updated, effect.deleted) == (1, 1, 1)
    effect = apply(state, replace(step, mode="equality"), BY_P)
    assert (effect.inserted, effect.updated, effect.deleted) == (2, 0, 0)
    assert counted(effect.state) == counted([row(2), row(1, v=5), row(3, v=5)])


def test_a_key_of_two_columns_is_both_of_them() -> None:
    effect = apply((row(1, "a"), row(1, "b")), Step("upsert", rows=(row(1, "b", 7),), mode="equality"), BY_P_AND_K)
    assert counted(effect.state) == counted([row(1, "a"), row(1, "b", 7)])


def test_what_the_model_does_not_know_it_refuses() -> None:
    with pytest.raises(ValueError, match="no verb 'merge'"):
        apply((), Step("merge"), BY_P)
    with pytest.raises(ValueError, match="no partitioning"):
        Layout("bucket(4, k)", ("k",)).partition(row(1))


# Hand-made histories


class History:
    """A history written by hand: each commit takes one tick, and the table has the given rows."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._versions: list[Version] = []
        self._rows: dict[int, list[Row]] = {}
        self._tick = 0.0

    def commit(self, id_: str, *steps: Step, rows: list[Row], counts: Counts = (0, 0, 0), redone: int = 0) -> History:
        """``rows``: those of the table afterwards."""
        number = len(self._versions) + 1
        self._versions.append(Version(number, id_))
        self._rows[number] = rows
        return self.ended(id_, "committed", *steps, snapshot_id=number, counts=counts, redone=redone)

    def ended(
        self,
        id_: str,
        outcome: str,
        *steps: Step,
        snapshot_id: int | None = None,
        counts: Counts = (0, 0, 0),
        **more: Any,
    ) -> History:
        inserted, updated, deleted = counts
        self._tick += 2
        self.records.append(
            Record(
                id=id_,
                steps=steps,
                outcome=outcome,
                started=self._tick,
                finished=self._tick + 1,
                transaction=len(steps) > 1,
                **more,
                snapshot_id=snapshot_id,
                inserted=inserted,
                updated=updated,
                deleted=deleted,
            )
        )
        return self

    def verdict(self, *, every: int = 1, **remains: Any) -> Verdict:
        left = Remains(self._versions, lambda snapshot_id: self._rows[snapshot_id], **remains)
        return replay(self.records, left, BY_P, every=every)

    def judged(self, **options: Any) -> Divergence | None:
        return self.verdict(**options).divergence


def append(*rows: Row) -> Step:
    return Step("append", rows=rows)


def scan(key: int, *rows: Row) -> Step:
    return Step("scan", where=("=", "k", key), seen=rows)


def delete(key: int) -> Step:
    return Step("delete", where=("=", "k", key))


def two_appends() -> History:
    history = History().commit("one", append(row(1), row(1)), rows=[row(1), row(1)], counts=(2, 0, 0))
    return history.commit("two", append(row(2)), rows=[row(1), row(2), row(1)], counts=(1, 0, 0))


def kind(found: Divergence | None) -> str | None:
    return None if found is None else found.kind


def test_a_right_history_is_found_right() -> None:
    history = two_appends()
    history.commit("three", delete(1), rows=[row(2)], counts=(0, 0, 2))
    history.ended("four", "unchanged", delete(1))
    history.ended("five", "conflict", append(row(9)))
    history.ended("six", "abandoned", scan(2, row(2)), scan(1))
    history.commit("seven", scan(1), append(row(1)), scan(1, row(1)), rows=[row(1), row(2)], counts=(1, 0, 0))
    assert history.judged() is None


def test_a_redone_statement_has_a_verdict_of_its_own() -> None:
    history = two_appends().commit("three", delete(1), rows=[row(2)], counts=(0, 0, 2), redone=1)
    assert history.judged() is None
    assert "redone" in statistics(history.records, history.verdict())
    assert str(history.records[-1]).startswith("three (delete) redone as snapshot 3")


def test_what_a_redone_statement_leaves_of_rows_that_came_is_found() -> None:
    history = two_appends().commit("three", delete(1), rows=[row(1), row(2)], counts=(0, 0, 2), redone=1)
    assert kind(history.judged()) == "rows"


def test_a_statement_that_was_refused_and_not_redone_is_found() -> None:
    rows, schema = ("one owner for each row", "no added rows match my filter"), ("schema still compatible",)
    assert kind(two_appends().ended("three", "conflict", delete(1), checks=rows).judged()) == "redo"
    for right in (
        two_appends().ended("three", "conflict", delete(1), checks=schema),
        two_appends().ended("three", "conflict", append(row(1)), checks=("my rows not deleted meanwhile",)),
        two_appends().ended("three", "conflict", scan(2, row(2)), delete(1), checks=rows),
    ):
        assert right.judged() is None


def test_a_transaction_that_was_redone_is_found() -> None:
    history = two_appends().commit("three", scan(2, row(2)), delete(1), rows=[row(2)], counts=(0, 0, 2), redone=1)
    assert kind(history.judged()) == "redo"


def test_a_lost_row_is_found_with_its_commit() -> None:
    history = two_appends().commit("three", delete(2), rows=[row(1)], counts=(0, 0, 1))
    found = history.judged()
    assert found is not None
    assert (found.kind, found.missing, found.surplus) == ("rows", counted([row(1)]), {})
    assert "at three (delete) committed as snapshot 3" in str(found)
    assert "delete(where='k = 2')" in str(found)
    assert "expected, not there: {k=1 p=a v=0}" in str(found)
    assert "the 2 commits before it, oldest first:\n    one (append)" in str(found)


def test_a_row_that_comes_back_is_found() -> None:
    found = two_appends().commit("three", delete(2), rows=[row(1), row(1), row(2)], counts=(0, 0, 1)).judged()
    assert found is not None
    assert (found.kind, found.missing, found.surplus) == ("rows", {}, counted([row(2)]))


def test_one_of_two_equal_rows_is_not_both() -> None:
    assert kind(History().commit("one", append(row(1), row(1)), rows=[row(1)], counts=(2, 0, 0)).judged()) == "rows"


def test_with_fewer_comparisons_the_last_version_is_still_compared() -> None:
    history = two_appends().commit("three", append(row(3)), rows=[], counts=(1, 0, 0))
    assert kind(history.judged(every=100)) == "rows"


def test_a_stale_read_is_found() -> None:
    history = two_appends().commit("three", scan(2), append(row(2)), rows=[row(1), row(1), row(2), row(2)])
    found = history.judged()
    assert found is not None
    assert (found.kind, found.missing) == ("stale read", counted([row(2)]))


def test_a_transaction_must_see_its_own_writes() -> None:
    history = History().commit("one", append(row(1)), scan(1), append(row(2)), rows=[row(1), row(2)])
    assert kind(history.judged()) == "stale read"


def test_wrong_counts_are_found() -> None:
    history = two_appends().commit("three", delete(1), rows=[row(2)], counts=(0, 0, 1))
    assert "0 inserted, 0 updated, 1 deleted; the model 0, 0, 2" in str(history.judged())


def test_a_row_that_two_writers_delete_is_counted_by_both() -> None:
    history = two_appends().commit("three", delete(2), rows=[row(1), row(1)], counts=(0, 0, 1))
    history.commit("four", delete(2), rows=[row(1), row(1)], counts=(0, 0, 1))
    assert kind(history.judged()) == "count"
    history.records[-1] = replace(history.records[-1], started=history.records[-2].started)
    assert history.judged() is None


def test_a_conflict_that_landed_is_a_ghost() -> None:
    history = two_appends().commit("three", append(row(3)), rows=[row(1), row(1), row(2), row(3)], counts=(1, 0, 0))
    history.records[-1] = replace(history.records[-1], outcome="conflict", snapshot_id=None)
    found = history.judged()
    assert found is not None
    assert found.kind == "ghost"
    assert "ended as 'conflict'" in found.what


def test_a_version_without_a_commit_is_a_ghost() -> None:
    history = two_appends()
    del history.records[0]
    assert kind(history.judged()) == "ghost"


def test_an_acknowledged_commit_that_is_not_there_is_lost() -> None:
    history = two_appends().ended("three", "committed", append(row(3)), snapshot_id=77, counts=(1, 0, 0))
    assert kind(history.judged()) == "lost"
    history = two_appends().ended("three", "committed", append(row(3)), counts=(1, 0, 0))
    assert kind(history.judged()) == "lost"


def test_two_commits_that_claim_one_version_are_found() -> None:
    history = two_appends().ended("three", "committed", append(row(2)), snapshot_id=2, counts=(1, 0, 0))
    assert kind(history.judged()) == "shared"


def test_an_unknown_write_counts_where_it_landed_and_not_where_it_did_not() -> None:
    history = two_appends()
    history.records[1] = replace(history.records[1], outcome="unknown", snapshot_id=None, finished=float("inf"))
    assert history.judged() is None
    history = two_appends().ended("three", "unknown", append(row(3)))
    assert history.judged() is None


def test_an_order_against_time_is_found() -> None:
    history = two_appends()
    late, early = history.records
    history.records[:] = [replace(late, started=10, finished=11), replace(early, started=2, finished=3)]
    assert kind(history.judged()) == "order"


def test_a_call_that_changed_nothing_must_have_matched_nothing_while_it_ran() -> None:
    history = two_appends().ended("three", "unchanged", delete(1))
    found = history.judged()
    assert found is not None
    assert found.kind == "unexplained"
    # Before the first commit there was nothing to match: a call that began then is explained.
    history.records[-1] = replace(history.records[-1], started=0.0)
    assert history.judged() is None
    # So is one that ended before the rows were added; one that began after the first row was added is not.
    history.records[-1] = replace(history.records[-1], started=0.0, finished=0.5)
    assert history.judged() is None
    history.records[-1] = replace(history.records[-1], started=3.5, finished=99)
    assert kind(history.judged()) == "unexplained"


def test_reads_of_two_states_are_found_even_when_nothing_was_written() -> None:
    history = History().commit("one", append(row(1)), rows=[row(1)], counts=(1, 0, 0))
    history.commit("two", append(row(2)), rows=[row(1), row(2)], counts=(1, 0, 0))
    torn = Record("three", (scan(1), scan(2, row(2))), "abandoned", started=0, finished=99, transaction=True)
    history.records.append(torn)
    assert kind(history.judged()) == "unexplained"
    history.records[-1] = replace(torn, steps=(scan(1, row(1)), scan(2)))
    assert history.judged() is None


def test_folded_commits_share_a_version_in_their_own_order() -> None:
    history = History().commit("one", append(row(1)), rows=[row(1), row(1, v=5)], counts=(1, 0, 0))
    upsert = Step("upsert", rows=(row(1, v=5),), mode="equality")
    history.ended("two", "committed", upsert, snapshot_id=1, counts=(1, 0, 0))
    history.records[1] = replace(history.records[1], group_index=0, started=2.0)
    history.records[0] = replace(history.records[0], group_index=1, finished=99)
    assert history.judged() is None


def test_columns_and_properties_are_judged_at_the_end() -> None:
    history = two_appends()
    history.ended("c", "committed", Step("add_column", name="d0", value="int"))
    history.ended("x", "conflict", Step("add_column", name="d0", value="string"))
    history.ended("r", "refused", Step("add_column", name="d0", value="int"))
    history.ended("p", "committed", Step("set_properties", name="owner", value="p"))
    history.ended("q", "committed", Step("set_properties", name="owner", value="q"))
    right: dict[str, Any] = {"columns": {"d0": "int"}, "properties": {"owner": "q"}}
    assert history.judged(**right) is None
    assert kind(history.judged(**{**right, "columns": {}})) == "column"
    assert kind(history.judged(**{**right, "columns": {"d0": "string"}})) == "column"
    assert kind(history.judged(**{**right, "properties": {"owner": "p"}})) == "property"
    assert kind(history.judged(**{**right, "properties": {}})) == "property"


def test_a_crash_is_reported_first() -> None:
    assert kind(two_appends().ended("three", "crashed", delete(1)).judged()) == "crash"


def test_the_statistics_name_outcomes_and_checks() -> None:
    history = two_appends().ended("three", "conflict", delete(1))
    history.records[-1] = replace(history.records[-1], checks=("no added rows",))
    text = statistics(history.records, history.verdict())
    assert "1 × delete: no added rows, 1 not because of rows" in text
    # With the rows gone while it ran, the conflict has a reason.
    history.records[-1] = replace(history.records[-1], started=0.0)
    text = statistics(history.records, history.verdict())
    assert text.splitlines()[-1].endswith("delete: no added rows")
    assert text.splitlines()[0].split() == ["committed", "conflict"]


def test_a_log_keeps_the_last_word_of_each_session(tmp_path: Path) -> None:
    done = two_appends().commit("three", scan(1, row(1)), delete(1), rows=[]).records
    about = [replace(each, outcome="unknown", snapshot_id=None, finished=float("inf")) for each in done]
    lines = [about[0], done[0], about[1], done[1], about[2]]
    log = tmp_path / "writer.jsonl"
    log.write_text("".join(json.dumps(each.to_json()) + "\n" for each in lines))
    read = read_logs([log])
    assert [each.outcome for each in read] == ["committed", "committed", "unknown"]
    assert read[0] == done[0]
    assert replay(read, Remains([], lambda _: []), BY_P).divergence is not None
    assert str(read[2]) == str(about[2])


# Engines with flaws


@contextlib.contextmanager
def toy(flaw: str, layout: Layout) -> Iterator[Any]:
    yield ToyLake(flaw, layout)


def played(flaw: str, seed: int, sessions: int = 150) -> interleave.Run:
    layout = interleave.layout_of(seed)
    return interleave.run(interleave.schedule_of(seed, sessions), layout, lambda: toy(flaw, layout))


def runs(flaw: str, sessions: int = 150) -> list[interleave.Run]:
    return [played(flaw, seed, sessions) for seed in range(len(LAYOUTS))]


def test_an_engine_that_refuses_every_race_is_found_right() -> None:
    for run in runs("none"):
        assert run.verdict.divergence is None, str(run.verdict.divergence)
        outcomes = {record.outcome for record in run.records}
        assert {"committed", "conflict", "unchanged", "abandoned"} <= outcomes
        assert run.verdict.compared == run.verdict.commits > 10


@pytest.mark.parametrize(
    ("flaw", "kinds"),
    [
        ("overwrites", {"rows", "stale read"}),
        ("reads unchecked", {"stale read", "count"}),
        ("forgets", {"lost"}),
        ("half", {"ghost"}),
        ("skips duplicates", {"rows"}),
    ],
)
def test_an_engine_with_a_flaw_is_found_out(flaw: str, kinds: set[str]) -> None:
    for run in runs(flaw):
        assert run.verdict.divergence is not None
        assert run.verdict.divergence.kind in kinds


def test_what_is_found_is_shrunk_to_the_few_sessions_that_matter() -> None:
    layout = interleave.layout_of(1)
    found = played("overwrites", seed=1)
    small = interleave.shrunk(found, layout, lambda: toy("overwrites", layout))
    assert small.verdict.divergence is not None
    assert len(set(small.schedule)) <= 3 < len(set(found.schedule))
    assert any("commit => committed" in line for line in small.trace)


def test_the_same_seed_plays_the_same_history() -> None:
    first, second = runs("none", 30), runs("none", 30)
    assert [run.trace for run in first] == [run.trace for run in second]
    assert [run.records for run in first] == [run.records for run in second]
