"""Runs histories from a terminal and prints the first divergence, as small as it can be made.

python -m tests.concurrency.histories --seed 7 --sessions 300               one process, interleaved by the seed
python -m tests.concurrency.histories --processes --uri postgres            8 processes, judged after they ended
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import frazil
from concurrency.histories import interleave, processes
from concurrency.histories.replay import statistics

if TYPE_CHECKING:
    from servers import PostgresServer


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="histories", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from --seed on")
    parser.add_argument("--sessions", type=int, default=300, help="for each seed; with --processes for each writer")
    parser.add_argument("--uri", default="memory://", help="memory://, sqlite or postgres; or a real URI of a new lake")
    parser.add_argument("--processes", action="store_true", help=f"{processes.WRITERS} writer processes")
    parser.add_argument("--every", type=int, default=1, help="compare the rows of every so-many-th version")
    parser.add_argument("--trace", action="store_true", help="print every step, also when all is well")
    options = parser.parse_args(arguments)
    judge = _processes if options.processes else _interleaved
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_postgres()) if options.uri == "postgres" else None
        lakes = Lakes(options.uri, Path(stack.enter_context(tempfile.TemporaryDirectory())), server)
        return max(judge(seed, lakes, options) for seed in range(options.seed, options.seed + options.seeds))


@contextlib.contextmanager
def _postgres() -> Iterator[PostgresServer]:
    from servers import PostgresServer

    with contextlib.closing(PostgresServer()) as server:
        yield server


class Lakes:
    """A new lake each time, of the kind that was asked for."""

    def __init__(self, uri: str, folder: Path, server: PostgresServer | None) -> None:
        self._uri = uri
        self._server = server
        self._folder = folder
        self._numbers = itertools.count()

    def new(self) -> tuple[processes.Place, Path]:
        """Where the lake is, and a folder for logs."""
        number = next(self._numbers)
        folder = self._folder / str(number)
        folder.mkdir()
        uri = self._uri
        if uri == "sqlite":
            uri = f"sqlite:///{folder}/catalog.db"
        elif self._server is not None:
            uri = self._server.create_database(f"h{number}")
        return processes.Place(uri, f"file://{folder}/warehouse"), folder

    @contextlib.contextmanager
    def open(self) -> Iterator[frazil.Lake]:
        place, _ = self.new()
        with frazil.connect("memory://") if self._uri == "memory://" else place.open() as lake:
            yield lake


def _interleaved(seed: int, lakes: Lakes, options: argparse.Namespace) -> int:
    layout = interleave.layout_of(seed)
    schedule = interleave.schedule_of(seed, options.sessions)
    began = time.monotonic()
    run = interleave.run(schedule, layout, lakes.open, every=options.every)
    print(f"seed {seed}: {_summary(run.verdict.commits, run.verdict.compared, time.monotonic() - began)}, {layout}")
    if run.verdict.divergence is None:
        print(*(run.trace if options.trace else ()), statistics(run.records, run.verdict), sep="\n")
        return 0
    small = interleave.shrunk(run, layout, lakes.open)
    print(f"diverges; shrunk from {len(run.schedule)} steps to {len(small.schedule)}:", *small.trace, sep="\n")
    print(small.verdict.divergence)
    return 1


def _processes(seed: int, lakes: Lakes, options: argparse.Namespace) -> int:
    layout = interleave.layout_of(seed)
    place, logs = lakes.new()
    found = processes.history(place, layout, seed, options.sessions, logs, every=options.every)
    done = _summary(found.verdict.commits, found.verdict.compared, found.seconds)
    print(
        f"seed {seed}: {done}, {found.rate:.1f} commits/s, {layout}", statistics(found.records, found.verdict), sep="\n"
    )
    if found.verdict.divergence is None:
        return 0
    print("diverges:", found.verdict.divergence, sep="\n")
    return 1


def _summary(commits: int, compared: int, seconds: float) -> str:
    return f"{commits} commits replayed, rows compared after {compared} of them, {seconds:.1f} s"
