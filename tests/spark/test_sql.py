"""lake.sql() and lake.attach() on Spark."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.sql.queries import prepared
from frazil.sql.session import Context

Run = Callable[[str], Any]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql.md"
_FENCE = re.compile(r"^```python no-run\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def shop(lake: frazil.Lake) -> frazil.Lake:
    events = lake.create_table("shop.events", "id bigint, name string, n int, ts timestamp", partition_by=["day(ts)"])
    for day in (1, 2, 3):
        moment = dt.datetime(2026, 11, day, 12, tzinfo=dt.UTC)
        events.append([{"id": day, "name": f"n{day}", "n": 10 * day, "ts": moment}])
    lake.create_table("shop.names", "id bigint, label string").append(
        [{"id": 1, "label": "one"}, {"id": 2, "label": "it's"}]
    )
    return lake


@pytest.fixture
def run(shop: frazil.Lake, spark: Any) -> Run:
    return lambda text: shop.sql(text, spark)


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(each) for each in frame.collect()), key=repr)


def table_rows(lake: frazil.Lake, name: str, *columns: str) -> list[tuple[Any, ...]]:
    found = lake.table(name).scan(columns=list(columns) or None).to_arrow().to_pylist()
    return sorted((tuple(each.values()) for each in found), key=repr)


# Queries


def test_p41_a_query_as_of_a_time_reads_the_whole_lake_as_it_was(shop: frazil.Lake, spark: Any) -> None:
    then = shop.history(limit=1)[0].committed_at
    while dt.datetime.now(dt.UTC) - then < dt.timedelta(milliseconds=2):
        pass
    with shop.transaction() as tx:
        tx.table("shop.events").delete("id = 2")
        tx.table("shop.names").append([{"id": 3, "label": "three"}])
    shop.rename_table("shop.names", "shop.labels")
    text = "SELECT e.id, l.label FROM shop.events e JOIN shop.{} l ON e.id = l.id"
    assert rows(shop.sql(text.format("names"), spark, as_of=then)) == [(1, "one"), (2, "it's")]
    assert rows(shop.sql(text.format("labels"), spark)) == [(1, "one"), (3, "three")]
    with pytest.raises(frazil.NoSuchTable):
        shop.sql(text.format("labels"), spark, as_of=then)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT id, n FROM shop.events WHERE id > 1", [(2, 20), (3, 30)]),
        ("SELECT e.id FROM shop.events AS e WHERE e.name = 'n2'", [(2,)]),
        ("SELECT shop.events.id FROM shop.events WHERE shop.events.id = 3", [(3,)]),
        ("SELECT events.id FROM `shop`.`events` WHERE events.id = 3", [(3,)]),
        ("SELECT e.id, l.label FROM shop.events e JOIN shop.names l ON e.id = l.id", [(1, "one"), (2, "it's")]),
        ("SELECT e.id, l.label FROM shop.events e LEFT JOIN shop.names l USING (id) WHERE l.id IS NULL", [(3, None)]),
        ("SELECT label FROM shop.names WHERE label = 'it\\'s'", [("it's",)]),
        ("SELECT count(*) FROM shop.events WHERE id IN (SELECT id FROM shop.names)", [(2,)]),
        ("WITH events AS (SELECT id FROM shop.names) SELECT id FROM events", [(1,), (2,)]),
        ("SELECT id FROM shop.events UNION ALL SELECT id FROM shop.names ORDER BY 1", [(1,), (1,), (2,), (2,), (3,)]),
        ("SELECT x.id FROM (SELECT id FROM shop.events WHERE n >= 20) x", [(2,), (3,)]),
        ("SELECT a.id FROM shop.events a, shop.events b WHERE a.id = b.id - 1 AND b.n = 30", [(2,)]),
        ("SELECT '{x}' || id FROM shop.events WHERE id = 1 -- a {comment}", [("{x}1",)]),
        ("SELECT max(id) FROM shop.events GROUP BY ALL HAVING max(n) > 5;", [(3,)]),
        ("FROM shop.events SELECT id WHERE n = 10", [(1,)]),
        ("SELECT id FROM shop.events |> WHERE id > 2", [(3,)]),
        ("VALUES (1, 2)", [(1, 2)]),
    ],
)
def test_a_query_gives_the_rows_that_sql_says(run: Run, text: str, wanted: list[tuple[Any, ...]]) -> None:
    assert rows(run(text)) == wanted


def test_doubled_quotes_mean_what_spark_says_and_pruning_loses_no_row(shop: frazil.Lake, spark: Any) -> None:
    """To Spark 4.0 they are two texts side by side, to later ones a quote."""
    for at, label in enumerate(("its", "it's")):
        shop.table("shop.names").append([{"id": at, "label": label}])
    shop.table("shop.names").delete("id = 2")
    meant = spark.sql("SELECT 'it''s'").collect()[0][0]
    assert rows(shop.sql("SELECT label FROM shop.names WHERE label = 'it''s'", spark)) == [(meant,)]


def test_names_with_dots_and_views_of_the_session(shop: frazil.Lake, spark: Any) -> None:
    shop.create_table(("shop", "a.b"), "id bigint").append([{"id": 7}])
    spark.createDataFrame([(7, "seven")], "id bigint, word string").createOrReplaceTempView("words")
    text = "SELECT `a.b`.id, word FROM shop.`a.b` JOIN words ON words.id = `a.b`.id"
    assert rows(shop.sql(text, spark)) == [(7, "seven")]


def test_a_query_leaves_no_view_behind(shop: frazil.Lake, spark: Any) -> None:
    before = {each.name for each in spark.catalog.listTables()}
    frame = shop.sql("SELECT * FROM shop.events", spark)
    assert {each.name for each in spark.catalog.listTables()} == before
    assert frame.count() == 3


def test_all_tables_of_a_query_are_of_one_instant(
    shop: frazil.Lake, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit between the looks at the two tables is seen in neither."""
    from frazil.transaction import LakeSnapshot, TransactionTable

    plain = LakeSnapshot.table

    def then_somebody_commits(self: LakeSnapshot, name: Any) -> TransactionTable:
        found = plain(self, name)
        shop.table("shop.names").append([{"id": 99, "label": "late"}])
        shop.table("shop.events").append([{"id": 99}])
        return found

    monkeypatch.setattr(LakeSnapshot, "table", then_somebody_commits)
    frame = shop.sql("SELECT id FROM shop.events UNION ALL SELECT id FROM shop.names", spark)
    assert rows(frame) == [(1,), (1,), (2,), (2,), (3,)]
    monkeypatch.undo()
    assert shop.sql("SELECT id FROM shop.events WHERE id = 99", spark).count() > 0


def test_a_query_can_travel_in_time(shop: frazil.Lake, run: Run) -> None:
    events = shop.table("shop.events")
    first, second, _ = events.history()
    events.create_tag("two", second.snapshot_id)
    moment = second.committed_at.isoformat()
    seconds = int(dt.datetime.now(dt.UTC).timestamp()) + 60
    assert rows(run(f"SELECT id FROM shop.events VERSION AS OF {first.snapshot_id}")) == [(1,)]
    assert rows(run("SELECT e.id FROM shop.events VERSION AS OF 'two' AS e WHERE e.id > 1")) == [(2,)]
    assert rows(run(f"SELECT id FROM shop.events FOR SYSTEM_VERSION AS OF '{first.snapshot_id}'")) == [(1,)]
    assert rows(run(f"SELECT id FROM shop.events TIMESTAMP AS OF '{moment}'")) == [(1,), (2,)]
    assert rows(run(f"SELECT id FROM shop.events FOR TIMESTAMP AS OF {seconds}")) == [(1,), (2,), (3,)]
    joined = "SELECT a.id FROM shop.events a LEFT ANTI JOIN shop.events VERSION AS OF 'two' b ON a.id = b.id"
    assert rows(run(joined)) == [(3,)]


def test_time_travel_that_means_nothing_is_refused(run: Run) -> None:
    with pytest.raises(frazil.InvalidInput, match="names no time zone"):
        run("SELECT * FROM shop.events TIMESTAMP AS OF '2026-11-01 00:00:00'")
    with pytest.raises(frazil.InvalidInput, match="no branch or tag 'nope'"):
        run("SELECT * FROM shop.events VERSION AS OF 'nope'")
    with pytest.raises(frazil.Unsupported, match="not a constant"):
        run("SELECT * FROM shop.events TIMESTAMP AS OF current_timestamp()")
    with pytest.raises(frazil.InvalidInput, match="does not follow a table of the lake"):
        run("SELECT * FROM x VERSION AS OF 1")


# Pruning


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("SELECT * FROM shop.events WHERE id = 2", [1]),
        ("SELECT * FROM shop.events e WHERE e.id >= 2 AND length(name) > 0 AND rand() < 2", [2]),
        ("SELECT * FROM shop.events e JOIN shop.names l ON e.id = l.id AND e.id = 1 WHERE l.label = 'one'", [1, 1]),
        ("SELECT * FROM shop.names l LEFT JOIN shop.events e ON e.id = l.id WHERE e.id = 1", [1, 3]),
        ("SELECT * FROM shop.events e LEFT JOIN shop.names l ON e.id = 1", [3, 1]),
        ("SELECT * FROM shop.events e LEFT JOIN shop.names l ON e.id = l.id WHERE e.id = 1", [1, 1]),
        ("SELECT * FROM shop.names l RIGHT JOIN shop.events e ON e.id = l.id WHERE e.id = 1 AND l.id = 7", [1, 1]),
        ("SELECT * FROM shop.names l FULL JOIN shop.events e ON e.id = l.id WHERE e.id = 1", [1, 3]),
        ("SELECT * FROM shop.events e LEFT SEMI JOIN shop.names l ON e.id = l.id AND e.id = 1 AND l.id = 9", [1, 0]),
        ("SELECT * FROM shop.events e LEFT ANTI JOIN shop.names l ON e.id = l.id AND e.id = 1", [3, 1]),
        ("SELECT * FROM shop.events TABLESAMPLE (50 PERCENT) e WHERE e.id = 1", [3]),
        ("SELECT * FROM shop.events WHERE id = 1 OR n = 30", [2]),
        ('SELECT * FROM shop.events WHERE name = "n1"', [3]),
        ("SELECT * FROM shop.events WHERE id = '1'", [3]),
        ("SELECT * FROM shop.events a WHERE a.id = 1 UNION ALL SELECT * FROM shop.events b WHERE b.id = 2", [1, 1]),
        ("SELECT * FROM shop.names l WHERE EXISTS (SELECT 1 FROM shop.events WHERE n = 10 AND label = 'x')", [1, 1]),
        ("WITH c AS (SELECT * FROM shop.events WHERE id = 3) SELECT * FROM c WHERE n = 30", [1]),
        ("SELECT * FROM shop.events LATERAL VIEW explode(array(1)) x AS id2 WHERE events.id = 2", [1]),
    ],
)
def test_conditions_prune_files_where_rows_that_fail_them_cannot_matter(
    shop: frazil.Lake, spark: Any, text: str, files: list[int]
) -> None:
    context = Context(shop, spark)
    found = prepared(context, text, context.snapshot(spark), spark)
    assert sorted(len(scan.files()) for scan in found.scans.values()) == sorted(files)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Kiritimati"])
@pytest.mark.parametrize(
    "condition",
    [
        "ts >= '2026-11-02'",
        "ts < '2026-11-02 12:00:00'",
        "ts = '2026-11-02 07:00:00'",
        "ts > DATE '2026-11-02'",
        "ts BETWEEN TIMESTAMP '2026-11-01 20:00:00' AND '2026-11-02 22:00:00'",
        "ts = '2026-11-02 12:00:00Z'",
        "NOT ts < '2026-11-02 12:00:00'",
    ],
)
def test_moments_mean_what_the_session_says_and_pruning_loses_no_row(
    shop: frazil.Lake, spark: Any, zone: str, condition: str
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        wanted = rows(shop.table("shop.events").scan().to_spark(spark).where(condition).select("id"))
        assert rows(shop.sql(f"SELECT id FROM shop.events WHERE {condition}", spark)) == wanted
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_days_prune_by_partition_in_every_zone(shop: frazil.Lake, spark: Any) -> None:
    context = Context(shop, spark)
    found = prepared(
        context, "SELECT * FROM shop.events WHERE ts < '2026-11-01 20:00:00'", context.snapshot(spark), spark
    )
    assert len(found.scans["t0"].files()) == 2


# INSERT


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("INSERT INTO shop.names SELECT id, name FROM shop.events WHERE id = 3", [(3, "n3")]),
        ("INSERT INTO shop.names (label, id) SELECT name, id + 5 FROM shop.events e WHERE e.id = 3", [(8, "n3")]),
        ("INSERT INTO TABLE shop.names (label) SELECT 'x'", [(None, "x")]),
        ("INSERT INTO shop.names BY NAME SELECT 'x' AS label, 5 AS id", [(5, "x")]),
        ("INSERT INTO shop.names SELECT count(*), NULL FROM shop.events", [(3, None)]),
        ("INSERT INTO shop.names SELECT CAST(5 AS decimal(10,2)), 'd'", [(5, "d")]),
        ("INSERT INTO shop.names SELECT * FROM VALUES (8, 'v'), (9, 'w')", [(8, "v"), (9, "w")]),
        ("WITH x AS (SELECT 4 AS a) INSERT INTO shop.names SELECT a, 'with' FROM x", [(4, "with")]),
        ("INSERT INTO shop.names (WITH x AS (SELECT 4 AS a) SELECT a, 'in' FROM x)", [(4, "in")]),
    ],
)
def test_insert_of_a_query(shop: frazil.Lake, run: Run, text: str, wanted: list[tuple[Any, ...]]) -> None:
    done = run(text)
    assert done.rows_inserted == len(wanted)
    assert done.engine == "spark"
    assert table_rows(shop, "shop.names") == sorted([(1, "one"), (2, "it's"), *wanted], key=repr)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("INSERT INTO shop.names SELECT 1", "The query has 1 columns, but 2 are expected"),
        ("INSERT INTO shop.names (id, nope) SELECT 1, 2", "names the unknown column 'nope'"),
        ("INSERT INTO shop.names SELECT 1.5, 'x'", "does not fit"),
        ("INSERT INTO shop.names SELECT 'x', 'x'", "id"),
        ("INSERT INTO shop.names FROM shop.nothing SELECT 1, 2", "Neither the lake nor the Spark session"),
    ],
)
def test_rows_that_do_not_fit_are_refused(shop: frazil.Lake, run: Run, text: str, sentence: str) -> None:
    with pytest.raises(frazil.FrazilError, match=re.escape(sentence)):
        run(text)
    assert len(table_rows(shop, "shop.names")) == 2


def test_insert_overwrite_replaces_the_partitions_of_its_rows(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.sales", "country string, n int", partition_by=["country"])
    table.append([{"country": "de", "n": 1}, {"country": "fr", "n": 2}])
    lake.sql("INSERT OVERWRITE shop.sales SELECT 'de', 10", spark)
    assert table_rows(lake, "shop.sales") == [("de", 10), ("fr", 2)]
    lake.sql("INSERT OVERWRITE shop.sales PARTITION (country = 'fr') SELECT 20", spark)
    assert table_rows(lake, "shop.sales") == [("de", 10), ("fr", 20)]
    lake.sql("INSERT INTO shop.sales REPLACE WHERE n > 15 SELECT country, n + 1 FROM shop.sales WHERE n > 15", spark)
    assert table_rows(lake, "shop.sales") == [("de", 10), ("fr", 21)]
    with pytest.raises(frazil.FrazilError):
        lake.sql("INSERT INTO shop.sales REPLACE WHERE n > 15 SELECT 'it', 1", spark)


def test_insert_overwrite_replaces_a_table_without_partitions(shop: frazil.Lake, run: Run) -> None:
    run("INSERT OVERWRITE shop.names SELECT id, upper(label) FROM shop.names WHERE id = 1")
    assert table_rows(shop, "shop.names") == [(1, "ONE")]


def landing_between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Something is committed when an INSERT has read its rows and has not committed yet."""
    from frazil.transaction import Transaction

    plain = Transaction.commit

    def late(self: Transaction) -> Any:
        monkeypatch.setattr(Transaction, "commit", plain)
        act()
        return plain(self)

    monkeypatch.setattr(Transaction, "commit", late)


def test_p22_a_change_of_the_rows_that_an_insert_read_is_a_conflict(
    shop: frazil.Lake, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing_between(monkeypatch, lambda: shop.table("shop.events").update({"n": "n + 1"}, "id = 3"))
    with pytest.raises(frazil.ConflictError):
        run("INSERT INTO shop.names SELECT id, name FROM shop.events WHERE id = 3")
    assert len(table_rows(shop, "shop.names")) == 2


def test_p22_a_change_of_other_rows_is_none(shop: frazil.Lake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    landing_between(monkeypatch, lambda: shop.table("shop.events").update({"n": "n + 1"}, "id = 1"))
    run("INSERT INTO shop.names SELECT id, name FROM shop.events WHERE id = 3")
    assert len(table_rows(shop, "shop.names")) == 3


# Transactions


def test_a_query_sees_what_its_transaction_has_done(shop: frazil.Lake, spark: Any) -> None:
    before = rows(shop.sql("SELECT id, label FROM shop.names", spark))
    with shop.transaction() as tx:
        tx.sql("INSERT INTO shop.names VALUES (7, 'seven')")
        tx.sql("UPDATE shop.names SET label = 'ONE' WHERE id = 1", spark)
        tx.sql("CREATE TABLE shop.made AS SELECT id, upper(label) AS label FROM shop.names WHERE id > 1", spark)
        tx.sql("INSERT INTO shop.made SELECT id, name FROM shop.events WHERE id = 3", spark)
        found = tx.sql("SELECT n.id, n.label, m.label FROM shop.names n LEFT JOIN shop.made m ON n.id = m.id", spark)
        assert rows(found) == [(1, "ONE", None), (2, "it's", "IT'S"), (7, "seven", "SEVEN")]
        assert rows(tx.sql("SELECT id FROM shop.names WHERE label = 'seven'", spark)) == [(7,)]
        assert rows(shop.sql("SELECT id, label FROM shop.names", spark)) == before
    assert rows(found) == [(1, "ONE", None), (2, "it's", "IT'S"), (7, "seven", "SEVEN")]
    assert table_rows(shop, "shop.made", "id", "label") == [(2, "IT'S"), (3, "n3"), (7, "SEVEN")]


def test_begin_and_commit_around_queries_and_writes(shop: frazil.Lake, run: Run) -> None:
    run("BEGIN")
    run(
        "MERGE INTO shop.names n USING (SELECT id, name FROM shop.events) e ON n.id = e.id WHEN NOT MATCHED THEN "
        "INSERT (id, label) VALUES (e.id, e.name)"
    )
    run("DELETE FROM shop.events WHERE id = 1")
    assert rows(run("SELECT count(*) FROM shop.events JOIN shop.names USING (id)")) == [(2,)]
    assert len(table_rows(shop, "shop.events")) == 3
    with pytest.raises(frazil.NoSuchTable):
        run("SELECT * FROM shop.nothing")
    done = run("COMMIT")
    assert list(done.tables) == ["shop.events", "shop.names"]
    assert rows(run("SELECT count(*) FROM shop.events JOIN shop.names USING (id)")) == [(2,)]


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_p22_what_a_query_read_is_checked_at_the_commit(shop: frazil.Lake, run: Run, isolation: str) -> None:
    """Both verdicts: a change of the rows that were read, and one of other rows."""
    run(f"BEGIN ISOLATION LEVEL {isolation}")
    assert rows(run("SELECT n FROM shop.events WHERE id = 2")) == [(20,)]
    run("INSERT INTO shop.names VALUES (5, 'five')")
    shop.table("shop.events").update({"n": "n + 1"}, "id = 3")
    run("COMMIT")
    run(f"BEGIN ISOLATION LEVEL {isolation}")
    assert rows(run("SELECT n FROM shop.events WHERE id = 2")) == [(20,)]
    run("INSERT INTO shop.names VALUES (6, 'six')")
    shop.table("shop.events").update({"n": "n + 1"}, "id = 2")
    if isolation == "snapshot":
        run("COMMIT")
    else:
        with pytest.raises(frazil.ConflictError):
            run("COMMIT")
    assert ((6, "six") in table_rows(shop, "shop.names")) == (isolation == "snapshot")


# UPDATE, DELETE and MERGE


def test_update_and_delete_run_on_the_session_that_is_given(shop: frazil.Lake, run: Run) -> None:
    done = run(
        "UPDATE shop.events e SET e.name = upper(e.name), n = CASE WHEN e.id = 1 THEN 0 ELSE n END WHERE e.id < 3"
    )
    assert (done.engine, done.rows_updated) == ("spark", 2)
    assert run("DELETE FROM shop.events WHERE events.id = 2").rows_deleted == 1
    assert table_rows(shop, "shop.events", "id", "name", "n") == [(1, "N1", 0), (3, "n3", 30)]
    assert run("DELETE FROM shop.names").rows_deleted == 2


def test_merge_with_every_clause(shop: frazil.Lake, run: Run) -> None:
    done = run(
        """
        MERGE INTO shop.names AS t
        USING (
            SELECT id, name, n FROM shop.events WHERE id <> 1 UNION ALL SELECT 5, 'five', CASE WHEN true THEN 1 END
        ) s
        ON t.id = s.id
        WHEN MATCHED AND s.n > 100 THEN DELETE
        WHEN MATCHED THEN UPDATE SET t.label = CASE WHEN s.n > 15 THEN s.name ELSE 'less' END
        WHEN NOT MATCHED AND s.id = 5 THEN INSERT (id, label) VALUES (s.id, upper(s.name))
        WHEN NOT MATCHED BY TARGET THEN INSERT VALUES (s.id, 'new')
        WHEN NOT MATCHED BY SOURCE AND t.id > 50 THEN DELETE
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET label = concat(label, '?')
        """
    )
    assert (done.rows_inserted, done.rows_updated, done.engine) == (2, 2, "spark")
    assert table_rows(shop, "shop.names") == [(1, "one?"), (2, "n2"), (3, "new"), (5, "FIVE")]


def test_merge_of_a_table_by_its_full_name(shop: frazil.Lake, run: Run) -> None:
    shop.create_table("shop.more", "id bigint, label string").append(
        [{"id": 2, "label": "TWO"}, {"id": 3, "label": "3"}]
    )
    text = """MERGE INTO shop.names USING shop.more ON shop.names.id = shop.more.id
        WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
    run(text)
    assert table_rows(shop, "shop.names") == [(1, "one"), (2, "TWO"), (3, "3")]
    first = shop.table("shop.more").history()[0].snapshot_id
    run("DELETE FROM shop.more")
    run(f"MERGE INTO shop.names n USING shop.more VERSION AS OF {first} AS m ON n.id = m.id WHEN MATCHED THEN DELETE")
    assert table_rows(shop, "shop.names") == [(1, "one")]


def test_p22_a_merge_reads_its_source_as_it_was_when_it_commits(
    shop: frazil.Lake, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "MERGE INTO shop.names n USING shop.events e ON n.id = e.id WHEN MATCHED THEN UPDATE SET label = e.name"
    landing_between(monkeypatch, lambda: shop.table("shop.events").delete("id = 2"))
    with pytest.raises(frazil.ConflictError):
        run(text)
    run("ALTER TABLE shop.names SET TBLPROPERTIES ('write.merge.isolation-level' = 'snapshot')")
    landing_between(monkeypatch, lambda: shop.table("shop.events").delete("id = 1"))
    run(text)
    assert table_rows(shop, "shop.names") == [(1, "n1"), (2, "it's")]


# The rest


def test_create_table_as_select(shop: frazil.Lake, run: Run) -> None:
    run(
        "CREATE TABLE shop.copy USING iceberg PARTITIONED BY (bucket(4, id)) "
        "AS SELECT id, count(*) c, 1 AS one FROM shop.events GROUP BY id"
    )
    assert table_rows(shop, "shop.copy") == [(1, 1, 1), (2, 1, 1), (3, 1, 1)]
    assert [each.required for each in shop.table("shop.copy").schema.fields] == [False, False, False]
    assert run("CREATE TABLE IF NOT EXISTS shop.copy AS SELECT 1") is None
    assert table_rows(shop, "shop.copy", "id") == [(1,), (2,), (3,)]


def test_show_and_describe_are_frames(run: Run) -> None:
    assert rows(run("SHOW TABLES IN shop")) == [("shop", "events", False), ("shop", "names", False)]
    assert [each.col_name for each in run("DESCRIBE shop.names").collect()] == ["id", "label"]
    assert run("SHOW TBLPROPERTIES shop.names").columns == ["key", "value"]


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("SELECT * FROM shop.event", frazil.NoSuchTable, "Did you mean 'shop.events'?"),
        ("SELECT nope FROM shop.events", frazil.InvalidInput, "Spark cannot run the query"),
        ("SELECT * FROM shop.events.snapshots", frazil.Unsupported, "lake.table('shop.events').history()"),
        ("SELECT * FROM shop.events.branch_main", frazil.Unsupported, "shop.events VERSION AS OF 'main'"),
        ("SELECT * FROM shop.events.manifests m", frazil.Unsupported, "load_table('shop.events').inspect"),
        ("SELECT FROM WHERE", frazil.InvalidInput, "not valid SQL"),
        ("SELECT * FROM shop.events TABLESAMPLE (5 ROWS)", frazil.Unsupported, "needs an alias"),
        (
            "MERGE INTO shop.names USING shop.events ON true WHEN MATCHED THEN FLY",
            frazil.InvalidInput,
            "UPDATE or DELETE",
        ),
        ("MERGE INTO shop.names USING shop.events ON true", frazil.InvalidInput, "no clauses"),
        ("CREATE TABLE shop.x (id int) AS SELECT 1", frazil.InvalidInput, "AS SELECT cannot have a list of columns"),
    ],
)
def test_bad_statements_get_a_sentence(run: Run, text: str, error: type[frazil.FrazilError], sentence: str) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        run(text)


def test_statements_are_not_logged(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    run("SELECT * FROM shop.names WHERE label = 'secret-7'")
    run("DELETE FROM shop.names WHERE label = 'secret-7'")
    run("INSERT INTO shop.names SELECT 9, 'secret-7'")
    with pytest.raises(frazil.FrazilError):
        run("ALTER TABLE shop.names FROB 'secret-7'")
    ours = [each.getMessage() for each in caplog.records if each.name.startswith(("frazil", "sqlglot"))]
    assert not [each for each in ours if "secret-7" in each]


def test_attach_makes_pinned_views(shop: frazil.Lake, spark: Any) -> None:
    shop.create_table(("shop", "a.b c"), "id int")
    assert shop.attach(spark) == {
        "shop.`a.b c`": "shop_a_b_c",
        "shop.events": "shop_events",
        "shop.names": "shop_names",
    }
    assert spark.sql("SELECT count(*) FROM shop_events").collect()[0][0] == 3
    shop.table("shop.events").append([{"id": 4}])
    assert spark.sql("SELECT count(*) FROM shop_events").collect()[0][0] == 3
    shop.attach(spark)
    assert spark.sql("SELECT count(*) FROM shop_events").collect()[0][0] == 4
    shop.create_table("shop.a_b_c", "id int")
    with pytest.raises(frazil.InvalidInput, match="would both become the view shop_a_b_c"):
        shop.attach(spark)


def examples() -> Iterator[str]:
    yield from (found["code"] for found in _FENCE.finditer(PAGE.read_text()))


def test_the_examples_of_the_page_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(examples())
    assert code
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__example__", "spark": spark})
