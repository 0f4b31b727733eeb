"""Merges on Spark that meet a conflict are evaluated again on the files that changed (rule P39).

The other writer lands when the merge has read the head: after its files are staged, before its first attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from pyspark.sql import functions as F

import frazil
from frazil.commit.context import Phase
from frazil.on_spark import scan
from frazil.transaction import Transaction
from merge_cases import MODES, Mode
from surface.matrix import files_of, named_files

QUICK = frazil.Retry(tries=4, base_ms=0)
DDL = "id bigint, v bigint"
Rows = list[tuple[Any, ...]]
Act = Callable[[], object]


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    """Four files of five rows: id 0 to 19, v = id."""
    made = lake.create_table("shop.t", DDL)
    for first in range(0, 20, 5):
        made.append(rows(range(first, first + 5)))
    return made


def rows(ids: Any, v: int | None = None) -> list[dict[str, Any]]:
    return [{"id": each, "v": each if v is None else v} for each in ids]


def content(table: frazil.Table) -> Rows:
    found = table.scan().to_arrow().to_pylist()
    return sorted(((row["id"], row["v"]) for row in found), key=lambda row: (row[0] is None, row))


def expected(changes: Mapping[int, int | None] | None = None) -> Rows:
    """The rows of ``table`` with these values; None: the row is gone."""
    found: dict[int, int | None] = {**{each: each for each in range(20)}, **(changes or {})}
    return sorted((each, v) for each, v in found.items() if v is not None)


def at(*acts: Act, phase: Phase = Phase.HEAD_READ) -> Callable[[Phase, int], None]:
    """One of the acts, in order, each time that the phase is reached."""
    left = list(acts)

    def on_phase(reached: Phase, _attempt: int) -> None:
        if reached is phase and left:
            left.pop(0)()

    return on_phase


def given(spark: Any, ids: Any, v: int = -1) -> Any:
    return spark.createDataFrame([(each, v) for each in ids], DDL)


def upserting(table: frazil.Table, source: Any, **how: Any) -> frazil.Commit:
    made = table.merge(source, on=["id"], retry=QUICK, **how)
    return made.when_matched_update_all().when_not_matched_insert_all().execute()


def counts(done: frazil.Commit) -> tuple[int, int, int]:
    return done.rows_updated, done.rows_inserted, done.rows_deleted


def plain(paths: Iterable[str]) -> set[str]:
    return {path.removeprefix("file://") for path in paths}


class Reads:
    """Which data files are opened: by Spark's reader, and by this process."""

    def __init__(self, table: frazil.Table, patch: pytest.MonkeyPatch) -> None:
        self.table = table
        self.paths: set[str] = set()
        relation, storage = scan.relation, table._lake.storage
        open_input = storage.open_input

        def related(spark: Any, files: Any, schema: Any, storage: Any) -> Any:
            self.paths.update(files)
            return relation(spark, files, schema, storage)

        def opened(path: str) -> Any:
            self.paths.add(path)
            return open_input(path)

        patch.setattr(scan, "relation", related)
        patch.setattr(storage, "open_input", opened)

    def start(self) -> None:
        """Those of the table as it is now are counted from now on."""
        self.live = plain(each.path for each in self.table.files())
        self.paths.clear()

    @property
    def found(self) -> set[str]:
        return plain(self.paths) & self.live


@pytest.fixture
def reads(table: frazil.Table, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(table, monkeypatch)


def files_of_row(table: frazil.Table, key: int) -> set[str]:
    """Files have ranges of ids, so that statistics tell them apart."""
    return plain(task.file.file_path for task in table.scan(where=f"id = {key}").tasks())


def nothing_is_left(table: frazil.Table) -> None:
    assert files_of(table) == named_files(table)


@pytest.mark.everywhere
@pytest.mark.parametrize("mode", MODES)
def test_p39_a_merge_reads_only_the_files_that_changed(
    table: frazil.Table, spark: Any, mode: Mode, reads: Reads
) -> None:
    """3 and 13 are there, 30 and 31 are inserted; then 31 arrives."""

    def theirs() -> None:
        assert reads.found == files_of_row(table, 3) | files_of_row(table, 13)
        table.append(rows([31, 32]))
        reads.start()

    reads.start()
    done = upserting(table, given(spark, [3, 13, 30, 31]), mode=mode, on_phase=at(theirs))
    assert len(reads.found) == 1
    assert (done.redone, counts(done)) == (1, (3, 1, 0))
    assert content(table) == expected({3: -1, 13: -1, 30: -1, 31: -1, 32: 32})
    nothing_is_left(table)


@pytest.mark.everywhere
@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("mode", MODES)
def test_p39_a_matched_row_that_was_deleted_is_inserted(
    table: frazil.Table, spark: Any, mode: Mode, how: Mode, reads: Reads
) -> None:
    """Its new values are taken out of what was staged; those of other rows of its file are found again."""

    def theirs() -> None:
        table.delete("id = 3", mode=how)
        reads.start()

    made = (
        table.merge(given(spark, [3, 4, 13, 30]), on=["id"], retry=QUICK, mode=mode, on_phase=at(theirs))
        .when_matched_update({"v": "target.v + 100"})
        .when_not_matched_insert_all()
    )
    done = made.execute()
    assert len(reads.found) == 1
    assert (done.redone, counts(done)) == (1, (2, 2, 0))
    assert content(table) == expected({3: -1, 4: 104, 13: 113, 30: -1})
    nothing_is_left(table)


@pytest.mark.parametrize("mode", MODES)
def test_p39_rows_that_were_changed_have_their_new_values(
    table: frazil.Table, spark: Any, mode: Mode, reads: Reads
) -> None:
    unchanged = files_of_row(table, 13) | files_of_row(table, 16)

    def theirs() -> None:
        table.update({"v": "v + 1000"}, "id in (3, 7, 8)")
        reads.start()

    made = (
        table.merge(given(spark, [3, 8, 13]), on=["id"], retry=QUICK, mode=mode, on_phase=at(theirs))
        .when_matched_delete("target.v > 1007")
        .when_matched_update({"v": "target.v + 100"})
    )
    done = made.execute()
    # The update has rewritten two files and added one.
    assert len(reads.found) == 3
    assert reads.found & unchanged == set()
    assert (done.redone, counts(done)) == (1, (2, 0, 1))
    assert content(table) == expected({3: 1103, 7: 1007, 8: None, 13: 113})
    nothing_is_left(table)


@pytest.mark.parametrize("mode", MODES)
def test_p39_rows_that_no_source_row_matches_are_found_among_those_that_arrived(
    table: frazil.Table, spark: Any, mode: Mode, reads: Reads
) -> None:
    def theirs() -> None:
        table.append(rows([40, 41]))
        table.delete("id = 18", mode="merge-on-read")
        reads.start()

    made = (
        table.merge(given(spark, [3, 30, 40]), on=["id"], retry=QUICK, mode=mode, on_phase=at(theirs))
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .when_not_matched_by_source_update({"v": "target.v + 100"}, condition="target.id > 16")
        .when_not_matched_by_source_delete("target.id < 2")
    )
    done = made.execute()
    # The file that arrived, and the one that a row was deleted of.
    assert len(reads.found) == 2
    assert (done.redone, counts(done)) == (1, (5, 1, 2))
    wanted = {0: None, 1: None, 3: -1, 17: 117, 18: None, 19: 119, 30: -1, 40: -1, 41: 141}
    assert content(table) == expected(wanted)
    nothing_is_left(table)


@pytest.mark.everywhere
def test_p39_a_row_that_arrives_for_two_source_rows_is_refused(table: frazil.Table, spark: Any) -> None:
    """Without the row, both are inserted. Nothing that was staged stays."""
    source = given(spark, [3, 30, 30])
    with pytest.raises(frazil.InvalidInput, match="matches 2 rows of the source"):
        upserting(table, source, on_phase=at(lambda: table.append(rows([30]))))
    assert content(table) == expected({30: 30})
    nothing_is_left(table)
    assert counts(upserting(table, given(spark, [3, 31, 31]))) == (1, 2, 0)


@pytest.mark.everywhere
def test_p39_null_keys_match_nothing_that_arrives_unless_the_condition_says_so(table: frazil.Table, spark: Any) -> None:
    source = given(spark, [None, 30])
    done = upserting(table, source, on_phase=at(lambda: table.append([{"id": None, "v": 5}, {"id": 30, "v": 5}])))
    assert (done.redone, counts(done)) == (1, (1, 1, 0))
    assert content(table) == [*expected({30: -1}), (None, -1), (None, 5)]
    made = table.merge(
        given(spark, [None, 31], v=-2),
        on="target.id <=> source.id",
        retry=QUICK,
        on_phase=at(lambda: table.append([{"id": None, "v": 6}])),
    )
    done = made.when_matched_update_all().when_not_matched_insert_all().execute()
    assert (done.redone, counts(done)) == (1, (3, 1, 0))
    assert content(table) == [*expected({30: -1, 31: -2}), (None, -2), (None, -2), (None, -2)]
    nothing_is_left(table)


@pytest.mark.everywhere
def test_p39_on_conflict_abort_keeps_the_refusal(table: frazil.Table, spark: Any) -> None:
    source = given(spark, [3, 30])
    with pytest.raises(frazil.ConflictError, match="no added rows"):
        upserting(table, source, on_conflict="abort", on_phase=at(lambda: table.append(rows([30]))))
    with pytest.raises(frazil.ConflictError):
        upserting(table, source, on_conflict="abort", on_phase=at(lambda: table.delete("id = 3")))
    assert content(table) == expected({3: None, 30: 30})
    nothing_is_left(table)


def test_p39_spark_columns_are_not_evaluated_again(table: frazil.Table, spark: Any) -> None:
    made = table.merge(given(spark, [3]), on=["id"], retry=QUICK, on_phase=at(lambda: table.delete("id = 3")))
    with pytest.raises(frazil.ConflictError):
        made.when_matched_update({"v": F.col("source.v") * 2}).execute()
    assert content(table) == expected({3: None})
    nothing_is_left(table)


@pytest.mark.parametrize("mode", MODES)
def test_p39_a_merge_is_redone_as_often_as_it_loses(table: frazil.Table, spark: Any, mode: Mode) -> None:
    """Rows arrive and go by turns: matches are found, lost and found again."""
    acts: list[Act] = [
        lambda: table.append(rows([30, 31])),
        lambda: table.delete("id in (3, 31)", mode="merge-on-read"),
        lambda: (table.append(rows([31, 3])), table.compact(), table.append(rows([32]))),
    ]
    done = upserting(table, given(spark, [3, 13, 30, 31, 32, 33]), mode=mode, on_phase=at(*acts))
    assert done.redone == 3
    assert counts(done) == (5, 1, 0)
    assert content(table) == expected(dict.fromkeys((3, 13, 30, 31, 32, 33), -1))
    nothing_is_left(table)


def test_p39_a_merge_that_loses_too_often_says_how_far_it_came(table: frazil.Table, spark: Any) -> None:
    keys = iter(range(30, 60))
    add = lambda: table.append(rows([next(keys)]))  # noqa: E731
    first, later = at(add), at(*[add] * 9, phase=Phase.REDONE)

    def on_phase(phase: Phase, attempt: int) -> None:
        first(phase, attempt)
        later(phase, attempt)

    with pytest.raises(frazil.ConflictError, match=r"evaluated again 3 times in [\d.]+ s"):
        upserting(table, given(spark, range(30, 60)), on_phase=on_phase)
    assert content(table) == expected({each: each for each in range(30, 34)})
    nothing_is_left(table)


@pytest.mark.everywhere
def test_p34_a_merge_that_is_redone_runs_its_source_once(table: frazil.Table, spark: Any, tmp_path: Any) -> None:
    """Its rows are others each time: rows that are inserted again must be the same."""
    log = tmp_path / "runs"

    def noted(batches: Any) -> Any:
        for batch in batches:
            if batch.num_rows:
                with open(log, "a") as file:
                    file.write("run\n")
            yield batch

    source = spark.range(28, 33, 1, 1).selectExpr("id", "cast(rand() * 1e15 as bigint) as v").mapInArrow(noted, DDL)
    done = upserting(table, source, on_phase=at(lambda: table.append(rows([30])), lambda: table.append(rows([31]))))
    assert (done.redone, counts(done)) == (2, (2, 3, 0))
    assert log.read_text().split() == ["run"]
    assert len(content(table)) == 25
    nothing_is_left(table)


def test_p39_many_positions_stay_on_the_executors(
    table: frazil.Table, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frazil.on_spark import write_builder

    monkeypatch.setattr(write_builder, "MOST_POSITIONS", 0)
    for mode in MODES:
        acts: list[Act] = [lambda: table.append(rows([30])), lambda: table.delete("id = 3", mode="merge-on-read")]
        done = upserting(table, given(spark, [3, 4, 13, 30, 31]), mode=mode, on_phase=at(*acts))
        assert (done.redone, counts(done)) == (2, (3, 2, 0))
        assert content(table) == expected(dict.fromkeys((3, 4, 13, 30, 31), -1))
        twice = table.merge(given(spark, [4, 4]), on=["id"], mode=mode).when_matched_delete().execute()
        assert counts(twice) == (0, 0, 1)
        table.overwrite(rows(range(20)), "true")
    nothing_is_left(table)


# SQL


def landing(patch: pytest.MonkeyPatch, act: Act) -> None:
    """When the statement is evaluated, and has not made its first attempt."""
    plain_units, left = Transaction._units, [act]

    def late(self: Transaction) -> Any:
        found = plain_units(self)
        if left:
            left.pop()()
        return found

    patch.setattr(Transaction, "_units", late)


UPSERTING = """MERGE INTO shop.t USING (SELECT id, -v AS v FROM {}) s ON t.id = s.id
WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""


@pytest.mark.everywhere
def test_p39_a_merge_in_sql_is_redone(
    lake: frazil.Lake, table: frazil.Table, spark: Any, monkeypatch: pytest.MonkeyPatch, reads: Reads
) -> None:
    changes = lake.create_table("shop.changes", DDL)
    changes.append(rows([3, 13, 30, 31]))

    def theirs() -> None:
        table.append(rows([31, 32]))
        reads.start()

    landing(monkeypatch, theirs)
    done = lake.sql(UPSERTING.format("shop.changes"), spark)
    assert len(reads.found) == 1
    assert (done.redone, counts(done), done.engine) == (1, (3, 1, 0), "spark")
    assert content(table) == expected({3: -3, 13: -13, 30: -30, 31: -31, 32: 32})
    nothing_is_left(table)


def test_p39_a_merge_in_sql_whose_source_changed_is_refused(
    lake: frazil.Lake, table: frazil.Table, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source may be the table itself."""
    changes = lake.create_table("shop.changes", DDL)
    changes.append(rows([3, 30]))
    landing(monkeypatch, lambda: (table.append(rows([30])), changes.append(rows([4]))))
    with pytest.raises(frazil.ConflictError, match=r"shop\.changes"):
        lake.sql(UPSERTING.format("shop.changes"), spark)
    landing(monkeypatch, lambda: table.append(rows([31])))
    with pytest.raises(frazil.ConflictError, match=r"shop\.t"):
        lake.sql(UPSERTING.format("shop.t WHERE id > 2"), spark)
    table.set_properties({"frazil.on-conflict": "abort"})
    landing(monkeypatch, lambda: table.delete("id = 3"))
    with pytest.raises(frazil.ConflictError, match=r"shop\.t"):
        lake.sql(UPSERTING.format("shop.changes"), spark)
    assert content(table) == expected({3: None, 30: 30, 31: 31})
    nothing_is_left(table)
