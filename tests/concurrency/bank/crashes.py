"""Transfers whose process dies at a named moment. All three tables have the transfer afterwards, or none."""

from __future__ import annotations

import enum
import multiprocessing as mp
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import frazil
from concurrency.bank.tables import LEDGER, Transfer, create, load_everything, open_lake, rows_at, wrong
from concurrency.writers import Address
from frazil.commit.context import Phase
from frazil.transaction import Course, Transaction

_DIED = 77


class Moment(enum.StrEnum):
    STAGED = "before files of the commit"
    FIRST_METADATA = "after the first table's metadata file"
    SECOND_METADATA = "after the second table's metadata file"
    PREPARED = "before the database transaction"
    INSIDE = "inside the database transaction, after the first pointer"
    BEFORE_COMMIT = "inside the database transaction, after everything"
    SWAPPED = "after the database transaction"


HAS_LANDED = {Moment.SWAPPED}


@dataclass
class Report:
    rounds: Counter[Moment] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [f"{self.rounds.total()} crashes in {self.seconds:.0f} s, {len(self.violations)} violations"]
        lines += [f"  {moment:60} {count:5}" for moment, count in sorted(self.rounds.items())]
        return "\n".join([*lines, *(f"VIOLATION {each}" for each in self.violations)])


def run_apart(address: Address, rounds: int) -> Report:
    """In a fresh process: writers are forked, and must not inherit what this process has open."""
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
        return pool.submit(_run, address, rounds).result()


def _run(address: Address, rounds: int) -> Report:
    report, began, fork = Report(), time.monotonic(), mp.get_context("fork")
    load_everything()
    _in_process(fork, create, address)
    answers = fork.Queue()
    for number in range(rounds):
        moment = list(Moment)[number % len(Moment)]
        writer = fork.Process(target=_die, args=(address, number, moment))
        writer.start()
        writer.join(60)
        if writer.exitcode != _DIED:
            report.violations.append(f"round {number}: the writer ended with {writer.exitcode}, {moment!s}")
        report.rounds[moment] += 1
        _in_process(fork, _judge, address, number, moment, answers)
        report.violations += answers.get(timeout=60)
        if report.violations:
            break
    report.seconds = time.monotonic() - began
    return report


def _in_process(fork: Any, target: Any, *arguments: Any) -> None:
    process = fork.Process(target=target, args=arguments)
    process.start()
    process.join()


def _die(address: Address, number: int, moment: Moment) -> None:
    lake, prepared = open_lake(address), [0]

    def on_phase(phase: Phase, _attempt: int) -> None:
        prepared[0] += phase is Phase.TABLE_PREPARED
        if (
            (moment is Moment.STAGED and phase is Phase.HEAD_READ)
            or (moment is Moment.FIRST_METADATA and prepared[0] == 1)
            or (moment is Moment.SECOND_METADATA and prepared[0] == 2)
            or (moment is Moment.PREPARED and phase is Phase.PREPARED)
        ):
            os._exit(_DIED)

    store: Any = lake.catalog.store  # type: ignore[attr-defined]
    if moment is Moment.INSIDE:
        _dies_after(store, "_set_pointer")
    elif moment is Moment.BEFORE_COMMIT:
        _dies_after(store, "_swap")
    elif moment is Moment.SWAPPED:
        _dies_after(store, "swap")
    transfer = Transfer.of(number)
    course = Course(before_pin=lambda _ident: None, on_phase=on_phase, is_named=True)
    with Transaction(
        lake, isolation="serializable", retry=None, commit_id=transfer.commit_id, course=course
    ) as transaction:
        transfer.run(transaction)


def _dies_after(store: Any, name: str) -> None:
    call = getattr(store, name)

    def die(*arguments: Any) -> None:
        call(*arguments)
        os._exit(_DIED)

    setattr(store, name, die)


def _judge(address: Address, number: int, moment: Moment, answers: Any) -> None:
    """Look at all tables, repeat the transfer under its commit id, and look again."""
    found: list[str] = []
    transfer = Transfer.of(number)
    try:
        with open_lake(address) as lake:
            for is_repeated in (False, True):
                if is_repeated:
                    lake.run(transfer.run, commit_id=transfer.commit_id)
                rows = rows_at(lake.snapshot())
                found += [f"round {number}, {moment!s}: {each}" for each in wrong(rows)]
                is_there = any(each["number"] == number for each in rows[LEDGER])
                if is_there is not (is_repeated or moment in HAS_LANDED):
                    found.append(f"round {number}, {moment!s}: the transfer is {'' if is_there else 'not '}there")
            if number % 20 == 19:
                for name in lake.tables():
                    lake.table(name).compact()
    except frazil.FrazilError as error:
        found.append(f"round {number}, {moment!s}: {type(error).__name__}: {error}")
    answers.put(found)
