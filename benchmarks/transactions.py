"""Transactions over three tables: what one costs beside a commit to one table, and 8 processes beside DuckLake.

    python benchmarks/transactions.py --seconds 15      make bench-transactions

*cost*: one writer appends ten rows to one table, or ten rows to each of three tables in one transaction, in turn; the
medians. *rate*: each process has an account of its own in two tables. Until the time is up it moves money from the one
to the other and notes that in a third table: two updates and an insert, in one transaction. At the end each account has
what the acknowledged transactions made of it, and the third table names each of them once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Protocol

import frazil
from common import TEN_ROWS, Place, Report, places
from contention import Server
from peers.contend import OPEN_S, ducklake

WRITERS, START, NUMBERS = 8, 1_000_000, 1_000_000
RATE_WANTED, COST_WANTED = 30, 2.2
TABLES = ("left", "right", "ledger")
Found = tuple[dict[int, int], dict[int, int], list[int]]
"""The balances of both tables, and the numbers in the ledger."""


# What one transaction costs


def cost(report: Report, rounds: int) -> None:
    with places("sqlite", "postgres") as found:
        for place in found:
            one, three = medians(place, rounds)
            report.add(f"{place.kind}: append to one table", 1000 * one, "ms")
            report.add(f"{place.kind}: transaction of appends to three tables", 1000 * three, "ms")
            report.at_most(f"{place.kind}: cost at three tables over cost at one", three / one, COST_WANTED)


def medians(place: Place, rounds: int) -> tuple[float, float]:
    with frazil.connect(place.frazil_uri, warehouse=place.warehouse) as lake:
        lake.create_namespace("cost")
        names = [f"cost.{each}" for each in TABLES]
        for name in names:
            lake.create_table(name, TEN_ROWS.schema)

        def one() -> None:
            lake.table(names[0]).append(TEN_ROWS)

        def three() -> None:
            with lake.transaction() as tx:
                for name in names:
                    tx.table(name).append(TEN_ROWS)

        took: dict[Callable[[], None], list[float]] = {one: [], three: []}
        for number in range(rounds + 2):
            for act, seconds in took.items():
                began = time.perf_counter()
                act()
                if number >= 2:
                    # The first ones load what the others find.
                    seconds.append(time.perf_counter() - began)
        return statistics.median(took[one]), statistics.median(took[three])


# Many processes


@dataclass(frozen=True)
class Request:
    """What a writer's process needs."""

    system: str
    uri: str
    folder: str
    seconds: float

    @property
    def warehouse(self) -> str:
        return f"{self.folder}/warehouse"


class System(Protocol):
    """One system under the workload."""

    def create(self) -> None: ...

    def mover(self) -> Callable[[int, int], object]:
        """Called in each writer's process: what moves money between a writer's accounts, under a number."""
        ...

    def found(self) -> Found: ...


@dataclass(frozen=True)
class Frazil:
    request: Request

    def _lake(self) -> frazil.Lake:
        return frazil.connect(self.request.uri, warehouse=f"file://{self.request.warehouse}")

    def create(self) -> None:
        with self._lake() as lake:
            lake.create_namespace("bank")
            for name in TABLES[:2]:
                table = lake.create_table(f"bank.{name}", "id bigint not null, balance bigint", keys=["id"])
                table.append([{"id": each, "balance": START} for each in range(WRITERS)])
            lake.create_table("bank.ledger", "number bigint not null, id bigint")

    def mover(self) -> Callable[[int, int], object]:
        lake = self._lake()

        def move(writer: int, number: int) -> None:
            with lake.transaction() as tx:
                tx.table("bank.left").update({"balance": "balance - 1"}, f"id = {writer}")
                tx.table("bank.right").update({"balance": "balance + 1"}, f"id = {writer}")
                tx.table("bank.ledger").append([{"number": number, "id": writer}])

        return move

    def found(self) -> Found:
        with self._lake() as lake:
            instant = lake.snapshot()
            left, right = (
                {each["id"]: each["balance"] for each in instant.table(f"bank.{name}").scan().to_arrow().to_pylist()}
                for name in TABLES[:2]
            )
            numbers: list[Any] = instant.table("bank.ledger").scan().to_arrow()["number"].to_pylist()
            return left, right, numbers


@dataclass(frozen=True)
class DuckLake:
    """With rows in Parquet files, or (``inlined``) in the database, its default for few rows."""

    request: Request

    def _connection(self, *, install: bool = False) -> Any:
        rows = 10 if self.request.system.endswith("inlined") else 0
        options = f"data_path '{self.request.warehouse}', data_inlining_row_limit {rows}"
        return ducklake(self.request.folder, self.request.uri, options, install=install)

    def create(self) -> None:
        connection = self._connection(install=True)
        for name in TABLES[:2]:
            connection.execute(
                f"create table lake.{name} as select range as id, {START} as balance from range({WRITERS})"
            )
        connection.execute("create table lake.ledger (number bigint, id bigint)")

    def mover(self) -> Callable[[int, int], object]:
        connection = self._connection()

        def move(writer: int, number: int) -> None:
            connection.execute("begin")
            try:
                connection.execute(f"update lake.left set balance = balance - 1 where id = {writer}")
                connection.execute(f"update lake.right set balance = balance + 1 where id = {writer}")
                connection.execute(f"insert into lake.ledger values ({number}, {writer})")
                connection.execute("commit")
            except Exception:
                with contextlib.suppress(Exception):
                    connection.execute("rollback")
                raise

        return move

    def found(self) -> Found:
        connection = self._connection()
        left, right = (
            dict(connection.execute(f"select id, balance from lake.{name}").fetchall()) for name in TABLES[:2]
        )
        numbers = connection.execute("select number from lake.ledger").fetchall()
        return left, right, [number for (number,) in numbers]


def system_of(request: Request) -> System:
    return Frazil(request) if request.system == "frazil" else DuckLake(request)


def write(request: Request, writer: int, barrier: Barrier) -> None:
    """One process: its outcomes go to a file of its own."""
    logging.disable(logging.CRITICAL)
    move = system_of(request).mover()
    outcomes: list[tuple[int, str]] = []
    # Not counted: it loads and creates what later ones find. It is judged like the others.
    _note(outcomes, move, writer, writer * NUMBERS)
    uncounted = len(outcomes)
    barrier.wait(OPEN_S)
    end = time.monotonic() + request.seconds
    while time.monotonic() < end:
        _note(outcomes, move, writer, writer * NUMBERS + len(outcomes))
    answer = {"uncounted": uncounted, "outcomes": outcomes}
    (Path(request.folder) / f"answer-{writer}.json").write_text(json.dumps(answer))


def _note(outcomes: list[tuple[int, str]], move: Callable[[int, int], object], writer: int, number: int) -> None:
    try:
        move(writer, number)
        outcomes.append((number, ""))
    except Exception as error:
        outcomes.append((number, type(error).__name__))


def rate(report: Report, name: str, request: Request) -> float:
    """Transactions per second, and how many were not what they should be."""
    fork = multiprocessing.get_context("spawn")
    barrier = fork.Barrier(WRITERS)
    crew = [fork.Process(target=write, args=(request, number, barrier)) for number in range(WRITERS)]
    _apart(request, "create")
    for process in crew:
        process.start()
    for process in crew:
        process.join()
        assert process.exitcode == 0, f"a writer of {name} ended with {process.exitcode}"
    answers = [json.loads((Path(request.folder) / f"answer-{each}.json").read_text()) for each in range(WRITERS)]
    counted = [problem for each in answers for _, problem in each["outcomes"][each["uncounted"] :]]
    done, failed = counted.count(""), sum(map(bool, counted))
    report.add(f"{WRITERS} processes, three tables: {name}", done / request.seconds, "transactions/s")
    report.add(f"{WRITERS} processes, three tables: {name}, failed", failed)
    report.add(f"{WRITERS} processes, three tables: {name}, wrong", len(wrong(answers, _apart(request, "found"))))
    return done / request.seconds


def wrong(answers: Sequence[dict[str, Any]], found: Found) -> list[str]:
    """What is not as the acknowledged transactions have it."""
    left, right, ledger = found
    problems = []
    for writer, answer in enumerate(answers):
        done = {number for number, problem in answer["outcomes"] if not problem}
        noted = [number for number in ledger if number // NUMBERS == writer]
        if sorted(noted) != sorted(done):
            problems.append(f"the ledger of {writer}")
        if (START - left[writer], right[writer] - START) != (len(noted), len(noted)):
            problems.append(f"the accounts of {writer}")
    return problems


def _apart(request: Request, method: str) -> Any:
    """Run in a process of its own, as runtimes do not survive in this one beside others."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_call, (request, method))


def _call(request: Request, method: str) -> Any:
    logging.disable(logging.CRITICAL)
    return getattr(system_of(request), method)()


@contextlib.contextmanager
def requests(seconds: float, systems: Sequence[str]) -> Iterator[list[tuple[str, Request]]]:
    work, server = Path(tempfile.mkdtemp(prefix="frazil-bench-")), Server()
    try:
        found = []
        for name in systems:
            system, _, database = name.rpartition("-")
            folder = work / name
            (folder / "warehouse").mkdir(parents=True)
            uri = f"sqlite:///{folder}/catalog.db"
            if database == "postgres":
                uri = server.create_database(name.replace("-", "_"))
            found.append((name, Request(system, uri, str(folder), seconds)))
        yield found
    finally:
        server.close()
        shutil.rmtree(work, ignore_errors=True)


SYSTEMS = ("frazil-postgres", "frazil-sqlite", "ducklake-postgres", "ducklake-inlined-postgres")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    given = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    report = Report("transactions")
    cost(report, given.rounds)
    rates: dict[str, float] = {}
    with requests(given.seconds, given.systems) as found:
        for name, request in found:
            rates[name] = rate(report, name, request)
    for name in ("frazil-postgres", "frazil-sqlite"):
        if name in rates:
            key = f"{WRITERS} processes, three tables: {name}, transactions/s over {RATE_WANTED}"
            report.ratio(key, rates[name], RATE_WANTED, wanted=1)
    peers = [each for name, each in rates.items() if name.startswith("ducklake")]
    if peers and "frazil-postgres" in rates:
        key = f"{WRITERS} processes, three tables: frazil-postgres over the best of DuckLake"
        report.ratio(key, rates["frazil-postgres"], max(*peers, 0.01), wanted=1)
    report.save()


if __name__ == "__main__":
    main()
