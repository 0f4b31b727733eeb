"""Processes that transfer, others that audit at instants, and a compaction now and then. Writers are killed."""

from __future__ import annotations

import multiprocessing as mp
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psycopg

import frazil
from concurrency.bank.tables import LEDGER, RETRY, SIDES, Transfer, create, load_everything, open_lake, rows_at, wrong
from concurrency.writers import Address

_FAR = 1_000_000
"""Transfers of one writer."""
_COMPACT_S = 3.0


@dataclass(frozen=True)
class Plan:
    address: Address
    folder: Path
    """For what writers acknowledge; new."""
    seconds: float
    writers: int = 16
    auditors: int = 2
    kills_per_s: float = 0.5
    cuts_per_s: float = 0.0
    """Connections of the database that are ended by its server."""
    seed: int = 0


@dataclass
class Report:
    transfers: int = 0
    audits: int = 0
    kills: int = 0
    cuts: int = 0
    longest_s: float = 0.0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.transfers / self.seconds if self.seconds else 0.0
        disturbed = f"{self.kills} kills, {self.cuts} connections cut"
        return (
            f"{self.transfers} transfers in {self.seconds:.0f} s ({rate:.1f}/s), {self.audits} audits, {disturbed}, "
            f"longest transfer {self.longest_s:.1f} s, {len(self.violations)} violations"
        )


# The processes


def transfer_until(plan: Plan, writer: int, stop: Any) -> None:
    """Each transfer has a commit id; a writer begins with the one after the last that it acknowledged."""
    path = _acks(plan, writer)
    done = path.read_text().split() if path.exists() else []
    number = writer * _FAR + len(done) // 2
    with open_lake(plan.address) as lake, path.open("a") as acks:
        while not stop.is_set():
            transfer, began = Transfer.of(number), time.monotonic()
            _through_faults(lambda transfer=transfer: lake.run(transfer.run, retry=RETRY, commit_id=transfer.commit_id))  # type: ignore[misc]
            acks.write(f"{number} {time.monotonic() - began:.3f}\n")
            acks.flush()
            number += 1


def _through_faults(call: Callable[[], object]) -> None:
    """A connection that was cut is an error for the caller, who repeats the transfer under its commit id."""
    while True:
        try:
            call()
        except (frazil.CatalogUnavailable, frazil.CommitUnknown, frazil.RetriesExhausted):
            time.sleep(0.05)
        else:
            return


def audit_until(plan: Plan, stop: Any, answers: Any) -> None:
    count = 0
    found: list[str] = []
    with open_lake(plan.address) as lake:
        while not stop.is_set() and not found:
            instant: dict[str, list[dict[str, Any]]] = {}
            _through_faults(lambda instant=instant: instant.update(rows_at(lake.snapshot())))  # type: ignore[misc]
            found = list(wrong(instant))
            count += 1
    answers.put((count, found))


def compact_until(plan: Plan, stop: Any) -> None:
    with open_lake(plan.address) as lake:
        while not stop.wait(_COMPACT_S):
            for name in (*SIDES, LEDGER):
                _through_faults(lambda name=name: lake.table(name).compact())  # type: ignore[misc]


def _acks(plan: Plan, writer: int) -> Path:
    return plan.folder / f"acknowledged-{writer}"


# The campaign


def run_apart(plan: Plan) -> Report:
    """In a fresh process: writers are forked, and must not inherit what this process has open."""
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
        return pool.submit(_run, plan).result()


def _run(plan: Plan) -> Report:
    context, report, chance = mp.get_context("fork"), Report(), random.Random(plan.seed)
    plan.folder.mkdir(parents=True, exist_ok=True)
    load_everything()
    first = context.Process(target=create, args=(plan.address,))
    first.start()
    first.join()
    stop, answers = context.Event(), context.Queue()

    def started(target: Any, *arguments: Any) -> BaseProcess:
        process = context.Process(target=target, args=arguments)
        process.start()
        return process

    writers = [started(transfer_until, plan, writer, stop) for writer in range(plan.writers)]
    others = [started(audit_until, plan, stop, answers) for _ in range(plan.auditors)]
    others.append(started(compact_until, plan, stop))
    try:
        _wait_for(lambda: all(_acks(plan, each).exists() for each in range(plan.writers)), "every writer begins", 300)
        began = time.monotonic()
        while (now := time.monotonic()) < began + plan.seconds:
            time.sleep(0.05)
            if chance.random() < plan.kills_per_s * (time.monotonic() - now):
                writer = chance.randrange(plan.writers)
                writers[writer].kill()
                writers[writer].join()
                writers[writer] = started(transfer_until, plan, writer, stop)
                report.kills += 1
            if chance.random() < plan.cuts_per_s * (time.monotonic() - now):
                report.cuts += _cut(plan.address.uri)
    finally:
        stop.set()
    for _ in range(plan.auditors):
        count, found = answers.get(timeout=300)
        report.audits += count
        report.violations += found
    for process in (*writers, *others):
        process.join(300)
        if process.exitcode:
            report.violations.append(f"a process ended with the exit code {process.exitcode}")
    report.seconds = time.monotonic() - began
    _judge(plan, report)
    return report


def _wait_for(look: Callable[[], bool], what: str, patience_s: float) -> None:
    end = time.monotonic() + patience_s
    while not look():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {patience_s:.0f} s in vain until {what}")
        time.sleep(0.05)


def _cut(uri: str) -> int:
    """End one connection of a writer, wherever it is."""
    sql = (
        "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity "
        "WHERE application_name = 'frazil' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) AS one"
    )
    with psycopg.connect(uri, autocommit=True) as connection:
        row = connection.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


def _judge(plan: Plan, report: Report) -> None:
    """The end: the last instant holds, and every acknowledged transfer is in the ledger once."""
    with open_lake(plan.address) as lake:
        rows = rows_at(lake.snapshot())
    report.violations += wrong(rows)
    landed = {each["number"] for each in rows[LEDGER]}
    report.transfers = len(landed)
    for writer in range(plan.writers):
        words = _acks(plan, writer).read_text().split()
        if lost := [each for each in map(int, words[::2]) if each not in landed]:
            report.violations.append(f"acknowledged transfers are missing: {lost[:5]}")
        report.longest_s = max([report.longest_s, *map(float, words[1::2])])
