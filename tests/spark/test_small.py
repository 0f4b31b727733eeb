"""Small frames are written by this process: the same rows, files and refusals as by Spark's own writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.on_spark import write_builder
from spark.test_stage import AS_SQL, HOSTILE, PLAIN, ROW, assert_same, settled

FLAT = PLAIN.partition(", st struct")[0]
ROWS = f"SELECT {AS_SQL.partition(', named_struct')[0]} UNION ALL SELECT {', '.join(['NULL'] * (len(ROW) - 1))}"


@pytest.fixture(autouse=True)
def written_by_this_process(written_by_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_builder, "MOST_BYTES", 1 << 20)


def is_sparks(file: Any) -> bool:
    return Path(file.path).name.startswith("part-")


def live_file(table: frazil.Table) -> Any:
    # A file comes with the statistics that a filter asks for.
    every = " and ".join(f"({each.name} is null or {each.name} is not null)" for each in table.schema.fields)
    (task,) = table.scan(every).tasks()
    return task.file


@pytest.mark.parametrize("settings", [{}, HOSTILE], ids=["plain", "hostile"])
def test_both_ways_write_the_same(
    spark: Any, lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    here, there = (lake.create_table(f"shop.{name}", FLAT) for name in ("here", "there"))
    with settled(spark, settings):
        frame = spark.sql(ROWS)
        here.append(frame)
        monkeypatch.setattr(write_builder, "MOST_BYTES", -1)
        there.append(frame.coalesce(1))
    assert [is_sparks(file) for table in (here, there) for file in table.files()] == [False, True]
    assert here.scan().to_arrow().to_pylist() == there.scan().to_arrow().to_pylist()
    mine, theirs = live_file(here), live_file(there)
    assert len(mine.lower_bounds) == 13
    assert_same(mine, theirs)


def test_more_rows_than_spark_expected_are_written_by_spark(
    spark: Any, lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_builder, "MOST_ROWS", 1_000)
    table = lake.create_table("shop.t", "id int")
    # One row to the optimizer.
    table.append(spark.sql("select explode(sequence(1, 1001)) id"))
    assert all(is_sparks(file) for file in table.files())
    assert sorted(row["id"] for row in table.scan().to_arrow().to_pylist()) == list(range(1, 1002))
    table.overwrite(spark.sql("select explode(sequence(1, 1000)) id"), where="true")
    table.append(spark.sql("select explode(sequence(1, 1000)) id"))
    assert any(not is_sparks(file) for file in table.files())
    assert table.scan().count() == 2000


def test_rows_longer_than_spark_expected_are_written_by_spark(spark: Any, lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", "id int, s string")
    table.append(spark.sql("select explode(sequence(1, 30)) id, repeat(uuid(), 1000) s"))
    assert all(is_sparks(file) for file in table.files())
    assert table.scan().count() == 30


def test_rows_with_nan_are_written_by_spark(spark: Any, lake: frazil.Lake) -> None:
    """Statistics of its files tell that there is one, and those of Arrow do not."""
    table = lake.create_table("shop.t", "x double")
    table.append(spark.sql("select 1.0d x"))
    assert not any(is_sparks(file) for file in table.files())
    table.append(spark.sql("select double('NaN') x union all select null"))
    assert [is_sparks(file) for file in table.files()].count(True) >= 1
    assert table.scan(where="x > 5").count() == 1
    assert table.scan(where="x > 5").to_spark(spark).count() == 1


def test_a_frame_without_columns_has_rows_all_the_same(spark: Any, lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", "a int, b string")
    table.append(spark.range(3).select())
    assert table.scan().to_arrow().to_pylist() == [{"a": None, "b": None}] * 3


def test_texts_of_a_fixed_length(spark: Any, lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", "s string")
    with settled(spark, {"spark.sql.preserveCharVarcharTypeInfo": "true"}):
        table.append(spark.sql("select cast('ab' as char(5)) s union all select cast('cd' as varchar(5))"))
    assert sorted(row["s"].rstrip() for row in table.scan().to_arrow().to_pylist()) == ["ab", "cd"]


def test_what_the_user_observes_is_observed_once(spark: Any, lake: frazil.Lake) -> None:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    table = lake.create_table("shop.t", "id bigint")
    seen = Observation()
    table.append(spark.range(30).observe(seen, F.count(F.lit(1)).alias("rows")))
    assert seen.get == {"rows": 30}
    assert all(is_sparks(file) for file in table.files())


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("select cast(null as bigint) id, 'a' name", "is required"),
        ("select 1L id, cast(X'ff' as string) name", "UTF-8"),
        ("select 1L id", "name"),
        ("select 'x' id, 'a' name", "id"),
        ("select 1L id, 'a' name, 2 more", "more"),
    ],
    ids=["null", "bytes", "missing", "type", "extra"],
)
def test_rows_that_do_not_fit_are_refused(spark: Any, lake: frazil.Lake, frame: str, says: str) -> None:
    table = lake.create_table("shop.t", "id bigint not null, name string not null")
    with pytest.raises(frazil.SchemaMismatch, match=says):
        table.append(spark.sql(frame))
    assert table.history() == []
    assert table.files() == []


def test_a_job_that_fails_is_a_sentence(spark: Any, lake: frazil.Lake) -> None:
    table = lake.create_table("shop.t", "id bigint")
    with pytest.raises(frazil.SparkFailed, match="nothing was committed"):
        table.append(spark.range(3).selectExpr("if(id < 5, cast(raise_error('broken') as bigint), id) id"))
    assert table.history() == []


def test_pyspark_notes_lines_of_the_user_again_afterwards(spark: Any, lake: frazil.Lake) -> None:
    from pyspark.errors import utils

    table = lake.create_table("shop.t", "id bigint")
    _ = spark.range(1).select("id")
    before = utils.is_debugging_enabled()
    table.append(spark.range(3))
    table.scan().to_spark(spark)
    with pytest.raises(frazil.SchemaMismatch):
        table.append(spark.sql("select 'x' id"))
    assert utils.is_debugging_enabled() == before


def test_a_commit_is_named_after_the_sessions_application(spark: Any, tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "named"), spark=spark) as bound:
        bound.create_namespace("shop")
        table = bound.create_table("shop.t", "id int")
        table.append(spark.sql("select 1 id"))
        assert table.history()[-1].app == spark.conf.get("spark.app.name")
    with frazil.connect(str(tmp_path / "named"), spark=spark, app="chosen") as bound:
        bound.register(spark)
        frame = spark.sql("select 2 id")
        frame.write.format("frazil").mode("append").options(**bound.spark_options()).save("shop.t")
        assert bound.table("shop.t").history()[-1].app == "chosen"
