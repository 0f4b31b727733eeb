"""The pipeline that shares one table: who writes what, so that at the end everybody's rows can be told apart.

Every row has a writer and a number. Streams, micro-batches and the backfill only add rows of their own; the merge
changes rows of the first load that nobody else changes; the GDPR job deletes customers that nobody adds rows for. So
what must be in the table at the end follows from what was acknowledged, whatever the order of commits was.
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
"""The writer of the rows that are there from the beginning."""
CUSTOMERS = 200
ROWS_EACH = 25
"""The first load has so many rows of each of so many customers; the GDPR job takes the first half of them out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of the fleet."""

    uri: str
    table: str
    reports: str
    """A folder in which each job appends what it did, a line of JSON at a time."""
    seconds: float = 60.0
    streams: int = 2
    stream_processes: int = 1
    stream_rows: int = 400
    """Rows of each micro-batch of a stream."""
    batch_rows: int = 500
    backfill_rows: int = 40_000
    readers: int = 1

    def processes(self) -> dict[str, list[str]]:
        """Spark application → the jobs that run in it, as a fleet would have them."""
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
    """What one job was told: the sums of its lines."""

    job: str
    commits: int = 0
    rows: int = 0
    rebased_over: int = 0
    attempts: int = 0
    conflicts: list[str] = field(default_factory=list)
    """True conflicts, each in a sentence: the job went on."""
    failures: list[str] = field(default_factory=list)
    """What nobody should see."""
    acknowledged: list[Any] = field(default_factory=list)
    """What the job was promised, in the job's own words (see ``check.py``)."""
    done: bool = False

    def hear(self, line: Mapping[str, Any]) -> None:
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
        found[line["job"]].hear(line)
    return found
