"""One commit of 100,000 files, and planning a filtered scan over them, beside PyIceberg on the same catalog."""

from __future__ import annotations

import sys
import uuid
from typing import Any

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile as TheirFile
from pyiceberg.types import LongType

import frazil
from common import Report, places, stopwatch
from frazil.commit.context import CommitContext
from frazil.commit.loop import commit
from frazil.commit.operations import Identity, Kind, Write
from frazil.model import DataFile, Ident
from peers.pyiceberg_files import their_file

COLUMNS = range(1, 11)


def statistics_of(number: int) -> dict[str, Any]:
    counts = dict.fromkeys(COLUMNS, 1000)
    low, high = to_bytes(LongType(), number * 1000), to_bytes(LongType(), number * 1000 + 999)
    return {
        "column_sizes": counts,
        "value_counts": counts,
        "null_value_counts": dict.fromkeys(COLUMNS, 0),
        "nan_value_counts": {},
        "lower_bounds": dict.fromkeys(COLUMNS, low),
        "upper_bounds": dict.fromkeys(COLUMNS, high),
    }


def ours(number: int) -> DataFile:
    return DataFile(f"/w/d/{number}.parquet", 1000, 1000, **statistics_of(number))


def theirs(number: int) -> TheirFile:
    return their_file(f"/w/d/{number}.parquet", 1000, **statistics_of(number))


def main(files: int) -> None:
    report = Report("bulk")
    with places("sqlite") as (place,):
        lake = frazil.connect(place.frazil_uri, warehouse=place.warehouse, name="frazil")
        lake.create_namespace("bench")
        schema = ", ".join(f"c{number} bigint" for number in COLUMNS)
        table = lake.create_table("bench.ours", schema)
        lake.create_table("bench.theirs", schema)
        their_table = place.pyiceberg().load_table("bench.theirs")

        mine, yours = [ours(n) for n in range(files)], [theirs(n) for n in range(files)]
        context = CommitContext(lake.catalog, lake.storage, Ident.parse("bench.ours"))
        written = {number: f"c{number}" for number in COLUMNS}
        operation = Write(Kind.APPEND, table.uuid, added=tuple(mine), written_ids=written)
        with stopwatch() as our_commit:
            commit(context, operation, Identity(str(uuid.uuid4()), "bench", given=False), frazil.Retry())
        with stopwatch() as their_commit:  # noqa: SIM117 - the clock runs over the whole transaction
            with their_table.transaction() as tx, tx.update_snapshot().fast_append() as append:
                for file in yours:
                    append.append_data_file(file)
        report.add(f"commit of {files} files, frazil", our_commit[0], "s")
        report.add(f"commit of {files} files, pyiceberg", their_commit[0], "s")
        report.ratio("commit, frazil over pyiceberg", our_commit[0], their_commit[0], wanted=1, higher_is_better=False)

        middle = files * 500
        # A fresh lake for each plan: nothing is remembered from the commit.
        with stopwatch() as our_plan:
            fresh = frazil.connect(place.frazil_uri, warehouse=place.warehouse, name="frazil")
            found = len(fresh.table("bench.ours").scan(where=f"c1 = {middle}").files())
        with stopwatch() as their_plan:
            their_found = len(list(place.pyiceberg().load_table("bench.theirs").scan(f"c1 == {middle}").plan_files()))
        assert found == their_found == 1, (found, their_found)
        report.add("planning a filtered scan, frazil", our_plan[0], "s")
        report.add("planning a filtered scan, pyiceberg", their_plan[0], "s")
        report.ratio("planning, frazil over pyiceberg", our_plan[0], their_plan[0], wanted=1, higher_is_better=False)
        with stopwatch() as our_whole:
            assert len(frazil.connect(place.frazil_uri, name="frazil").table("bench.ours").scan().files()) == files
        with stopwatch() as their_whole:
            assert len(list(place.pyiceberg().load_table("bench.theirs").scan().plan_files())) == files
        report.add("planning a whole scan, frazil", our_whole[0], "s")
        report.add("planning a whole scan, pyiceberg", their_whole[0], "s")
        report.ratio(
            "whole plan, frazil over pyiceberg", our_whole[0], their_whole[0], wanted=1, higher_is_better=False
        )
    report.save()


if __name__ == "__main__":
    main(10_000 if "--quick" in sys.argv else 100_000)
