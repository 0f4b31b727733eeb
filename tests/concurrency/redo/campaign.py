"""One process makes statements, others append rows that match them, change other rows, or compact.

Every append and every statement must land. A statement is checked at its own snapshot, where it must have reached every
row that was committed before it; at the end the counts of all statements must explain all rows.
"""

from __future__ import annotations

import multiprocessing as mp
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import frazil
from concurrency.writers import Address, start

Verb = Literal["delete", "update", "overwrite", "merge"]
VERBS: tuple[Verb, ...] = ("delete", "update", "overwrite", "merge")
DDL = "id bigint not null, user_id bigint, v bigint"
USER, OTHER = 7, 8
OWN = 1_000_000
"""Ids of one appender."""
KEYS = 50
"""Ids that a merge writes, of every appender."""


@dataclass(frozen=True)
class Plan:
    verb: Verb
    statements: int
    appenders: int
    updaters: int = 0
    """Processes that change rows of another user."""
    compactors: int = 0
    engine: Literal["arrow", "spark"] = "arrow"
    """What runs the statements; the other processes run theirs on Arrow."""


@dataclass
class Report:
    plan: Plan
    errors: list[str] = field(default_factory=list)
    """Calls that failed, on either side."""
    wrong: list[str] = field(default_factory=list)
    """Statements that missed rows, and counts that do not explain the rows."""
    appends: int = 0
    redone: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    came: int = 0
    gone: int = 0
    updated: int = 0

    def __str__(self) -> str:
        took = sorted(self.seconds)
        return (
            f"{self.plan.verb} × {len(took)} on {self.plan.engine} beside {self.plan.appenders} appenders "
            f"({self.appends} appends): "
            f"{len(self.errors)} errors, {len(self.wrong)} wrong, redone {sum(self.redone)} times "
            f"(most {max(self.redone, default=0)})"
            + (f", median {statistics.median(took) * 1000:.0f} ms, longest {took[-1] * 1000:.0f} ms" if took else "")
        )


def create(address: Address) -> None:
    with frazil.connect(address.uri, warehouse=address.warehouse) as lake:
        lake.create_namespace("ns")
        table = lake.create_table("ns.t", DDL)
        table.append([{"id": -each, "user_id": OTHER, "v": 0} for each in range(1, 201)])


# The processes beside the statements


def append_until(address: Address, number: int, stop: Any, answers: Any) -> None:
    table, count = address.open(), 0
    try:
        while not stop.is_set():
            row = {"id": number * OWN + count % (2 * KEYS), "user_id": USER, "v": 0}
            table.append([row], on_deleted="keep")
            count += 1
        answers.put(("appended", count, ""))
    except BaseException as error:
        answers.put(("appended", count, f"{type(error).__name__}: {error}"))
        raise


def update_until(address: Address, number: int, stop: Any, answers: Any) -> None:
    _repeat(address, stop, answers, lambda table: table.update({"v": "v + 1"}, f"user_id = {OTHER} and id = {-number}"))


def compact_until(address: Address, number: int, stop: Any, answers: Any) -> None:
    _repeat(address, stop, answers, lambda table: table.compact())


def _repeat(address: Address, stop: Any, answers: Any, call: Any) -> None:
    table, error = address.open(), ""
    try:
        while not stop.is_set():
            call(table)
    except frazil.FrazilError as found:
        error = f"{type(found).__name__}: {found}"
    answers.put(("repeated", 0, error))


# The statements


def run(address: Address, plan: Plan, patience_s: float = 300) -> Report:
    create(address)
    context, report = mp.get_context("spawn"), Report(plan)
    stop, answers = context.Event(), context.Queue()
    jobs = [*[append_until] * plan.appenders, *[update_until] * plan.updaters, *[compact_until] * plan.compactors]
    processes = [start(job, address, number, stop, answers) for number, job in enumerate(jobs, 1)]
    table = address.open()
    if plan.engine == "spark":
        # Deletes, updates and merges run there; an overwrite of Arrow rows does not.
        table._lake.spark = frazil.spark()
    try:
        _wait_for_rows(table, plan.appenders, patience_s)
        for number in range(1, plan.statements + 1):
            _statement(table, plan, number, report)
    finally:
        stop.set()
    for _ in processes:
        kind, count, error = answers.get(timeout=patience_s)
        report.appends += count if kind == "appended" else 0
        report.errors += [error] if error else []
    for process in processes:
        process.join(60)
    _check_end(table, report)
    table._lake.close()
    return report


def _wait_for_rows(table: frazil.Table, appenders: int, patience_s: float) -> None:
    """Until every appender has begun."""
    end = time.monotonic() + patience_s
    while len({each // OWN for each in _ids(table)}) < appenders:
        assert time.monotonic() < end, "the appenders did not begin"


def _ids(table: frazil.Table) -> list[Any]:
    found: list[Any] = table.scan(where=f"user_id = {USER}", columns=["id"]).to_arrow()["id"].to_pylist()
    return found


def _statement(table: frazil.Table, plan: Plan, number: int, report: Report) -> None:
    began = time.monotonic()
    try:
        done = _call(table, plan, number)
    except frazil.FrazilError as error:
        report.errors.append(f"{plan.verb} {number}: {type(error).__name__}: {error}")
        return
    report.seconds.append(time.monotonic() - began)
    report.redone.append(done.redone)
    report.came += done.rows_inserted
    report.gone += done.rows_deleted
    report.updated += done.rows_updated
    if done.changed:
        _check_at(table, plan, number, done, report)


def _call(table: frazil.Table, plan: Plan, number: int) -> frazil.Commit:
    if plan.verb == "delete":
        return table.delete(f"user_id = {USER}")
    if plan.verb == "update":
        return table.update({"v": "v + 1"}, f"user_id = {USER}")
    if plan.verb == "overwrite":
        return table.overwrite([{"id": number, "user_id": USER, "v": number}], f"user_id = {USER}")
    ids = [each * OWN + key for each in range(1, plan.appenders + 1) for key in range(KEYS)]
    source = [{"id": each, "user_id": USER, "v": number} for each in ids]
    return table.merge(source, on=["id"]).when_matched_update_all().when_not_matched_insert_all().execute()


def _check_at(table: frazil.Table, plan: Plan, number: int, done: frazil.Commit, report: Report) -> None:
    """The statement has reached every row of its own snapshot."""
    rows = table.scan(where=f"user_id = {USER}", snapshot=done.snapshot_id).to_arrow().to_pylist()
    if plan.verb == "delete":
        missed = rows
    elif plan.verb == "update":
        missed = [row for row in rows if row["v"] == 0]
    elif plan.verb == "overwrite":
        missed = [row for row in rows if row["id"] != number]
    else:
        missed = [row for row in rows if row["id"] % OWN < KEYS and row["v"] != number]
    if missed:
        report.wrong.append(f"{plan.verb} {number} missed {missed[:3]} at {done.snapshot_id}")


def _check_end(table: frazil.Table, report: Report) -> None:
    """The counts explain the rows."""
    rows = table.scan(where=f"user_id = {USER}").to_arrow().to_pylist()
    if len(rows) != report.appends + report.came - report.gone:
        report.wrong.append(f"{len(rows)} rows: {report.appends} + {report.came} came, {report.gone} went")
    if report.plan.verb == "update" and sum(row["v"] for row in rows) != report.updated:
        report.wrong.append(f"the values add up to {sum(row['v'] for row in rows)}, updated {report.updated}")
    others = table.scan(where=f"user_id = {OTHER}").count()
    if others != 200:
        report.wrong.append(f"{others} rows of the other user")
