"""The jobs that share one table, and which rows each of them writes.

Every row has a writer and a number. Streams, micro-batches and the backfill only add rows of their own; the merge
changes rows of the first load that no other job changes; the GDPR job deletes customers that no job adds rows for. So
the acknowledged commits determine the table's final rows, whatever the order of the commits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = "writer string not null, n bigint not null, customer bigint, amount bigint, at timestamp, note string"
PROPERTIES = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}
LOADED = "load"
"""The writer of the rows of the first load."""
CUSTOMERS = 200
ROWS_EACH = 25
"""The first load has ROWS_EACH rows for each of CUSTOMERS customers; the GDPR job deletes the first half of them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of the fleet."""

    uri: str
    table: str
    reports: str
    """A folder with a file of JSON lines for each job, to which it appends its report."""
    seconds: float = 60.0
    streams: int = 2
    stream_processes: int = 1
    stream_rows: int = 400
    """Rows of each micro-batch of a stream."""
    batch_rows: int = 500
    backfill_rows: int = 40_000
    readers: int = 1

    def processes(self) -> dict[str, list[str]]:
        """Spark application → the jobs that run in it."""
        streams = [f"stream-{number}" for number in range(self.streams)]
        found = {f"streams-{at}": streams[at :: self.stream_processes] for at in range(self.stream_processes)}
        found["ingest"] = ["micro-batch", "backfill"]
        found["care"] = ["gdpr", "merge", "compaction", "schema"]
        if self.readers:
            found["readers"] = [f"reader-{number}" for number in range(self.readers)]
        return found

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Plan:
        return Plan(**json.loads(text))


@dataclass(slots=True)
class Report:
    """The report of one job: the sums of its lines."""

    job: str
    commits: int = 0
    rows: int = 0
    rebased_over: int = 0
    attempts: int = 0
    conflicts: list[str] = field(default_factory=list)
    """True conflicts, after which the job continued."""
    failures: list[str] = field(default_factory=list)
    """Errors that must not occur."""
    acknowledged: list[Any] = field(default_factory=list)
    """The job's acknowledged commits, in a form of its own (see ``check.py``)."""
    done: bool = False

    def add(self, line: Mapping[str, Any]) -> None:
        self.commits += line.get("commits", 0)
        self.rows += line.get("rows", 0)
        self.rebased_over += line.get("rebased_over", 0)
        self.attempts += line.get("attempts", 0)
        self.conflicts += line.get("conflicts", ())
        self.failures += line.get("failures", ())
        self.acknowledged += line.get("acknowledged", ())
        self.done = self.done or line.get("done", False)


def gathered(jobs: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> dict[str, Report]:
    found = {job: Report(job) for job in jobs}
    for line in lines:
        found[line["job"]].add(line)
    return found
