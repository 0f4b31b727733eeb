"""What it costs to check a write against 1,000 commits that landed since its base, on SQLite and on Postgres.

A table of ten columns, partitioned by one of them. A delete and an update are staged; then 1,000 commits of others
land: appends, 50 of them beside the same rows where only column bounds tell them apart, and 50 deletes, updates,
upserts and compactions elsewhere. None of them conflicts. ``cold``: a lake opened anew, which remembers nothing;
``warm``: the same lake checks once more. The head is read before the clock starts. A query is one call of
``ChangeLog.find``, which is one SELECT.
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.types import LongType, StringType

import frazil
from common import Place, Report, places
from frazil.catalog.base import ChangeRecord
from frazil.commit import summaries
from frazil.commit.checking import examined
from frazil.commit.conflicts import head_conflicts
from frazil.commit.context import CommitContext
from frazil.commit.history import history
from frazil.commit.inspection import FullInspector
from frazil.commit.loop import commit
from frazil.commit.operations import Identity, Kind, Write
from frazil.dml.append import append
from frazil.dml.delete import delete
from frazil.dml.update import update
from frazil.dml.view import COPY_ON_WRITE, MERGE_ON_READ, Settings, View
from frazil.expr import parse_filter
from frazil.format.metadata import TableMetadata
from frazil.model import Change, Ident, Predicate
from frazil.runtime import SYSTEM

NAME = "bench.checks"
MINE, THEIRS, OTHERS = "mine", "theirs", 20
FILES, ROWS, HALF = 24, 100, 50
FAR = 10_000_000
TYPES = {
    "id": pa.int64(),
    "region": pa.string(),
    "status": pa.string(),
    "day": pa.date32(),
    "at": pa.timestamp("us"),
    "n": pa.int32(),
    "x": pa.float64(),
    "y": pa.float64(),
    "flag": pa.bool_(),
    "note": pa.string(),
}
COLUMNS = pa.schema([pa.field(name, kind, nullable=name != "id") for name, kind in TYPES.items()])
ID, REGION = 1, 2


def rows(first: int, count: int, region: str) -> pa.Table:
    numbers = range(first, first + count)
    columns: dict[str, list[Any]] = {
        "id": list(numbers),
        "region": [region] * count,
        "status": ["new"] * count,
        "day": [each % 1000 for each in numbers],
        "at": [each * 1000 for each in numbers],
        "n": [each % 97 for each in numbers],
        "x": [each / 7 for each in numbers],
        "y": [each / 3 for each in numbers],
        "flag": [each % 2 == 0 for each in numbers],
        "note": [f"note {each}" for each in numbers],
    }
    return pa.table(columns, schema=COLUMNS)


# The table and what happens to it


def connected(place: Place) -> frazil.Lake:
    return frazil.connect(place.frazil_uri, warehouse=place.warehouse, name="frazil")


def set_up(lake: frazil.Lake) -> None:
    """My rows in a partition of their own, one file each; a file in every partition that others work on."""
    lake.create_namespace("bench", exists_ok=True)
    table = lake.create_table(NAME, COLUMNS, partition_by=["region"], keys=["id"])
    # An upsert by key wants a spec without partitions beside the other; it makes it the first time.
    table.upsert(rows(FAR * 9, 1, THEIRS))
    for number in range(FILES):
        table.append(rows(number * ROWS, ROWS, MINE))
    for half in range(2):
        parts = [rows(FAR * 2 + part * ROWS + half * HALF, HALF, f"{THEIRS}-{part}") for part in range(OTHERS)]
        table.append(pa.concat_tables(parts))


class Others:
    """Everybody else: mostly appends of one file that is already there, now and then a real change of rows."""

    def __init__(self, lake: frazil.Lake) -> None:
        self._lake = lake
        self._table = lake.table(NAME)
        self._context = CommitContext(lake.catalog, lake.storage, Ident.parse(NAME))
        view = view_of(lake, self._metadata())
        self._like = view.tasks(parse_filter(f"region = '{MINE}'", view.schema))[0].file
        self._names = {field.field_id: field.name for field in view.schema.fields}

    def _metadata(self) -> TableMetadata:
        return self._lake.catalog.load(self._context.ident).metadata

    def commit(self, number: int) -> None:
        if number % 20 == 10:
            self._change_rows(number // 20)
        else:
            # One of twenty lies in my own partition, so that its bounds have to tell.
            self._append(number, MINE if number % 20 == 5 else f"{THEIRS}-new-{number % 50}")

    def _append(self, number: int, region: str) -> None:
        metadata = self._metadata()
        first = FAR * 3 + number * ROWS
        file = replace(
            self._like,
            file_path=f"{metadata.location}/data/{uuid.uuid4()}.parquet",
            partition=(region,),
            lower_bounds={**self._like.lower_bounds, **_bounds(first, region)},
            upper_bounds={**self._like.upper_bounds, **_bounds(first + ROWS - 1, region)},
        )
        write = Write(Kind.APPEND, metadata.uuid, added=(file,), written_ids=self._names)
        commit(self._context, write, Identity(str(uuid.uuid4()), "bench", given=False), frazil.Retry())

    def _change_rows(self, turn: int) -> None:
        part = turn % OTHERS
        region, first = f"{THEIRS}-{part}", FAR * 2 + part * ROWS
        which = f"region = '{region}' AND id = {first + turn // OTHERS * 5 + turn % 5}"
        acts: tuple[Callable[[], object], ...] = (
            lambda: self._table.delete(which),
            lambda: self._table.delete(which, mode=MERGE_ON_READ),
            lambda: self._table.update({"status": "'done'"}, which),
            lambda: self._table.upsert(rows(FAR * 4 + turn, 1, region)),
            lambda: self._table.compact(f"region = '{region}'"),
        )
        acts[(turn + turn // OTHERS) % len(acts)]()


def _bounds(number: int, region: str) -> dict[int, bytes]:
    return {ID: to_bytes(LongType(), number), REGION: to_bytes(StringType(), region)}


# What is measured


def view_of(lake: frazil.Lake, metadata: TableMetadata) -> View:
    return View(lake.storage, SYSTEM, metadata, "main", NAME)


def staged(lake: frazil.Lake, base: TableMetadata, verb: str, number: int) -> Write:
    """An operation on half the rows of one of my files, made on the table as it was before the others came."""
    view = view_of(lake, base)
    first = number * ROWS
    where = parse_filter(f"region = '{MINE}' AND id >= {first} AND id < {first + HALF}", view.schema)
    if verb == "delete":
        return delete(view, where, Settings(), COPY_ON_WRITE)
    if verb == "update":
        return update(view, {"status": "'done'"}, where, Settings(), MERGE_ON_READ)
    return append(view, rows(FAR * 5 + first, ROWS, MINE), Settings(on_deleted="abort"))


@dataclass(slots=True)
class Work:
    """What a check asked for."""

    queries: int = 0
    files: int = 0


@contextmanager
def watched(lake: frazil.Lake) -> Iterator[Work]:
    """Counts queries for changes, and files that are read."""
    work = Work()
    log = lake.catalog.changes
    assert log is not None
    storage, find = lake.storage, log.find
    read, open_input = storage.read, storage.open_input

    def counted_find(table_uuid: str, after: int, up_to: int) -> list[ChangeRecord]:
        work.queries += 1
        return find(table_uuid, after, up_to)

    def counted_read(path: str) -> bytes:
        work.files += 1
        return read(path)

    def counted_open(path: str) -> pa.NativeFile:
        work.files += 1
        return open_input(path)

    with (
        _replaced(log, find=counted_find),
        _replaced(storage, read=counted_read, open_input=counted_open),
    ):
        yield work


@contextmanager
def _replaced(target: object, **methods: Callable[..., object]) -> Iterator[None]:
    for name, method in methods.items():
        setattr(target, name, method)
    try:
        yield
    finally:
        for name in methods:
            delattr(target, name)


def check(lake: frazil.Lake, write: Write, head: TableMetadata) -> int:
    """What every attempt of a commit does before it writes anything; returns how many changes it looked at."""

    def kept(after: int, up_to: int) -> Mapping[int, Change | Predicate]:
        assert lake.catalog.changes is not None
        return summaries.from_records(lake.catalog.changes.find(head.uuid, after, up_to))

    found = head_conflicts(write, head)
    since = history(lake.storage, head, write.branch, write.base, kept)
    _, more = examined(write, since, FullInspector(lake.storage, write).at(head, head), head)
    assert found == more == (), (found, more)
    return len(since.changes)


def timed(lake: frazil.Lake, write: Write) -> tuple[float, Work, int]:
    head = lake.catalog.load(Ident.parse(NAME)).metadata
    with watched(lake) as work:
        began = time.perf_counter()
        changes = check(lake, write, head)
        cost = (time.perf_counter() - began) * 1000
    return cost, work, changes


def measure(place: Place, writes: Mapping[str, Write], report: Report, how: str, times: int) -> float:
    """Checks with a memory that is empty and one that is not; returns the milliseconds of the dearest warm one."""
    warm: list[float] = []
    asked: list[Work] = []
    for verb, write in writes.items():
        first: list[float] = []
        again: list[float] = []
        for _ in range(times):
            lake = connected(place)
            cost, work, changes = timed(lake, write)
            first.append(cost)
            asked.append(work)
            again += [timed(lake, write)[0] for _ in range(5)]
            lake.close()
        warm.append(statistics.median(again))
        label = f"{place.kind}: {verb} checked against {changes} commits{how}"
        report.add(f"{label}, cold", statistics.median(first), "ms")
        report.add(f"{label}, warm", warm[-1], "ms")
    report.add(f"{place.kind}: queries of a cold check{how}", max(work.queries for work in asked))
    report.add(f"{place.kind}: files read by a cold check{how}", max(work.files for work in asked))
    return max(warm)


def whole_commits(place: Place, base: TableMetadata, report: Report, times: int) -> None:
    """The commit itself, of operations whose base is as old: a cold one, and a warm one after it."""
    lake = connected(place)
    for number, verb in enumerate(("delete", "update")):
        first: list[float] = []
        again: list[float] = []
        for turn in range(times):
            mine = [staged(lake, base, verb, 2 + (number * times + turn) * 2 + each) for each in range(2)]
            fresh = connected(place)
            context = CommitContext(fresh.catalog, fresh.storage, Ident.parse(NAME))
            for write, costs in zip(mine, (first, again), strict=True):
                began = time.perf_counter()
                commit(context, write, Identity(str(uuid.uuid4()), "bench", given=False), frazil.Retry())
                costs.append((time.perf_counter() - began) * 1000)
            fresh.close()
        report.add(f"{place.kind}: whole commit of the {verb}, cold", statistics.median(first), "ms")
        report.add(f"{place.kind}: whole commit of the {verb}, warm", statistics.median(again), "ms")
    lake.close()


def checks(place: Place, report: Report, commits: int, times: int) -> None:
    lake = connected(place)
    set_up(lake)
    base = lake.catalog.load(Ident.parse(NAME)).metadata
    writes = {verb: staged(lake, base, verb, 0) for verb in ("delete", "update", "append")}
    others = Others(lake)
    number = 0
    # Some compactions find nothing to do, and then there is no snapshot.
    while lake.catalog.load(Ident.parse(NAME)).metadata.last_sequence_number < base.last_sequence_number + commits:
        others.commit(number)
        number += 1
    lake.close()
    warm = measure(place, writes, report, "", times)
    report.ratio(f"{place.kind}: 100 ms over the dearest warm check", 100, warm, wanted=1)
    whole_commits(place, base, report, 3)
    lake = connected(place)
    assert lake.catalog.changes is not None
    lake.catalog.changes.forget(base.uuid)
    lake.close()
    without = {verb: writes[verb] for verb in ("delete", "update")}
    measure(place, without, report, " without summaries", max(times // 2, 1))


def main(quick: bool) -> None:
    report = Report("checks")
    with places("sqlite", "postgres") as found:
        for place in found:
            print(f"{place.kind}: checks")
            checks(place, report, 200 if quick else 1000, 2 if quick else 5)
    report.save()


if __name__ == "__main__":
    main("--quick" in sys.argv)
