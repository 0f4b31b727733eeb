"""Writers of an earlier version and of this one share one table and one queue; nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

import frazil
from frazil.catalog.base import RESERVATION, QueuedCommit
from frazil.catalog.commit_lock import try_lock
from frazil.commit.queued_writer import place_of
from frazil.model import Ident

EARLIER = "f321ba5"
"""The last commit before the names of the queue changed in the source. Its wire format must not."""
ROOT = Path(__file__).parents[2]
NAME = Ident.parse("shop.events")
OWN, MOST_ROUNDS, GATHER_S = 1_000_000, 30, 2.0
VERBS = ("append", "append", "upsert", "delete", "upsert", "append")


@pytest.fixture(scope="session")
def earlier_python() -> str:
    """The Python of an environment with the earlier version's wheel."""
    known = subprocess.run(["git", "cat-file", "-e", f"{EARLIER}^{{commit}}"], cwd=ROOT, check=False)
    if known.returncode:
        shallow = subprocess.check_output(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, text=True)
        assert shallow.strip() == "true", f"the history has no commit {EARLIER}"
        pytest.skip("a shallow clone has no earlier version to build")
    made = subprocess.run([".ci/earlier-version", EARLIER], cwd=ROOT, check=True, capture_output=True, text=True)
    return made.stdout.strip().splitlines()[-1]


@pytest.fixture(params=["sqlite", "postgres"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/catalog.db"
    found: str = request.getfixturevalue("postgres_uri")
    return found


@dataclass
class Writer:
    """One process, with the rows that it was told are committed."""

    number: int
    version: str
    process: subprocess.Popen[str]
    rows: dict[int, str] = field(default_factory=dict)
    orders: int = 0

    @property
    def _stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def send(self, verb: str, ids: tuple[int, int] = (0, 0), value: str = "") -> None:
        self._stdin.write(json.dumps({"verb": verb, "ids": ids, "value": value}) + "\n")
        self._stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"a writer of version {self.version} ended"
        found: dict[str, Any] = json.loads(line)
        assert "error" not in found, f"{self.version}: {found}"
        return found

    def next_order(self, verb: str) -> tuple[str, tuple[int, int], str]:
        """Ids of this writer alone, so that the rows at the end do not depend on who was first."""
        self.orders += 1
        base = self.number * OWN
        value = f"{self.version} {self.orders}"
        if verb == "append":
            first = base + self.orders * 10
            return verb, (first, first + 3), value
        known = sorted(self.rows) or [base]
        first = known[self.orders % len(known)]
        return verb, (first, first + 2), value

    def apply(self, verb: str, ids: tuple[int, int], value: str) -> None:
        for each in range(*ids):
            self.rows.pop(each, None)
            if verb != "delete":
                self.rows[each] = value


@contextmanager
def started(python: str, version: str, number: int, *arguments: str) -> Iterator[Writer]:
    command = [python, str(Path(__file__).with_name("writer.py")), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        writer = Writer(number, version, process)
        assert "version" in writer.answer()
        try:
            yield writer
        finally:
            process.kill()


@contextmanager
def gathered(lake: frazil.Lake, count: int) -> Iterator[None]:
    """Every writer that begins inside the block is queued before one of them leads."""
    queue = lake.catalog.queue
    assert queue is not None
    uuid = lake.catalog.load(NAME).metadata.uuid
    key = place_of(lake.catalog.name, NAME, uuid)
    mark = QueuedCommit(f"mark-{time.monotonic_ns()}", uuid, "mark", RESERVATION, b"", queue_key=key)
    queue.put(mark, 120_000)
    release = try_lock(lake.catalog, NAME)
    try:
        yield
        # Polls rows that other processes write. Writers that see no progress for a second go ahead without the lock, so
        # a longer wait gathers nothing more; that groups were mixed is asserted at the end.
        end = time.monotonic() + GATHER_S
        while queue.count(key) < count and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        queue.withdraw(mark.key)
        if release is not None:
            release()


@pytest.mark.timeout(900)
def test_two_versions_commit_for_each_other(earlier_python: str, uri: str, tmp_path: Path) -> None:
    warehouse = f"file://{tmp_path}/warehouse"
    with frazil.connect(uri, warehouse=warehouse) as lake:
        lake.create_namespace("shop")
        lake.create_table("shop.events", "id bigint not null, value string", keys=["id"])
        arguments = (uri, warehouse, str(NAME))
        with (
            started(earlier_python, "earlier", 1, *arguments) as a,
            started(sys.executable, "this", 2, *arguments) as b,
            started(earlier_python, "earlier", 3, *arguments) as c,
            started(sys.executable, "this", 4, *arguments) as d,
        ):
            writers = (a, b, c, d)
            led: set[tuple[str, str]] = set()
            wanted = {("earlier", "this"), ("this", "earlier")}
            for number in range(MOST_ROUNDS):
                led |= one_round(lake, writers, number)
                if number >= len(VERBS) and wanted <= led:
                    break
            expected = sorted((each, value) for writer in writers for each, value in writer.rows.items())
            for reader in (a, b):
                reader.send("rows")
                assert [tuple(row) for row in reader.answer()["rows"]] == expected, reader.version
    assert wanted <= led, f"in {MOST_ROUNDS} rounds a leader of one version committed for the other: {led}"
    assert expected


def one_round(lake: frazil.Lake, writers: tuple[Writer, ...], number: int) -> set[tuple[str, str]]:
    """Each writer makes one write; (leader's version, member's version) of every group."""
    orders = {}
    with gathered(lake, len(writers) - 1):
        # A delete is for its own writer to commit, so that at most one of them is not delegated.
        for place, writer in enumerate(writers):
            order = writer.next_order(VERBS[(number + place) % len(VERBS)])
            orders[writer.number] = order
            writer.send(*order)
    answers = {writer.number: writer.answer() for writer in writers}
    for writer in writers:
        writer.apply(*orders[writer.number])
    led: set[tuple[str, str]] = set()
    by_size: dict[int, list[tuple[Writer, int]]] = {}
    for writer in writers:
        found = answers[writer.number]
        if found["group_size"] > 1:
            by_size.setdefault(found["group_size"], []).append((writer, found["group_index"]))
    for members in by_size.values():
        leaders = [writer for writer, index in members if index == 0]
        if len(leaders) == 1:
            led |= {(leaders[0].version, writer.version) for writer, index in members if index}
    return led
