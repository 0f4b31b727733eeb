"""resolve_deletes() and rewrite_position_deletes(): the same rows with other delete files, beside other writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import frazil
from frazil.commit.context import Phase
from frazil.model import Content
from frazil.read.plan import plan
from frazil.services.delete_files import dangling, plan_resolve
from surface.matrix import files_of, named_files

QUICK = frazil.Retry(tries=6, base_ms=0)
Pairs = dict[int, int]


@pytest.fixture
def lake() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as found:
        found.create_namespace("s")
        yield found


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    """Four files of ten rows: id 0 to 39, v = id."""
    made = lake.create_table("s.t", "id bigint not null, v bigint", keys=["id"])
    for first in range(0, 40, 10):
        made.append(rows(range(first, first + 10)))
    return made


def rows(ids: Any, v: int | None = None) -> list[dict[str, int]]:
    return [{"id": each, "v": each if v is None else v} for each in ids]


def content(table: Any) -> Pairs:
    found = [(each["id"], each["v"]) for each in table.scan().to_arrow().to_pylist()]
    assert len(found) == len(dict(found)), "a row is there twice"
    return dict(found)


BEFORE: Pairs = {each: each for each in range(40)}


def deletes(table: frazil.Table) -> tuple[int, int]:
    """How many position delete files and equality delete files the table has."""
    contents = [each.file.content for each in _plan(table).deletes]
    return contents.count(Content.POSITION_DELETES), contents.count(Content.EQUALITY_DELETES)


def _plan(table: frazil.Table) -> Any:
    view = _view(table)
    from frazil.expr import parse_filter

    return plan(view.metadata, view.snapshot, parse_filter(None, view.schema), view.storage)


def _view(table: frazil.Table) -> Any:
    from frazil.dml.view import View

    lake = table._lake
    return View(lake.storage, lake.runtime, table._metadata(), "main", table.name)


def at(phase: Phase, act: Callable[[], object]) -> Callable[[Phase, int], None]:
    left = [act]

    def on_phase(found: Phase, _attempt: int) -> None:
        if found is phase and left:
            left.pop()()

    return on_phase


# Equality deletes


def test_equality_deletes_become_positions(table: frazil.Table) -> None:
    table.upsert(rows([3, 4, 13, 100], v=-1), mode="equality")
    table.delete("id = 5", mode="merge-on-read")
    expected = content(table)
    assert deletes(table) == (1, 1)
    done = table.resolve_deletes()
    assert (done.changed, done.rows_deleted) == (True, 0)
    assert content(table) == expected
    # Of the two data files that have one of the keys; the others are excluded by their bounds.
    assert deletes(table) == (3, 0)
    assert table.history()[-1].operation == "replace"
    assert not table.resolve_deletes().changed
    assert files_of(table) == named_files(table)


def test_pyiceberg_reads_the_table_afterwards(lake: frazil.Lake, table: frazil.Table, tmp_path: Any) -> None:
    with frazil.connect(str(tmp_path / "lake")) as own:
        own.create_namespace("s")
        made = own.create_table("s.t", "id bigint not null, v bigint", keys=["id"])
        made.append(rows(range(10)))
        made.upsert(rows([3], v=-1), mode="equality")
        theirs = own.pyiceberg().load_table("s.t")
        with pytest.raises(Exception, match="equality"):
            theirs.scan().to_arrow()
        made.resolve_deletes()
        theirs.refresh()
        assert {each["id"]: each["v"] for each in theirs.scan().to_arrow().to_pylist()} == content(made)


def test_a_file_whose_rows_are_all_deleted_goes(table: frazil.Table) -> None:
    table.upsert(rows(range(10), v=-1), mode="equality")
    done = table.resolve_deletes()
    assert deletes(table) == (0, 0)
    assert done.files_removed == 2
    assert len(table.files()) == 4
    assert content(table) == BEFORE | dict.fromkeys(range(10), -1)


def test_where_leaves_deletes_that_reach_other_files(table: frazil.Table) -> None:
    table.upsert(rows([3, 13], v=-1), mode="equality")
    expected = content(table)
    table.resolve_deletes("id < 10")
    assert (content(table), deletes(table)) == (expected, (1, 1))
    table.resolve_deletes("id between 10 and 19")
    assert content(table) == expected
    assert deletes(table)[1] == 1, "its bounds reach the resolved file as well"
    table.resolve_deletes()
    assert (content(table), deletes(table)[1]) == (expected, 0)


def test_a_plan_says_what_would_be_resolved(table: frazil.Table) -> None:
    table.upsert(rows([3], v=-1), mode="equality")
    found = plan_resolve(_view(table)).to_dict()
    assert (len(found["data_files"]), len(found["replaced_delete_files"])) == (1, 1)
    assert table.resolve_deletes(dry_run=True).files_removed == 1
    assert deletes(table) == (0, 1)


CHANGES: dict[str, tuple[Callable[..., object], Callable[[Pairs], Pairs]]] = {
    "upsert of the same key": (
        lambda t, **how: t.upsert(rows([3], v=7), mode="equality", **how),
        lambda found: found | {3: 7},
    ),
    "upsert by position": (
        lambda t, **how: t.upsert(rows([3, 4], v=7), mode="position", **how),
        lambda found: found | {3: 7, 4: 7},
    ),
    "delete by position": (
        lambda t, **how: t.delete("id in (2, 3, 12)", mode="merge-on-read", **how),
        lambda found: {key: v for key, v in found.items() if key not in (2, 3, 12)},
    ),
    "update by copying": (
        lambda t, **how: t.update({"v": "v + 1000"}, "id in (2, 3)", mode="copy-on-write", **how),
        lambda found: {key: v + 1000 if key in (2, 3) else v for key, v in found.items()},
    ),
    "update by position": (
        lambda t, **how: t.update({"v": "v + 1000"}, "id in (2, 3)", mode="merge-on-read", **how),
        lambda found: {key: v + 1000 if key in (2, 3) else v for key, v in found.items()},
    ),
    "append of a key": (lambda t, **how: t.append(rows([200]), **how), lambda found: found | {200: 200}),
    "compaction": (lambda t, **how: t.compact(**how), lambda found: found),
    "clustering": (lambda t, **how: t.compact(strategy="hilbert", by=["v", "id"], **how), lambda found: found),
    "resolution": (lambda t, **how: t.resolve_deletes(**how), lambda found: found),
    "position deletes put together": (lambda t, **how: t.rewrite_position_deletes(**how), lambda found: found),
}
SERVICES: dict[str, Callable[..., frazil.Commit]] = {
    "resolve": lambda t, **how: t.resolve_deletes(**how),
    "regroup": lambda t, **how: t.rewrite_position_deletes(**how),
}


def with_deletes(table: frazil.Table) -> Pairs:
    table.upsert(rows([3, 13], v=-1), mode="equality")
    table.delete("id = 5", mode="merge-on-read")
    table.delete("id = 6", mode="merge-on-read")
    return content(table)


@pytest.mark.parametrize("lineage", [True, False], ids=["lineage", "no lineage"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("service", SERVICES)
def test_what_lands_meanwhile_is_kept(table: frazil.Table, service: str, change: str, lineage: bool) -> None:
    if not lineage:
        table.set_properties({"frazil.lineage.max-runs": "0"})
    expected = with_deletes(table)
    act, after = CHANGES[change]
    SERVICES[service](table, retry=QUICK, on_phase=at(Phase.HEAD_READ, lambda: act(table)))
    assert content(table) == after(expected)
    assert files_of(table) == named_files(table)
    table.resolve_deletes()
    assert content(table) == after(expected)
    table.compact()
    assert content(table) == after(expected)
    assert deletes(table) == (0, 0)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("service", SERVICES)
def test_what_began_before_lands_after(table: frazil.Table, service: str, change: str) -> None:
    expected = with_deletes(table)
    act, after = CHANGES[change]
    act(table, retry=QUICK, on_phase=at(Phase.HEAD_READ, lambda: SERVICES[service](table)))
    assert content(table) == after(expected)
    table.compact()
    assert content(table) == after(expected)


@pytest.mark.parametrize("verb", ["delete by position", "update by position", "update by copying"])
def test_what_began_before_the_upsert_lands_after_its_resolution(
    lake: frazil.Lake, table: frazil.Table, verb: str
) -> None:
    """Its copies and marks are older than the equality delete, which is gone by then."""
    older = lake.transaction(isolation="snapshot")
    other = {"delete by position": "id in (2, 12)"}.get(verb, "id = 2")
    mine = older.table("s.t")
    if verb == "delete by position":
        mine.delete(other, mode="merge-on-read")
    else:
        mine.update({"v": "v + 1000"}, other, mode="copy-on-write" if "copying" in verb else "merge-on-read")
    table.upsert(rows([3, 13], v=-1), mode="equality")
    table.resolve_deletes()
    assert deletes(table)[1] == 0
    older.commit()
    expected = BEFORE | {3: -1, 13: -1}
    expected = (
        {key: v for key, v in expected.items() if key not in (2, 12)}
        if verb == "delete by position"
        else expected | {2: 1002}
    )
    assert content(table) == expected


def test_the_changes_of_a_table_do_not_show_it(table: frazil.Table) -> None:
    table.upsert(rows([3], v=-1), mode="equality")
    since = table.snapshot().snapshot_id  # type: ignore[union-attr]
    table.resolve_deletes()
    assert table.changes(since).to_arrow().num_rows == 0


# Position deletes


def test_position_deletes_are_put_together(table: frazil.Table) -> None:
    for each in (1, 2, 3, 11):
        table.delete(f"id = {each}", mode="merge-on-read")
    expected = content(table)
    assert deletes(table) == (4, 0)
    done = table.rewrite_position_deletes()
    assert (content(table), deletes(table)) == (expected, (2, 0))
    assert (done.files_added, done.files_removed) == (1, 3)
    assert not table.rewrite_position_deletes().changed
    assert table.rewrite_position_deletes(options={"rewrite-all": "true"}).files_removed == 2
    assert not table.rewrite_position_deletes(options={"min-input-files": "3"}).changed
    assert (content(table), deletes(table)) == (expected, (2, 0))
    with pytest.raises(frazil.InvalidInput, match="min-input-file'"):
        table.rewrite_position_deletes(options={"min-input-file": "3"})


def test_only_files_of_where_are_put_together(table: frazil.Table) -> None:
    for each in (1, 2, 11, 12):
        table.delete(f"id = {each}", mode="merge-on-read")
    table.rewrite_position_deletes("id < 10")
    assert deletes(table) == (3, 0)


# Dangling deletes


def test_a_delete_older_than_every_data_file_is_dangling(table: frazil.Table) -> None:
    table.upsert(rows([3], v=-1), mode="equality")
    assert dangling(_plan(table), _view(table)) == ()
    table.compact(options={"rewrite-all": "true", "min-input-files": "1"})
    assert deletes(table) == (0, 0)


def test_dangling_deletes_by_sequence_number() -> None:
    """An equality delete reaches older files only, a position delete files of its own number as well."""
    from types import SimpleNamespace

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    from frazil.model import DataFile, Entry, Status
    from frazil.read.plan import FileTask, ScanPlan

    specs = {0: PartitionSpec(), 1: PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"), spec_id=1)}
    view: Any = SimpleNamespace(metadata=SimpleNamespace(specs=lambda: specs))

    def data(number: int, part: str, spec_id: int = 1) -> FileTask:
        return FileTask(DataFile(f"{part}{number}", 1, 1, spec_id, (part,) if spec_id else ()), number, 1)

    def delete(name: str, number: int, content: Content, spec_id: int, part: str = "a", of: str | None = None) -> Entry:
        partition = (part,) if spec_id else ()
        file = DataFile(name, 1, 1, spec_id, partition, content, equality_ids=(1,), referenced_data_file=of)
        return Entry(Status.ADDED, file, 1, number, number)

    key, position = Content.EQUALITY_DELETES, Content.POSITION_DELETES
    entries = (
        delete("same number by key", 5, key, 1),
        delete("newer by key", 6, key, 1),
        delete("everywhere", 6, key, 0),
        delete("everywhere, too old", 3, key, 0),
        delete("other partition", 9, key, 1, "z"),
        delete("same number by position", 5, position, 1),
        delete("older by position", 4, position, 1),
        delete("named", 5, position, 1, of="a5"),
        delete("named, gone", 9, position, 1, of="nowhere"),
    )
    found = dangling(ScanPlan((data(5, "a"), data(7, "a"), data(3, "b")), entries), view)
    assert {each.file.file_path for each in found} == {
        "same number by key",
        "everywhere, too old",
        "other partition",
        "older by position",
        "named, gone",
    }
