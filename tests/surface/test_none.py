"""None for an optional argument means none, in every call that takes a list or a dict."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import frazil

DDL = "id bigint not null, part string, v bigint"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("shop")
        yield lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    return lake.create_table(
        "shop.t", DDL, keys=["id"], partition_by=["part"], sort_by=["v"], properties={"owner": "a"}
    )


def layout(table: frazil.Table) -> tuple[tuple[str, ...], list[str], list[int]]:
    """Keys, partition fields that new files have, and the columns they are sorted by."""
    spec = [each.name for each in table.spec.fields if str(each.transform) != "void"]
    return table.keys, spec, [each.source_id for each in table.sort_order.fields]


def test_a_table_and_a_namespace_are_created(lake: frazil.Lake) -> None:
    lake.create_namespace("other", None)
    table = lake.create_table(
        "shop.none", DDL, keys=None, partition_by=None, sort_by=None, properties=None, location=None, comment=None
    )
    lake.sql("CREATE TABLE shop.said (id BIGINT NOT NULL, part STRING, v BIGINT)")
    assert layout(table) == layout(lake.table("shop.said")) == ((), [], [])
    assert table.properties == lake.table("shop.said").properties


Change = Callable[[frazil.Table], object]


@pytest.mark.parametrize(
    ("change", "statement", "left"),
    [
        (lambda table: table.set_keys(None), "ALTER TABLE shop.t DROP IDENTIFIER FIELDS id", ((), ["part"], [3])),
        (
            lambda table: table.set_partitioning(None),
            "ALTER TABLE shop.t DROP PARTITION FIELD part",
            (("id",), [], [3]),
        ),
        (lambda table: table.set_sort_order(None), "ALTER TABLE shop.t WRITE UNORDERED", (("id",), ["part"], [])),
    ],
    ids=["keys", "partitioning", "sort order"],
)
def test_what_a_table_has_is_removed(
    lake: frazil.Lake, table: frazil.Table, change: Change, statement: str, left: object
) -> None:
    change(table)
    assert layout(table) == left
    lake.drop_table("shop.t")
    lake.create_table("shop.t", DDL, keys=["id"], partition_by=["part"], sort_by=["v"])
    lake.sql(statement)
    assert layout(lake.table("shop.t")) == left


def test_no_property_is_set(table: frazil.Table) -> None:
    before = table.properties
    assert not table.set_properties(None).changed
    assert table.properties == before


def test_a_transaction_takes_it_as_well(lake: frazil.Lake, table: frazil.Table) -> None:
    with lake.transaction() as transaction:
        transaction.table("shop.t").set_keys(None)
        transaction.table("shop.t").set_sort_order(None)
    assert layout(table) == ((), ["part"], [])


def test_a_write_takes_none_for_every_option_that_is_a_dict_or_a_choice(table: frazil.Table) -> None:
    done = table.append(
        [{"id": 1, "part": "a", "v": 1}],
        isolation=None,
        retry=None,
        commit_id=None,
        snapshot_properties=None,
        options=None,
        on_deleted=None,
        engine=None,
        on_phase=None,
    )
    assert done.rows_inserted == 1
    assert table.upsert([{"id": 1, "part": "a", "v": 2}], mode=None).changed
    assert table.scan(None, None, ref=None, limit=None).to_arrow().to_pylist() == [{"id": 1, "part": "a", "v": 2}]
    assert table.compact(None, by=None) is not None


def test_a_merge_without_on_is_by_the_keys(lake: frazil.Lake, table: frazil.Table) -> None:
    plan = table.merge([], on=None)._merge
    assert plan.on == ["id"]
    clauses = table.merge([]).when_matched_update_all(except_cols=None).when_not_matched_insert_all(except_cols=None)
    assert [each.leave_out for each in clauses._merge.clauses] == [frozenset(), frozenset()]
    table.set_keys(None)
    with pytest.raises(frazil.InvalidInput, match="no key columns"):
        table.merge([], on=None)
    assert lake.table("shop.t").keys == ()


def test_what_is_not_a_list_is_still_refused(lake: frazil.Lake) -> None:
    for name in ("keys", "partition_by", "sort_by"):
        with pytest.raises(frazil.InvalidInput, match=rf"{name} must be a list of strings\. Write {name}=\['id'\]"):
            lake.create_table("shop.u", DDL, **{name: "id"})  # type: ignore[arg-type]


def test_what_users_hold_pickles(table: frazil.Table) -> None:
    """Spark Connect pickles a sink, and jobs pickle tables and scans."""
    rows = [{"id": 1, "part": "a", "v": 1}]
    table.append(rows)
    assert pickle.loads(pickle.dumps(table)).name == "shop.t"
    assert pickle.loads(pickle.dumps(table.scan("id = 1"))).to_arrow().to_pylist() == rows
    assert len(pickle.loads(pickle.dumps(table.changes(None))).to_arrow()) == 1
    sink = pickle.loads(pickle.dumps(table.stream_sink("s")))
    assert sink([{"id": 2, "part": "a", "v": 2}], 0).rows_inserted == 1
    assert table.stream_sink("s")([{"id": 2, "part": "a", "v": 2}], 0) is None
