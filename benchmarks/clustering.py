"""The share of a table's files that range filters on 1, 2 and 4 columns must read: as written, sorted, by curves.

Four skewed columns: whole numbers, log-normal doubles, timestamps most of which are recent, and texts with a common
prefix. A filter takes a range of each of its columns that holds a twentieth of the rows. Arrow, one table; bounds from
the manifests decide, as for any reader. Peers' figures for such data are in ``docs/services.md``.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import frazil
from common import Report

DDL = "n bigint, x double, t timestamp_ntz, s string"
COLUMNS = ("n", "x", "t", "s")
FILES, FILTERS, SHARE = 64, 30, 0.05
PICTURE = Path("build/clustering.png")
arrow: Any = pa


def rows(count: int, seed: int) -> Any:
    chance = np.random.default_rng(seed)
    recent = (chance.power(8, count) * 365 * 86_400 * 1e6).astype(np.int64)
    # Most customers are in one range of numbers.
    customers = (chance.power(0.4, count) * 10**9).astype(np.int64)
    return arrow.table(
        {
            "n": arrow.array(chance.integers(0, 10**9, count)),
            "x": arrow.array(chance.lognormal(0, 3, count)),
            "t": arrow.array(recent, pa.timestamp("us")),
            "s": arrow.array([f"https://www.example.com/customer/{each:09d}" for each in customers.tolist()]),
        }
    )


def literal(column: str, value: Any) -> str:
    if column == "t":
        return f"timestamp_ntz '{value.isoformat(sep=' ')}'"
    return f"'{value}'" if column == "s" else repr(value)


def filters(sample: Any, columns: int) -> list[str]:
    chance = random.Random(columns)
    ordered = {name: np.sort(sample[name].to_numpy(zero_copy_only=False)) for name in COLUMNS}
    found = []
    for _ in range(FILTERS):
        parts = []
        for name in chance.sample(COLUMNS, columns):
            values = ordered[name]
            first = chance.randrange(int(len(values) * (1 - SHARE)))
            low, high = (values[at] for at in (first, first + int(len(values) * SHARE)))
            bounds = [arrow.scalar(each, sample.schema.field(name).type).as_py() for each in (low, high)]
            parts.append(f"{name} between {literal(name, bounds[0])} and {literal(name, bounds[1])}")
        found.append(" and ".join(parts))
    return found


def shares(table: Any, asked: Mapping[int, Sequence[str]]) -> dict[str, float]:
    files = len(table.files())
    return {
        str(columns): round(statistics.mean(len(table.scan(where).files()) / files for where in found), 3)
        for columns, found in asked.items()
    }


def draw(found: Mapping[str, Mapping[str, float]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.8 / len(found)
    for number, (name, by_columns) in enumerate(found.items()):
        places = [at + number * width for at in range(len(by_columns))]
        axes.bar(places, [100 * each for each in by_columns.values()], width, label=name)
    axes.set_xticks([at + 0.4 - width / 2 for at in range(3)], ["1 column", "2 columns", "4 columns"])
    axes.set_ylabel("files that a range filter reads, %")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(os.fspath(path))


def main(quick: bool) -> None:
    count = 300_000 if quick else 3_000_000
    report = Report("clustering")
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, frazil.connect(folder) as lake:
        lake.create_namespace("bench")
        table = lake.create_table("bench.t", DDL)
        for number in range(FILES):
            table.append(rows(count // FILES, number))
        asked = {columns: filters(rows(50_000, 99), columns) for columns in (1, 2, 4)}
        found["as written"] = shares(table, asked)
        size = sum(file.bytes for file in table.files())
        for strategy in ("sort", "zorder", "hilbert"):
            began = time.perf_counter()
            options = {"target-file-size-bytes": str(size // FILES), "min-file-size-bytes": "0"}
            table.compact(strategy=strategy, by=COLUMNS, options=options)
            seconds = time.perf_counter() - began
            found[strategy] = shares(table, asked)
            files = len(table.files())
            print(f"{strategy}: {files} files in {seconds:.1f} s, {count / seconds:,.0f} rows/s")
            for columns, share in found[strategy].items():
                what = f"{columns} {'column' if columns == '1' else 'columns'}"
                report.add(f"{strategy}: files read of 100 by a range of {what}", 100 * share)
    print(f"as written: {found['as written']}")
    draw(found, PICTURE)
    report.save()


if __name__ == "__main__":
    main("--quick" in sys.argv)
