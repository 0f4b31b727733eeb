"""compact(): bin-packing and clustering, in several commits, beside other writers at exact moments."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest

import frazil
from frazil.commit.context import Phase
from frazil.table import services
from surface.matrix import files_of, named_files

QUICK = frazil.Retry(tries=6, base_ms=0)
ALL_GROUPS_APART = {"target-file-size-bytes": "700", "rewrite-all": "true"}
"""Each file is a group, and each group a commit."""


@pytest.fixture
def lake() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as found:
        found.create_namespace("s")
        yield found


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    """Four files of five rows each in two partitions: id 0 to 39, v = (7 * id) % 40."""
    made = lake.create_table("s.t", "id bigint not null, p string, v bigint", partition_by=["p"], keys=["id"])
    for first in range(0, 40, 10):
        made.append([row(each) for each in range(first, first + 10)])
    return made


def row(number: int, v: int | None = None) -> dict[str, Any]:
    return {"id": number, "p": "ab"[number % 2], "v": 7 * number % 40 if v is None else v}


def content(table: Any) -> dict[int, int]:
    found = [(each["id"], each["v"]) for each in table.scan().to_arrow().to_pylist()]
    assert len(found) == len(dict(found)), "a row is there twice"
    return dict(found)


BEFORE = {number: 7 * number % 40 for number in range(40)}


def at(phase: Phase, act: Callable[[], object], times: int = 1) -> Callable[[Phase, int], None]:
    left = [act] * times

    def on_phase(found: Phase, _attempt: int) -> None:
        if found is phase and left:
            left.pop()()

    return on_phase


def values_by_file(table: frazil.Table, column: str = "v") -> list[list[Any]]:
    """The column's values of each file, in the file's order."""
    storage: Any = table._lake.storage
    import pyarrow.parquet as pq

    found = []
    for file in sorted(table.files(), key=lambda each: str(each.partition)):
        with storage.open_input(file.path) as stream:
            found.append(pq.read_table(stream).column(column).to_pylist())
    return found


# Sorted


@pytest.mark.parametrize("terms", [["v"], ["v desc"], "v", ["p", "v"]])
def test_sort_orders_the_rows_of_each_partition(table: frazil.Table, terms: Any) -> None:
    done = table.compact(strategy="sort", by=terms)
    assert done.changed
    assert content(table) == BEFORE
    for values in values_by_file(table):
        assert values == sorted(values, reverse="desc" in str(terms))
    assert len(table.files()) == 2


def test_sort_without_columns_takes_the_tables_order(table: frazil.Table) -> None:
    with pytest.raises(frazil.InvalidInput, match="needs columns"):
        table.compact(strategy="sort")
    table.set_sort_order(["v desc"])
    table.compact(strategy="sort")
    assert all(values == sorted(values, reverse=True) for values in values_by_file(table))
    assert {task.file.sort_order_id for task in table.scan().tasks()} == {table.sort_order.order_id}
    table.compact(strategy="sort", by=["id"])
    assert {task.file.sort_order_id for task in table.scan().tasks()} == {0}


def test_nulls_go_where_the_terms_say(lake: frazil.Lake) -> None:
    table = lake.create_table("s.n", "v bigint")
    table.append([{"v": each} for each in (3, None, 1)])
    table.append([{"v": each} for each in (None, 2)])
    table.compact(strategy="sort", by=["v nulls last"])
    assert values_by_file(table) == [[1, 2, 3, None, None]]
    table.compact(strategy="sort", by=["v desc nulls first"])
    assert values_by_file(table) == [[None, None, 3, 2, 1]]


# Curves


MANY_TYPES = (
    "i int, l bigint, f float, d double, b boolean, n decimal(10,2), w decimal(38,0), s string, y binary, "
    "a date, t timestamp, z timestamp_ntz, o struct<x: int>"
)


def many_types(count: int) -> Any:
    chance, arrow = random.Random(1), cast("Any", pa)

    def some(make: Callable[[], Any]) -> list[Any]:
        return [None if chance.random() < 0.1 else make() for _ in range(count)]

    number: Any = lambda: chance.randrange(-1000, 1000)  # noqa: E731
    moment: Any = lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=chance.expovariate(1e-5))  # noqa: E731
    columns: dict[str, Any] = {
        "i": arrow.array(some(number), arrow.int32()),
        "l": arrow.array(some(number), arrow.int64()),
        "f": arrow.array(some(lambda: chance.choice([float("nan"), chance.random()])), arrow.float32()),
        "d": arrow.array(some(lambda: chance.lognormvariate(0, 4)), arrow.float64()),
        "b": arrow.array(some(lambda: chance.random() < 0.5), arrow.bool_()),
        "n": arrow.array(some(lambda: Decimal(number()).scaleb(-2)), arrow.decimal128(10, 2)),
        "w": arrow.array(some(lambda: Decimal(10**30 + number())), arrow.decimal128(38, 0)),
        "s": arrow.array(some(lambda: f"https://www.example.com/{number()}"), arrow.string()),
        "y": arrow.array(some(lambda: bytes([chance.randrange(256)])), arrow.binary()),
        "a": arrow.array(some(lambda: moment().date()), arrow.date32()),
        "t": arrow.array(some(moment), arrow.timestamp("us", "UTC")),
        "z": arrow.array(some(lambda: moment().replace(tzinfo=None)), arrow.timestamp("us")),
        "o": arrow.array(some(lambda: {"x": number()}), arrow.struct([("x", arrow.int32())])),
    }
    return arrow.table(columns)


def rows_of(table: frazil.Table) -> list[str]:
    return sorted(map(repr, table.scan().to_arrow().to_pylist()))


@pytest.mark.parametrize("strategy", ["zorder", "hilbert", "sort"])
def test_every_type_can_be_clustered(lake: frazil.Lake, strategy: Any) -> None:
    table = lake.create_table("s.many", MANY_TYPES)
    rows = many_types(400)
    for start in range(0, 400, 100):
        table.append(rows.slice(start, 100))
    before = rows_of(table)
    names = [*rows.schema.names[:-1], "o.x"]
    table.compact(strategy=strategy, by=names)
    assert rows_of(table) == before
    for name in names:
        table.compact(strategy=strategy, by=[name, "d"])
    assert rows_of(table) == before
    assert len(table.files()) == 1


@pytest.mark.parametrize("strategy", ["zorder", "hilbert"])
def test_a_curve_prunes_by_each_of_its_columns(lake: frazil.Lake, strategy: Any) -> None:
    properties = {"write.parquet.row-group-limit": "250", "write.target-file-size-bytes": "3000"}
    table = lake.create_table("s.c", "x bigint, s string", properties=properties)
    chance = random.Random(0)
    rows: list[dict[str, Any]] = [
        {"x": int(chance.lognormvariate(0, 4) * 1000), "s": f"https://www.example.com/{chance.randrange(10**6):06d}"}
        for _ in range(8_000)
    ]
    table.append(rows)
    xs, ss = sorted(each["x"] for each in rows), sorted(each["s"] for each in rows)
    filters = [f"x between {xs[4000]} and {xs[4400]}", f"s between '{ss[4000]}' and '{ss[4400]}'"]

    def shares() -> list[float]:
        return [len(table.scan(where).files()) / len(table.files()) for where in filters]

    assert len(table.files()) > 10
    assert min(shares()) > 0.9
    table.compact(strategy=strategy, by=["x", "s"])
    assert len(table.files()) > 10
    assert max(shares()) < 0.6
    assert table.scan().count() == 8_000


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"strategy": "random", "by": ["v"]}, "random"),
        ({"strategy": "hilbert"}, "needs columns"),
        ({"strategy": "hilbert", "by": ["nope"]}, "nope"),
        ({"strategy": "zorder", "by": ["bucket(4, v)"]}, "takes columns"),
        ({"by": ["v"]}, "no columns"),
        ({"strategy": "hilbert", "by": ["o"]}, "o"),
        ({"options": {"nope": "1"}}, "nope"),
    ],
)
def test_what_cannot_be_done_is_refused(lake: frazil.Lake, how: Any, said: str) -> None:
    table = lake.create_table("s.r", "v bigint, o struct<x: int>")
    table.append([{"v": 1, "o": None}])
    with pytest.raises(frazil.FrazilError, match=said):
        table.compact(**how)
    assert len(table.history()) == 1


# Deletes that arrive meanwhile: none of them is lost


STRATEGIES: dict[str, dict[str, Any]] = {
    "binpack": {},
    "sort": {"strategy": "sort", "by": ["v"]},
    "hilbert": {"strategy": "hilbert", "by": ["v", "id"]},
}
CHANGES: dict[str, tuple[Callable[[frazil.Table], object], Callable[[dict[int, int]], dict[int, int]]]] = {
    "delete by position": (
        lambda table: table.delete("id % 5 = 3", mode="merge-on-read"),
        lambda found: {key: v for key, v in found.items() if key % 5 != 3},
    ),
    "update by position": (
        lambda table: table.update({"v": "-v"}, "id % 5 = 3", mode="merge-on-read"),
        lambda found: {key: -v if key % 5 == 3 else v for key, v in found.items()},
    ),
    "delete by copying": (
        lambda table: table.delete("id = 3", mode="copy-on-write"),
        lambda found: {key: v for key, v in found.items() if key != 3},
    ),
    "upsert by key": (
        lambda table: table.upsert([row(3, 1000), row(4, 1000)], mode="equality"),
        lambda found: {**found, 3: 1000, 4: 1000},
    ),
    "append": (lambda table: table.append([row(100, 1)]), lambda found: {**found, 100: 1}),
    "delete of files": (
        lambda table: table.delete("p = 'a'"),
        lambda found: {key: v for key, v in found.items() if key % 2},
    ),
    "compaction": (lambda table: table.compact("p = 'a'"), lambda found: found),
}


@pytest.mark.parametrize("lineage", [True, False], ids=["lineage", "no lineage"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_lands_during_a_compaction_is_kept(table: frazil.Table, strategy: str, change: str, lineage: bool) -> None:
    if not lineage:
        table.set_properties({"frazil.lineage.max-runs": "0"})
    act, expected = CHANGES[change]
    done = table.compact(**STRATEGIES[strategy], retry=QUICK, on_phase=at(Phase.HEAD_READ, lambda: act(table)))
    assert done.changed
    assert content(table) == expected(BEFORE)
    assert files_of(table) == named_files(table)
    table.compact()
    assert content(table) == expected(BEFORE)


@pytest.mark.parametrize("lineage", [True, False], ids=["lineage", "no lineage"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_began_before_a_compaction_lands_after_it(
    table: frazil.Table, strategy: str, change: str, lineage: bool
) -> None:
    if not lineage:
        table.set_properties({"frazil.lineage.max-runs": "0"})
    verbs: dict[str, Callable[..., object]] = {
        "delete by position": lambda **how: table.delete("id % 5 = 3", mode="merge-on-read", **how),
        "update by position": lambda **how: table.update({"v": "-v"}, "id % 5 = 3", mode="merge-on-read", **how),
        "delete by copying": lambda **how: table.delete("id = 3", mode="copy-on-write", **how),
        "upsert by key": lambda **how: table.upsert([row(3, 1000), row(4, 1000)], mode="equality", **how),
        "append": lambda **how: table.append([row(100, 1)], **how),
        "delete of files": lambda **how: table.delete("p = 'a'", **how),
        "compaction": lambda **how: table.compact("p = 'a'", **how),
    }
    theirs = at(Phase.HEAD_READ, lambda: table.compact(**STRATEGIES[strategy]))
    verbs[change](retry=QUICK, on_phase=theirs)
    assert content(table) == CHANGES[change][1](BEFORE)
    assert files_of(table) == named_files(table)


def test_a_group_whose_rows_cannot_be_followed_is_planned_again(table: frazil.Table) -> None:
    """Sorted without a record of where the rows came from, a group is lost to a delete of one of its rows."""
    table.set_properties({"frazil.lineage.max-runs": "0"})
    late = at(Phase.HEAD_READ, lambda: table.delete("id = 4", mode="merge-on-read"))
    done = table.compact(strategy="sort", by=["v"], retry=QUICK, on_phase=late)
    assert done.redone == 1
    assert content(table) == {key: v for key, v in BEFORE.items() if key != 4}
    assert len(table.files()) == 2
    assert not [task for task in table.scan().tasks() if task.deletes]


def test_with_lineage_the_delete_is_carried(table: frazil.Table) -> None:
    late = at(Phase.HEAD_READ, lambda: table.delete("id = 4", mode="merge-on-read"))
    done = table.compact(strategy="sort", by=["v"], retry=QUICK, on_phase=late)
    assert done.redone == 0
    assert content(table) == {key: v for key, v in BEFORE.items() if key != 4}
    assert [len(task.deletes) for task in table.scan().tasks()].count(1) == 1


# Group by group


def test_groups_are_committed_one_after_the_other(table: frazil.Table) -> None:
    before = len(table.history())
    done = table.compact(options=ALL_GROUPS_APART)
    assert len(table.history()) == before + 8
    assert (done.files_added, done.files_removed) == (8, 8)
    assert content(table) == BEFORE
    table.compact(options={**ALL_GROUPS_APART, "partial-progress.max-commits": "3"})
    assert len(table.history()) - before - 8 <= 4
    count = len(table.history())
    table.compact(options={**ALL_GROUPS_APART, "partial-progress.enabled": "false"})
    assert len(table.history()) == count + 1


def test_with_a_commit_id_everything_is_one_commit(table: frazil.Table) -> None:
    before = len(table.history())
    done = table.compact(options=ALL_GROUPS_APART, commit_id="tonight")
    assert len(table.history()) == before + 1
    again = table.compact(options=ALL_GROUPS_APART, commit_id="tonight")
    assert (again.snapshot_id, again.already_committed) == (done.snapshot_id, True)


def test_in_a_transaction_everything_is_one_commit(lake: frazil.Lake, table: frazil.Table) -> None:
    before = len(table.history())
    with lake.transaction() as tx:
        tx.table("s.t").compact(options=ALL_GROUPS_APART)
    assert len(table.history()) == before + 1
    assert content(table) == BEFORE


def test_only_the_lost_group_is_planned_again(table: frazil.Table) -> None:
    """Of eight groups in four commits one is lost to an overwrite, and what is left of it is rewritten at the end."""
    late = at(Phase.HEAD_READ, lambda: table.compact("p = 'b' and id < 10", options={"rewrite-all": "true"}))
    before = len(table.history())
    done = table.compact(options=ALL_GROUPS_APART, retry=QUICK, on_phase=late)
    assert content(table) == BEFORE
    # The other compaction, and the groups that were not lost.
    assert len(table.history()) - before == 1 + 7
    assert done.redone <= 1
    assert files_of(table) == named_files(table)


def test_a_conflict_with_one_group_does_not_stop_the_others(table: frazil.Table) -> None:
    late = at(Phase.HEAD_READ, lambda: table.compact("p = 'a' and id < 10", options={"rewrite-all": "true"}))
    done = table.compact(options=ALL_GROUPS_APART, retry=QUICK, on_conflict="abort", on_phase=late)
    assert done.changed
    assert content(table) == BEFORE


def test_a_conflict_with_every_group_is_raised(table: frazil.Table) -> None:
    rewrite = {"rewrite-all": "true"}
    for_ever = at(Phase.HEAD_READ, lambda: table.compact(options=rewrite), times=100)
    with pytest.raises(frazil.ConflictError):
        table.compact(options=rewrite, retry=QUICK, on_conflict="abort", on_phase=for_ever)
    assert content(table) == BEFORE
    assert files_of(table) == named_files(table)


def test_a_plan_writes_nothing(table: frazil.Table) -> None:
    planned = table.compaction_plan("p = 'a'")
    assert [len(group.files) for group in planned.groups] == [4]
    assert planned.to_dict()["files"] == 4
    assert table.compact("p = 'a'", dry_run=True).files_removed == 4
    assert len(table.history()) == 4
    assert len(table.files()) == 8
    assert files_of(table) == named_files(table)


def test_history_names_what_it_was(lake: frazil.Lake, table: frazil.Table) -> None:
    table.compact("p = 'a'")
    table.compact("p = 'b'", strategy="sort", by=["v"])
    assert [each.operation for each in table.history()][-2:] == ["replace", "replace"]


# Another partition spec


def test_rows_are_moved_to_another_spec(table: frazil.Table) -> None:
    table.set_partitioning(["truncate(20, id)"])
    spec = table.spec.spec_id
    table.delete("id = 7", mode="merge-on-read")
    table.compact(options={"output-spec-id": str(spec)})
    assert content(table) == {key: v for key, v in BEFORE.items() if key != 7}
    assert {task.file.spec_id for task in table.scan().tasks()} == {spec}
    assert sorted(each.rows for each in table.files()) == [9, 10, 10, 10]
    assert len(table.scan("id < 20").files()) == 2
    table.compact()
    assert sorted(each.rows for each in table.files()) == [19, 20]
    assert not table.compact(options={"output-spec-id": str(spec)}).changed


def test_a_delete_follows_its_row_to_another_spec(table: frazil.Table) -> None:
    table.set_partitioning(["truncate(20, id)"])
    late = at(Phase.HEAD_READ, lambda: table.delete("id = 7", mode="merge-on-read"))
    table.compact(options={"output-spec-id": str(table.spec.spec_id)}, retry=QUICK, on_phase=late)
    assert content(table) == {key: v for key, v in BEFORE.items() if key != 7}


def test_p21_a_delete_by_key_in_one_partition_reaches_rows_that_change_their_spec(lake: frazil.Lake) -> None:
    table = lake.create_table("s.k", "id bigint not null, v bigint", partition_by=["bucket(2, id)"], keys=["id"])
    table.append([{"id": each, "v": each} for each in range(10)])
    tx = lake.transaction()
    tx.table("s.k").set_partitioning(["bucket(3, id)"])
    tx.table("s.k").compact(options={"output-spec-id": "1", "rewrite-all": "true"})
    table.upsert([{"id": 3, "v": 30}], mode="equality")
    (delete,) = {ref.file for task in table.scan().tasks() for ref in task.deletes}
    assert delete.partition
    with pytest.raises(frazil.ConflictError):
        tx.commit()
    assert content(table) == {each: 30 if each == 3 else each for each in range(10)}


# What a service tells about itself


class Told:
    """The record of a service action, for the timeline."""

    def __init__(self, *, stops_after: int = 1_000) -> None:
        self.plans: list[Any] = []
        self.parts: list[tuple[int, int]] = []
        self._stops_after = stops_after

    def planned(self, plan: Any) -> None:
        self.plans.append(plan)

    def advanced(self, done: int, total: int, detail: Any) -> None:
        assert detail["snapshot_id"] is not None
        self.parts.append((done, total))

    @property
    def should_stop(self) -> bool:
        return len(self.parts) >= self._stops_after


def test_a_service_tells_its_plan_and_each_part(table: frazil.Table) -> None:
    told = Told()
    services.compact(table._destination, None, "binpack", None, {"options": ALL_GROUPS_APART}, told)
    assert [plan["files"] for plan in told.plans] == [8]
    assert told.parts == [(number, 8) for number in range(1, 9)]
    services.resolve_deletes(table._destination, None, {}, told)
    services.rewrite_position_deletes(table._destination, None, {}, told)
    services.rewrite_manifests(table._destination, None, (), {}, told)
    assert told.parts[8:] == [(1, 1)] * 3
    assert len(told.plans) == 4


def test_a_service_that_is_to_stop_ends_after_what_is_committed(table: frazil.Table) -> None:
    told = Told(stops_after=3)
    done = services.compact(table._destination, None, "binpack", None, {"options": ALL_GROUPS_APART}, told)
    assert (len(told.parts), done.files_removed) == (3, 3)
    assert content(table) == BEFORE
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize("parts", [1, 8])
def test_what_has_landed_is_no_error_if_the_catalog_does_not_answer_afterwards(
    table: frazil.Table, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    told, catalog = Told(), table._lake.catalog
    load = catalog.load

    def load_until_then(ident: Any) -> Any:
        if len(told.parts) == parts:
            raise frazil.CatalogUnavailable("no answer")
        return load(ident)

    monkeypatch.setattr(catalog, "load", load_until_then)
    done = table.compact(options=ALL_GROUPS_APART, progress=told)
    monkeypatch.undo()
    assert (done.changed, done.files_removed) == (True, parts)
    assert content(table) == BEFORE
    assert files_of(table) == named_files(table)
