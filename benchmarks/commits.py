"""One writer: commits per second beside PyIceberg, and what a commit costs when history is long.

Two kinds of work, each on SQLite and on Postgres, the two libraries taking turns in rounds:
``files``: a file that is already there is committed (metadata alone); ``rows``: ten rows are written and committed.
Frazil fsyncs every file it references before the swap; PyIceberg does not.
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from collections.abc import Callable

import frazil
from common import TEN_ROWS, Place, Report, places
from frazil.commit.context import CommitContext
from frazil.commit.loop import commit
from frazil.commit.operations import Identity, Kind, Write
from frazil.model import DataFile, Ident
from peers.pyiceberg_files import their_file

Act = Callable[[], None]


def frazil_files(table: frazil.Table, lake: frazil.Lake) -> Act:
    context = CommitContext(lake.catalog, lake.storage, Ident.parse(table.name))
    head = lake.catalog.load(context.ident).metadata

    def act() -> None:
        path = f"{head.location}/data/{uuid.uuid4()}.parquet"
        file = DataFile(path, record_count=10, file_size_in_bytes=1000)
        operation = Write(Kind.APPEND, head.uuid, added=(file,), written_ids={1: "id", 2: "x"})
        commit(context, operation, Identity(str(uuid.uuid4()), "bench", given=False), frazil.Retry())

    return act


def pyiceberg_files(place: Place, name: str) -> Act:
    catalog = place.pyiceberg()

    def act() -> None:
        table = catalog.load_table(name)
        file = their_file(f"{table.location()}/data/{uuid.uuid4()}.parquet")
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(file)

    return act


def pyiceberg_rows(place: Place, name: str) -> Act:
    catalog = place.pyiceberg()

    def act() -> None:
        catalog.load_table(name).append(TEN_ROWS)

    return act


def rate(acts: dict[str, Act], rounds: int, per_round: int) -> dict[str, float]:
    """Commits per second of each, by the median of rounds in which they take turns."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    for act in acts.values():
        act()
    for _ in range(rounds):
        for name, act in acts.items():
            began = time.perf_counter()
            for _ in range(per_round):
                act()
            times[name].append(time.perf_counter() - began)
    return {name: per_round / statistics.median(found) for name, found in times.items()}


def single_writer(place: Place, report: Report, rounds: int) -> None:
    lake = frazil.connect(place.frazil_uri, warehouse=place.warehouse, name="frazil")
    lake.create_namespace("bench", exists_ok=True)
    tables = {kind: lake.create_table(f"bench.{kind}", TEN_ROWS.schema) for kind in ("fa", "fb", "ra", "rb")}
    files = rate(
        {"frazil": frazil_files(tables["fa"], lake), "pyiceberg": pyiceberg_files(place, "bench.fb")}, rounds, 15
    )
    rows = rate({"frazil": lambda: _append(tables["ra"]), "pyiceberg": pyiceberg_rows(place, "bench.rb")}, rounds, 15)
    for work, found in (("files", files), ("rows", rows)):
        for name, value in found.items():
            report.add(f"{place.kind}: {work}, {name}", value, "commits/s")
        report.ratio(f"{place.kind}: {work}, frazil over pyiceberg", found["frazil"], found["pyiceberg"], wanted=2)
    lake.close()


def _append(table: frazil.Table) -> None:
    table.append(TEN_ROWS)


def long_history(place: Place, report: Report, snapshots: int) -> None:
    """The cost of one commit around snapshot 10 and around snapshot 1,000, with the table's default settings."""
    lake = frazil.connect(place.frazil_uri, warehouse=place.warehouse, name="frazil")
    lake.create_namespace("bench", exists_ok=True)
    act = frazil_files(lake.create_table("bench.long", TEN_ROWS.schema), lake)
    costs: list[float] = []
    for _ in range(snapshots + 20):
        began = time.perf_counter()
        act()
        costs.append(time.perf_counter() - began)
    early = statistics.median(costs[5:25])
    late = statistics.median(costs[snapshots:])
    report.add(f"{place.kind}: commit at snapshot 10", early * 1000, "ms")
    report.add(f"{place.kind}: commit at snapshot {snapshots}", late * 1000, "ms")
    report.at_most(f"{place.kind}: cost at {snapshots} over cost at 10", late / early, 2)
    report.add(f"{place.kind}: mean of all {snapshots} commits", statistics.mean(costs) * 1000, "ms")
    lake.close()


def main(quick: bool) -> None:
    report = Report("commits")
    with places("sqlite", "postgres") as found:
        for place in found:
            print(f"{place.kind}: one writer")
            single_writer(place, report, rounds=3 if quick else 7)
            print(f"{place.kind}: long history")
            long_history(place, report, 200 if quick else 1000)
    report.save()


if __name__ == "__main__":
    main("--quick" in sys.argv)
