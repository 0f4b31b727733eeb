"""lake.sql() where no Spark is needed, and how its statements are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import LongType

import frazil
from frazil.sql.tokens import read_statement, renamed, split
from frazil.transaction import Transaction
from surface.matrix import files_of, named_files


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.sql("CREATE NAMESPACE shop")
        lake.sql("CREATE TABLE shop.events (id bigint NOT NULL, name string, n decimal(6,2), ts timestamp)")
        lake.sql("INSERT INTO shop.events VALUES (1, 'it''s', 1.5, '2026-11-01 12:00:00'), (2, 'two', 2, NULL)")
        yield lake


def rows(lake: frazil.Lake, *columns: str) -> list[tuple[Any, ...]]:
    found = lake.table("shop.events").scan(columns=list(columns)).to_arrow().to_pylist()
    return sorted((tuple(each.values()) for each in found), key=repr)


# Writing


def test_values_are_inserted_without_spark(lake: frazil.Lake) -> None:
    assert rows(lake, "id", "name") == [(1, "it's"), (2, "two")]
    done = lake.sql("INSERT INTO shop.events (name, id) VALUES (upper('x'), 1 + 2), (DEFAULT, 4);")
    assert (done.rows_inserted, done.engine) == (2, "arrow")
    assert rows(lake, "id", "name") == [(1, "it's"), (2, "two"), (3, "X"), (4, None)]


def test_moments_without_a_zone_are_utc(lake: frazil.Lake) -> None:
    moment = lake.table("shop.events").scan(where="id = 1").to_arrow()["ts"][0].as_py()
    assert moment.isoformat() == "2026-11-01T12:00:00+00:00"


def test_values_of_nested_columns_may_be_null(lake: frazil.Lake) -> None:
    lake.sql("CREATE TABLE shop.deep (id int, a struct<x:int>, b array<int>, c map<string,int>)")
    lake.sql("INSERT INTO shop.deep VALUES (1, NULL, NULL, NULL)")
    assert lake.table("shop.deep").scan().to_arrow().to_pylist() == [{"id": 1, "a": None, "b": None, "c": None}]


def test_insert_overwrite_and_replace_where(lake: frazil.Lake) -> None:
    lake.sql("INSERT INTO shop.events (id, name) REPLACE WHERE id = 2 VALUES (2, 'zwei')")
    assert rows(lake, "id", "name") == [(1, "it's"), (2, "zwei")]
    lake.sql("INSERT OVERWRITE TABLE shop.events (id) VALUES 7")
    assert rows(lake, "id") == [(7,)]
    lake.sql("CREATE TABLE shop.sales (country string, n int) PARTITIONED BY (country)")
    lake.sql("INSERT INTO shop.sales VALUES ('de', 1), ('fr', 2)")
    lake.sql("INSERT OVERWRITE shop.sales PARTITION (country = 'fr') VALUES (20)")
    found = lake.table("shop.sales").scan().to_arrow().to_pylist()
    assert sorted(found, key=repr) == [{"country": "de", "n": 1}, {"country": "fr", "n": 20}]


def test_update_and_delete(lake: frazil.Lake) -> None:
    done = lake.sql("UPDATE shop.events AS e SET e.name = concat(e.name, '!'), n = n * 2 WHERE e.id = 2 /* two */")
    assert done.rows_updated == 1
    lake.sql("UPDATE shop.events SET name = CASE WHEN shop.events.id = 1 THEN 'one' ELSE events.name END")
    assert rows(lake, "id", "name") == [(1, "one"), (2, "two!")]
    assert lake.sql("DELETE FROM shop.events e WHERE e.id = 1").rows_deleted == 1
    assert lake.sql("DELETE FROM shop.events").rows_deleted == 1


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM shop.events WHERE id IN (SELECT 1)",
        "UPDATE shop.events SET n = (SELECT 1)",
        "UPDATE shop.events SET n = 1 WHERE EXISTS (SELECT 1)",
        "INSERT INTO shop.events (id) VALUES ((SELECT 1))",
    ],
)
def test_queries_inside_conditions_and_values_are_refused(lake: frazil.Lake, text: str) -> None:
    with pytest.raises(frazil.Unsupported, match="Use MERGE"):
        lake.sql(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM shop.events",
        "INSERT INTO shop.events SELECT * FROM shop.events",
        "MERGE INTO shop.events t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "MERGE INTO shop.events t USING shop.events VERSION AS OF 1 s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "CREATE TABLE shop.x AS SELECT 1",
    ],
)
def test_what_needs_spark_says_so(lake: frazil.Lake, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.sql.session.active", lambda: None)
    with pytest.raises(frazil.Unsupported, match="needs a Spark session"):
        lake.sql(text)


# MERGE


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.sql.session.active", lambda: None)


@pytest.mark.usefixtures("without_spark")
def test_a_table_is_merged_without_spark(lake: frazil.Lake) -> None:
    lake.sql("CREATE TABLE shop.changes (id bigint, name string, gone boolean)")
    lake.sql("INSERT INTO shop.changes VALUES (1, 'ONE', false), (2, NULL, true), (3, 'three', false)")
    done = lake.sql(
        """
        MERGE INTO shop.events USING shop.changes ON events.id = changes.id
        WHEN MATCHED AND shop.changes.gone THEN DELETE
        WHEN MATCHED THEN UPDATE SET name = changes.name, n = events.n + 1
        WHEN NOT MATCHED THEN INSERT (id, name) VALUES (changes.id, changes.name)
        """
    )
    assert (done.rows_updated, done.rows_inserted, done.rows_deleted, done.engine) == (1, 1, 1, "arrow")
    assert [(each[0], each[1]) for each in rows(lake, "id", "name", "n")] == [(1, "ONE"), (3, "three")]


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(
    "source",
    [
        "(VALUES (1, 'a', 2.5), (7, 'b', NULL)) AS s (id, name, n)",
        "(VALUES (1, 'a', 2.50), (3 + 4, lower('B'), NULL) AS v(id, name, n)) s",
    ],
)
def test_values_are_merged_without_spark(lake: frazil.Lake, source: str) -> None:
    text = f"MERGE INTO shop.events e USING {source} ON e.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name, n = s.n"
    done = lake.sql(f"{text} WHEN NOT MATCHED THEN INSERT (id, name, n) VALUES (s.id, s.name, s.n)")
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
    assert [each[:2] for each in rows(lake, "id", "name", "n")] == [(1, "a"), (2, "two"), (7, "b")]


@pytest.mark.usefixtures("without_spark")
def test_a_merge_reads_its_source_as_it_was_when_it_commits(lake: frazil.Lake) -> None:
    """The source is in the read set: a change of it while the merge runs is a conflict."""
    lake.sql("CREATE TABLE shop.changes (id bigint, name string)")
    lake.sql("INSERT INTO shop.changes VALUES (1, 'new')")
    text = "MERGE INTO shop.events e USING shop.changes c ON e.id = c.id WHEN MATCHED THEN UPDATE SET name = c.name"
    original = Transaction.commit

    def late(self: Transaction) -> Any:
        lake.table("shop.changes").append([{"id": 2, "name": "late"}])
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "commit", late)
        with pytest.raises(frazil.ConflictError):
            lake.sql(text)
    assert rows(lake, "id", "name") == [(1, "it's"), (2, "two")]


def landing(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """When the statement is evaluated, and has not made its first attempt."""
    plain, left = Transaction._units, [act]

    def late(self: Transaction) -> Any:
        found = plain(self)
        if left:
            left.pop()()
        return found

    patch.setattr(Transaction, "_units", late)


UPSERTING = (
    "MERGE INTO shop.events e USING {} c ON e.id = c.id WHEN MATCHED THEN UPDATE SET name = c.name "
    "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (c.id, c.name)"
)


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("source", ["shop.changes", "(VALUES (2, 'new'), (9, 'new') AS v (id, name))"])
def test_p39_a_merge_in_sql_is_redone(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    lake.sql("CREATE TABLE shop.changes (id bigint, name string)")
    lake.sql("INSERT INTO shop.changes VALUES (2, 'new'), (9, 'new')")
    text = UPSERTING.format(source)
    events = lake.table("shop.events")
    landing(monkeypatch, lambda: (events.append([{"id": 9, "name": "nine"}]), events.delete("id = 2")))
    done = lake.sql(text)
    assert (done.redone, done.rows_updated, done.rows_inserted) == (1, 1, 1)
    assert rows(lake, "id", "name") == [(1, "it's"), (2, "new"), (9, "new")]
    assert files_of(events) == named_files(events)
    events.set_properties({"frazil.on-conflict": "abort"})
    landing(monkeypatch, lambda: events.delete("id = 2"))
    with pytest.raises(frazil.ConflictError):
        lake.sql(text)
    assert files_of(events) == named_files(events)


@pytest.mark.usefixtures("without_spark")
def test_p39_a_merge_in_sql_whose_source_changed_is_refused(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the change came after the source was checked, and the merge is redone."""
    lake.sql("CREATE TABLE shop.changes (id bigint, name string)")
    lake.sql("INSERT INTO shop.changes VALUES (2, 'new'), (9, 'new')")
    events, changes = lake.table("shop.events"), lake.table("shop.changes")
    landing(monkeypatch, lambda: (changes.append([{"id": 3, "name": "late"}]), events.delete("id = 2")))
    with pytest.raises(frazil.ConflictError, match=r"shop\.changes"):
        lake.sql(UPSERTING.format("shop.changes"))
    landing(monkeypatch, lambda: events.append([{"id": 2, "name": "again"}]))
    with pytest.raises(frazil.ConflictError, match=r"shop\.events"):
        lake.sql(UPSERTING.format("shop.events"))
    assert rows(lake, "id", "name") == [(1, "it's"), (2, "again")]
    assert files_of(events) == named_files(events)


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("(VALUES (1, 'a'), (2)) AS s (id, name)", "Row 2 has 1 value for 2 columns"),
        ("(VALUES (1), ('a')) AS s (id)", "Cannot compare or combine integer and text"),
        ("(VALUES 1, 2) AS s (id)", "a row of values in parentheses"),
    ],
)
def test_bad_values_are_refused(lake: frazil.Lake, source: str, words: str) -> None:
    with pytest.raises(frazil.InvalidInput, match=words):
        lake.sql(f"MERGE INTO shop.events e USING {source} ON e.id = s.id WHEN MATCHED THEN DELETE")


# Tables and namespaces


def test_a_table_is_created_with_all_it_may_have(lake: frazil.Lake, tmp_path: Path) -> None:
    lake.sql(
        f"""
        CREATE TABLE IF NOT EXISTS shop.full (
            id bigint NOT NULL COMMENT 'the key', -- a comment
            ts timestamp_ntz,
            s string,
            deep struct<a: int, b: map<string, decimal(10, 2)>>
        )
        USING iceberg
        PARTITIONED BY (days(ts), bucket(16, id), truncate(4, s))
        TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', frazil.upsert.mode = 'position')
        COMMENT 'everything'
        LOCATION '{tmp_path}/there'
        """
    )
    table = lake.table("shop.full")
    assert [each.name for each in table.schema.fields] == ["id", "ts", "s", "deep"]
    assert (table.schema.find_field("id").required, table.schema.find_field("id").doc) == (True, "the key")
    assert [str(each.transform) for each in table.spec.fields] == ["day", "bucket[16]", "truncate[4]"]
    assert table.properties["frazil.upsert.mode"] == "position"
    assert table.properties["comment"] == "everything"
    assert table.location.endswith(f"{tmp_path}/there")
    assert lake.sql("CREATE TABLE IF NOT EXISTS shop.full (id int)") is None
    with pytest.raises(frazil.TableExists):
        lake.sql("CREATE TABLE shop.full (id int)")


def test_names_are_bound_with_their_quotes(lake: frazil.Lake) -> None:
    lake.sql("CREATE TABLE shop.`a.b` (`x y` int, `d.t` int)")
    assert lake.exists(("shop", "a.b"))
    lake.sql("ALTER TABLE shop.`a.b` RENAME COLUMN `d.t` TO `new.name`")
    lake.sql("ALTER TABLE shop.`a.b` ADD COLUMN `add` int AFTER `x y`")
    lake.sql("INSERT INTO shop.`a.b` (`x y`, `new.name`) VALUES (1, 2)")
    lake.sql("UPDATE shop.`a.b` SET `new.name` = `x y` + 5 WHERE `a.b`.`x y` = 1")
    assert lake.table(("shop", "a.b")).scan().to_arrow().to_pylist() == [{"x y": 1, "add": None, "new.name": 6}]


def test_namespaces_and_dropping(lake: frazil.Lake) -> None:
    lake.sql("CREATE SCHEMA IF NOT EXISTS shop")
    lake.sql("CREATE DATABASE shop.eu COMMENT 'x'")
    assert lake.sql("SHOW NAMESPACES") == [{"namespace": "shop"}, {"namespace": "shop.eu"}]
    lake.sql("DROP NAMESPACE shop.eu")
    lake.sql("DROP NAMESPACE IF EXISTS nothing")
    lake.sql("DROP TABLE shop.events PURGE")
    lake.sql("DROP TABLE IF EXISTS shop.events")
    with pytest.raises(frazil.NoSuchTable):
        lake.sql("DROP TABLE shop.events")


def test_show_and_describe(lake: frazil.Lake) -> None:
    lake.sql("ALTER TABLE shop.events ADD PARTITION FIELD bucket(8, id)")
    lake.sql("ALTER TABLE shop.events SET TBLPROPERTIES ('a' = '1')")
    assert lake.sql("SHOW TABLES") == [{"namespace": "shop", "tableName": "events", "isTemporary": False}]
    assert lake.sql("SHOW TBLPROPERTIES shop.events ('a')") == [{"key": "a", "value": "1"}]
    assert [(each["col_name"], each["data_type"]) for each in lake.sql("DESCRIBE TABLE shop.events")] == [
        ("id", "bigint"),
        ("name", "string"),
        ("n", "decimal(6,2)"),
        ("ts", "timestamp"),
        ("# Partitioning", "bucket(8, `id`)"),
    ]
    plain = lake.sql("DESCRIBE shop.events")
    for text in ("DESCRIBE EXTENDED shop.events", "DESC TABLE FORMATTED shop.events"):
        extended = lake.sql(text)
        assert extended[: len(plain)] == plain
        facts = {each["col_name"]: each["data_type"] for each in extended[len(plain) :]}
        assert facts["Name"] == "shop.events"
        assert facts["Location"] == lake.table("shop.events").location
        assert "a=1" in facts["Table Properties"]


# ALTER TABLE


def columns(lake: frazil.Lake) -> list[str]:
    return [each.name for each in lake.table("shop.events").schema.fields]


def test_columns_change(lake: frazil.Lake) -> None:
    def alter(text: str) -> Any:
        return lake.sql(f"ALTER TABLE shop.events {text}")

    alter("ADD COLUMN x int COMMENT 'an x' AFTER id")
    before = len(lake.table("shop.events").pyiceberg().metadata.metadata_log)
    alter("ADD COLUMNS (y string FIRST, deep struct<a:int,b:map<string,int>>, deep.c array<int>)")
    assert len(lake.table("shop.events").pyiceberg().metadata.metadata_log) == before + 1, "one commit"
    assert columns(lake) == ["y", "id", "x", "name", "n", "ts", "deep"]
    alter("ALTER COLUMN x TYPE bigint")
    alter("ALTER COLUMN id DROP NOT NULL")
    alter("ALTER COLUMN name COMMENT 'who'")
    alter("ALTER COLUMN y AFTER ts")
    alter("ALTER COLUMN x FIRST")
    alter("DROP COLUMNS (n, deep.c)")
    alter("RENAME COLUMN deep.a TO z")
    schema = lake.table("shop.events").schema
    assert columns(lake) == ["x", "id", "name", "ts", "y", "deep"]
    assert schema.find_type("x") == LongType()
    assert not schema.find_field("id").required
    assert schema.find_field("name").doc == "who"
    assert "deep.z" in schema.column_names
    assert "deep.c" not in schema.column_names


def test_layout_keys_and_properties_change(lake: frazil.Lake) -> None:
    def alter(text: str) -> Any:
        return lake.sql(f"ALTER TABLE shop.events {text}")

    def spec() -> list[str]:
        return [str(each.transform) for each in table.spec.fields if str(each.transform) != "void"]

    table = lake.table("shop.events")
    alter("ADD PARTITION FIELD days(ts)")
    alter("ADD PARTITION FIELD bucket(16, id)")
    assert spec() == ["day", "bucket[16]"]
    alter("REPLACE PARTITION FIELD ts_day WITH hours(ts)")
    alter("DROP PARTITION FIELD bucket(16, id)")
    assert spec() == ["hour"]
    alter("WRITE ORDERED BY ts DESC NULLS FIRST, bucket(4, id)")
    assert [str(each.direction) for each in table.sort_order.fields] == ["DESC", "ASC"]
    alter("WRITE UNORDERED")
    assert not table.sort_order.fields
    alter("SET IDENTIFIER FIELDS id")
    assert list(table.keys) == ["id"]
    alter("DROP IDENTIFIER FIELDS id")
    assert not list(table.keys)
    alter("SET TBLPROPERTIES ('a' = 'b', 'c' = 'd')")
    alter("UNSET TBLPROPERTIES IF EXISTS ('a', 'x')")
    assert {"a", "c"} & table.properties.keys() == {"c"}
    assert alter("RENAME TO shop.other") is None
    assert lake.exists("shop.other")


def test_branches_tags_and_procedures(lake: frazil.Lake) -> None:
    table = lake.table("shop.events")
    first = table.history()[0].snapshot_id
    lake.sql("INSERT INTO shop.events (id) VALUES (3)")
    second = table.history()[1].snapshot_id
    lake.sql(f"ALTER TABLE shop.events CREATE TAG `v 1` AS OF VERSION {first} RETAIN 3 DAYS")
    lake.sql("ALTER TABLE shop.events CREATE BRANCH audit")
    assert not lake.sql("ALTER TABLE shop.events CREATE BRANCH IF NOT EXISTS audit").changed
    assert table.refs["v 1"]["max-ref-age-ms"] == 3 * 86_400_000
    lake.sql(f"CALL frazil.system.rollback_to_snapshot('shop.events', {first})")
    assert table.snapshot().snapshot_id == first  # type: ignore[union-attr]
    lake.sql("CALL system.fast_forward(table => 'shop.events', branch => 'main', to => 'audit')")
    assert table.snapshot().snapshot_id == second  # type: ignore[union-attr]
    moment = table.history()[0].committed_at.isoformat()
    lake.sql(f"CALL system.rollback_to_timestamp('shop.events', TIMESTAMP '{moment}')")
    assert table.snapshot().snapshot_id == first  # type: ignore[union-attr]
    lake.sql(f"CALL system.cherrypick_snapshot('shop.events', {second})")
    assert table.scan().count() == 3
    lake.sql("CALL system.set_current_snapshot(table => 'shop.events', ref => 'v 1')")
    assert table.scan().count() == 2
    lake.sql("CALL system.set_current_snapshot('shop.events', " + str(second) + ")")
    done = lake.sql(
        "CALL system.rewrite_data_files(table => 'shop.events', where => 'id > 0', "
        "options => map('target-file-size-bytes', '1000000'))"
    )
    assert done.commit.files_removed == 2
    assert done == [
        {
            "rewritten_data_files_count": 2,
            "added_data_files_count": 1,
            "rewritten_bytes_count": done[0]["rewritten_bytes_count"],
            "failed_data_files_count": 0,
            "removed_delete_files_count": 0,
        }
    ]
    lake.sql("ALTER TABLE shop.events DROP BRANCH audit")
    lake.sql("ALTER TABLE shop.events DROP TAG IF EXISTS nope")
    lake.sql(
        "CALL system.expire_snapshots(table => 'shop.events', older_than => '2999-01-01T00:00:00Z', retain_last => 1)"
    )
    assert len(table.history()) == 2, "the newest one, and the tag's"


# Refusals


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("", frazil.InvalidInput, "The statement is empty"),
        (" ; ", frazil.InvalidInput, "The statement is empty"),
        ("DELETE FROM shop.events; DROP TABLE shop.events", frazil.InvalidInput, "second statement after position 24"),
        ("DELETE FROM shop.events WHERE name = 'x", frazil.InvalidInput, "a quote that is not closed"),
        ("GRANT ALL", frazil.Unsupported, "lake.sql() does not support GRANT"),
        ("EXPLAIN SELECT 1", frazil.Unsupported, "lake.sql() does not support EXPLAIN"),
        ("DELETE shop.events", frazil.InvalidInput, "Expected DELETE FROM"),
        (
            "DELETE FROM shop.events WHERE",
            frazil.InvalidInput,
            "Expected a condition, but the statement ends at position 29",
        ),
        ("DELETE FROM shop.events WHERE idd = 1", frazil.InvalidInput, "Did you mean"),
        ("DELETE FROM shop.events.snapshots", frazil.Unsupported, "lake.table('shop.events').history()"),
        ("INSERT INTO shop.events.branch_b VALUES (1)", frazil.Unsupported, 'branch="b"'),
        ("DELETE FROM shop.nope.snapshots", frazil.NoSuchTable, "shop.nope.snapshots"),
        ("DELETE FROM shop.nope", frazil.NoSuchTable, "shop.nope"),
        ("UPDATE shop.events SET id = 1, id = 2", frazil.InvalidInput, "twice"),
        ("UPDATE shop.events SET id + 1", frazil.InvalidInput, "Expected = at position 27, found '+'"),
        ("INSERT INTO shop.events (id, nam) VALUES (1, 2)", frazil.InvalidInput, "Did you mean 'name'?"),
        ("INSERT INTO shop.events (id) VALUES (1, 2)", frazil.InvalidInput, "Row 1 has 2 values for 1 column"),
        ("INSERT INTO shop.events (id) VALUES (now())", frazil.InvalidInput, "or a query: INSERT INTO t SELECT"),
        ("INSERT INTO shop.events (id) VALUES ('x')", frazil.InvalidInput, "id"),
        ("INSERT INTO shop.events (id, id) VALUES (1, 2)", frazil.InvalidInput, "twice"),
        ("INSERT shop.events VALUES (1)", frazil.InvalidInput, "INTO or OVERWRITE"),
        ("CREATE VIEW x AS SELECT 1", frazil.InvalidInput, "Expected TABLE or"),
        ("CREATE OR REPLACE TABLE shop.x (id int)", frazil.Unsupported, "CREATE OR REPLACE"),
        ("CREATE TABLE shop.x", frazil.InvalidInput, "a list of columns or AS SELECT"),
        ("CREATE TABLE shop.x (id int", frazil.InvalidInput, "parenthesis at position 21 is not closed"),
        ("CREATE TABLE shop.x (id int) USING delta", frazil.InvalidInput, "FRAZIL or ICEBERG"),
        ("CREATE TABLE shop.x (id int) PARTITIONED BY (week(id))", frazil.InvalidInput, "unknown transform"),
        ("DROP NAMESPACE shop CASCADE", frazil.Unsupported, "CASCADE"),
        ("SHOW FUNCTIONS", frazil.InvalidInput, "TABLES or NAMESPACES"),
        ("ALTER TABLE shop.events FLY", frazil.InvalidInput, "ADD COLUMN"),
        ("ALTER TABLE shop.events ADD COLUMN", frazil.InvalidInput, "Expected a column"),
        ("ALTER TABLE shop.events ALTER COLUMN ts SET NOT NULL", frazil.InvalidInput, "1 row holds null in"),
        ("ALTER TABLE shop.events ADD PARTITION FIELD day(ts) AS d", frazil.Unsupported, "Leave AS out"),
        ("ALTER TABLE shop.events DROP PARTITION FIELD day(ts)", frazil.InvalidInput, "not partitioned by day(ts)"),
        ("ALTER TABLE shop.events DROP COLUMN name extra", frazil.InvalidInput, "the end of the statement"),
        ("CALL system.compute_table_stats('shop.events')", frazil.Unsupported, "Supported are cherrypick_snapshot"),
        ("CALL rollback('shop.events')", frazil.InvalidInput, "CALL system."),
        ("CALL system.fast_forward('shop.events', 'main')", frazil.InvalidInput, "requires the argument 'to'"),
        ("CALL system.fast_forward(tabel => 'shop.events')", frazil.InvalidInput, "Did you mean 'table'?"),
        ("CALL system.expire_snapshots('shop.events', '2026-01-01')", frazil.InvalidInput, "names no time zone"),
    ],
)
def test_bad_statements_get_a_sentence(
    lake: frazil.Lake, text: str, error: type[frazil.FrazilError], sentence: str
) -> None:
    before = lake.table("shop.events").metadata_location
    with pytest.raises(error, match=re.escape(sentence)):
        lake.sql(text)
    assert lake.table("shop.events").metadata_location == before


def test_a_statement_is_text(lake: frazil.Lake) -> None:
    with pytest.raises(frazil.InvalidInput, match="SQL text, not int"):
        lake.sql(7)  # type: ignore[arg-type]
    with pytest.raises(frazil.InvalidInput, match="must be a SparkSession"):
        lake.sql("SHOW TABLES", spark="local")


def test_a_lake_that_is_read_only_refuses_writes(lake: frazil.Lake, tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake"), read_only=True) as frozen:
        assert frozen.sql("SHOW TABLES")
        for text in (
            "DELETE FROM shop.events",
            "INSERT INTO shop.events (id) VALUES (1)",
            "DROP TABLE shop.events",
            "ALTER TABLE shop.events ADD COLUMN q int",
            "ALTER TABLE shop.events ADD COLUMNS (q int, r int)",
            "CREATE TABLE shop.q (id int)",
        ):
            with pytest.raises(frazil.InvalidInput, match="read_only"):
                frozen.sql(text)


# Tokens


def test_tokens_keep_their_places() -> None:
    text = "CALL x.`a b`(1L, 'it''s', r'\\d', \"q\") -- end"
    statement = read_statement(text)
    assert [text[each.start : each.end] for each in statement.tokens] == [
        "CALL", "x", ".", "`a b`", "(", "1L", ",", "'it''s'", ",", "r'\\d'", ",", '"q"', ")",
    ]  # fmt: skip
    assert statement.tokens[7].value == "it's"
    assert not statement.plain_texts
    assert [each.value for each in read_statement("a ORDER\n BY b PARTITIONED BY c").tokens] == [
        "a", "ORDER", "BY", "b", "PARTITIONED", "BY", "c",
    ]  # fmt: skip


def test_commas_inside_brackets_and_types_do_not_split() -> None:
    statement = read_statement("a < b, f(c, d), e > g")
    assert [statement.slice(each) for each in split(statement, statement.tokens)] == ["a < b", "f(c, d)", "e > g"]
    statement = read_statement("a map<string,array<int>>, b decimal(3, 1)")
    parts = split(statement, statement.tokens, types=True)
    assert [statement.slice(each) for each in parts] == ["a map<string,array<int>>", "b decimal(3, 1)"]


def test_qualifiers_are_replaced_only_where_they_are_qualifiers() -> None:
    statement = read_statement("e.id = x.e.y AND E.`e` = 'e.id' AND shop.e.z > e")
    names = {("e",): "", ("shop", "e"): "`t`"}
    assert renamed(statement, statement.tokens, names) == "id = x.e.y AND `e` = 'e.id' AND `t`.z > e"


# Services


def one_row(found: Any) -> dict[str, Any]:
    assert isinstance(found, frazil.ProcedureRows)
    (row,) = found
    return row


@pytest.fixture
def scattered(lake: frazil.Lake) -> frazil.Table:
    table = lake.create_table("shop.s", "id bigint not null, p string, v bigint", partition_by=["p"], keys=["id"])
    for first in range(0, 12, 4):
        table.append([{"id": n, "p": "ab"[n % 2], "v": 7 * n % 12} for n in range(first, first + 4)])
    return table


@pytest.mark.parametrize(
    "how",
    [
        "strategy => 'sort', sort_order => 'v desc nulls last, bucket(4, id)'",
        "strategy => 'sort', sort_order => 'zorder(v, id)'",
        "sort_order => 'hilbert(v,id)', options => map('rewrite-all', 'true')",
        "strategy => 'hilbert', sort_order => 'HILBERT(v, id)'",
    ],
)
def test_call_clusters(lake: frazil.Lake, scattered: frazil.Table, how: str) -> None:
    row = one_row(lake.sql(f"CALL system.rewrite_data_files(table => 'shop.s', {how})"))
    assert (row["rewritten_data_files_count"], row["added_data_files_count"]) == (6, 2)
    assert row["rewritten_bytes_count"] > 0
    assert scattered.scan().count() == 12


def test_call_rewrites_a_branch(lake: frazil.Lake, scattered: frazil.Table) -> None:
    scattered.create_branch("audit")
    lake.sql("CALL system.rewrite_data_files(table => 'shop.s', branch => 'audit')")
    assert len(scattered.files()) == 6
    assert len(scattered.scan(ref="audit").files()) == 2


def test_call_rewrites_delete_files_and_manifests(lake: frazil.Lake, scattered: frazil.Table) -> None:
    scattered.compact()
    for each in (1, 3):
        scattered.delete(f"id = {each}", mode="merge-on-read")
    row = one_row(lake.sql("CALL system.rewrite_position_delete_files('shop.s', map('rewrite-all', 'true'))"))
    assert (row["rewritten_delete_files_count"], row["added_delete_files_count"]) == (2, 1)
    assert row["rewritten_bytes_count"] > row["added_bytes_count"] > 0
    row = one_row(lake.sql("CALL system.rewrite_position_delete_files('shop.s')"))
    assert set(row.values()) == {0}
    scattered.append([{"id": 100, "p": "a", "v": 0}])
    row = one_row(lake.sql("CALL system.rewrite_manifests(table => 'shop.s', use_caching => false)"))
    assert row == {"rewritten_manifests_count": 2, "added_manifests_count": 1}
    scattered.append([{"id": 101, "p": "b", "v": 0}])
    row = one_row(lake.sql("CALL system.rewrite_manifests(table => 'shop.s', sort_by => array('p'))"))
    assert row == {"rewritten_manifests_count": 2, "added_manifests_count": 1}
    row = one_row(lake.sql("CALL system.rewrite_manifests('shop.s')"))
    assert set(row.values()) == {0}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("strategy => 'binpack', sort_order => 'v'", "takes no sort_order"),
        ("strategy => 'zorder', sort_order => 'hilbert(v, id)'", "does not fit"),
        ("sort_order => 'zorder(nope)'", "nope"),
        ("options => map('min-input-file', '2')", "min-input-files"),
        ("strategy => 'magic'", "magic"),
    ],
)
def test_call_refuses_what_it_does_not_know(lake: frazil.Lake, scattered: frazil.Table, how: str, said: str) -> None:
    with pytest.raises(frazil.InvalidInput, match=said):
        lake.sql(f"CALL system.rewrite_data_files(table => 'shop.s', {how})")
    assert len(scattered.files()) == 6
