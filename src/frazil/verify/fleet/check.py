"""Compares the table with the commits that were acknowledged to the jobs."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

import frazil
from frazil.table.sink import PREFIX, Mark
from frazil.verify.fleet.plan import CUSTOMERS, LOADED, ROWS_EACH, Plan, Report
from frazil.wording import counted


def findings(table: frazil.Table, plan: Plan, reports: Mapping[str, Report]) -> list[str]:
    """Every difference, in a sentence; none: no row was lost, duplicated or partly written."""
    rows = table.scan(columns=["writer", "n", "customer", "amount"]).to_arrow().to_pylist()
    by_writer: dict[str, dict[int, Any]] = collections.defaultdict(dict)
    found: list[str] = []
    for row in rows:
        mine = by_writer[row["writer"]]
        if row["n"] in mine:
            found.append(f"row {row['n']} of {row['writer']} exists twice")
        mine[row["n"]] = row
    for job, report in reports.items():
        found += [f"{job}: {failure}" for failure in report.failures]
        found += [] if report.done else [f"{job} did not finish"]
    found += _streams(table, plan, by_writer)
    found += _appended("micro-batch", plan.batch_rows, reports, by_writer)
    found += _appended("backfill", plan.backfill_rows, reports, by_writer)
    found += _loaded(reports, by_writer)
    found += _columns(table, reports)
    return found


def _streams(table: frazil.Table, plan: Plan, by_writer: Mapping[str, Mapping[int, Any]]) -> Iterator[str]:
    """A batch may be committed without an answer when the stream stops; the sink's mark counts it."""
    for number in range(plan.streams):
        job = f"stream-{number}"
        mark = Mark.parse(table.properties.get(f"{PREFIX}{job}"), job)
        batches = 0 if mark is None else mark.batch + 1
        yield from _same(job, set(range(batches * plan.stream_rows)), set(by_writer.get(job, ())))


def _appended(
    job: str, size: int, reports: Mapping[str, Report], by_writer: Mapping[str, Mapping[int, Any]]
) -> Iterator[str]:
    if job in reports:
        wanted = {n for number in reports[job].acknowledged for n in range(number * size, (number + 1) * size)}
        yield from _same(job, wanted, set(by_writer.get(job, ())))


def _loaded(reports: Mapping[str, Report], by_writer: Mapping[str, Mapping[int, Any]]) -> Iterator[str]:
    forgotten = set(reports["gdpr"].acknowledged) if "gdpr" in reports else set()
    added: collections.Counter[int] = collections.Counter()
    inserted: set[int] = set()
    for first, end, number in reports["merge"].acknowledged if "merge" in reports else ():
        added.update(range(first, end))
        inserted.add(number)
    there = by_writer.get(LOADED, {})
    stay = {n for n in range(CUSTOMERS * ROWS_EACH) if n // ROWS_EACH not in forgotten}
    yield from _same(LOADED, stay, set(there))
    wrong = [n for n, row in there.items() if row["amount"] != added[n]]
    if wrong:
        merges = counted(added[wrong[0]], "merge")
        yield f"{counted(len(wrong), 'row')} of the first load: the amount is wrong after {merges}"
    yield from _same("merge", inserted, set(by_writer.get("merge", ())))


def _columns(table: frazil.Table, reports: Mapping[str, Report]) -> Iterator[str]:
    if "schema" in reports:
        names = {field.name for field in table.schema.fields}
        yield from (f"the column {name} is missing" for name in reports["schema"].acknowledged if name not in names)


def _same(job: str, wanted: set[int], found: set[int]) -> Iterator[str]:
    if missing := wanted - found:
        yield f"{counted(len(missing), 'row')} of {job} missing, the first is {min(missing)}"
    if extra := found - wanted:
        yield f"{counted(len(extra), 'unacknowledged row')} of {job} found, the first is {min(extra)}"
