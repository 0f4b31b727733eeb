"""Starts the fleet's processes, reads their reports, and checks the table when they have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow as pa

import frazil
from frazil.runtime import SYSTEM
from frazil.verify.fleet.check import findings
from frazil.verify.fleet.plan import CUSTOMERS, LOADED, PROPERTIES, ROWS_EACH, SCHEMA, Plan, Report, gathered

_GRACE_S = 120.0
"""How long an application may take, beyond its time, to start, to finish and to stop."""

Show = Callable[[Mapping[str, Report], float], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    reports: Mapping[str, Report]
    findings: tuple[str, ...]
    seconds: float

    @property
    def commits(self) -> int:
        return sum(each.commits for each in self.reports.values())

    @property
    def conflicts(self) -> int:
        return sum(len(each.conflicts) for each in self.reports.values())

    @property
    def rebased(self) -> int:
        return sum(each.rebased_over for each in self.reports.values())


def prepare(lake: frazil.Lake, name: str) -> frazil.Table:
    """Create the table with its first load."""
    table = lake.create_table(name, SCHEMA, partition_by=["bucket(4, customer)"], properties=PROPERTIES)
    count = CUSTOMERS * ROWS_EACH
    table.append(
        pa.table(
            {
                "writer": pa.array([LOADED] * count),
                "n": pa.array(range(count), pa.int64()),
                "customer": pa.array([n // ROWS_EACH for n in range(count)], pa.int64()),
                "amount": pa.array([0] * count, pa.int64()),
            }
        )
    )
    return table


def run(lake: frazil.Lake, plan: Plan, show: Show) -> Outcome:
    """Run the whole fleet and check its table."""
    os.makedirs(plan.reports, exist_ok=True)
    began = SYSTEM.monotonic()
    jobs = [job for names in plan.processes().values() for job in names]
    processes = {name: _start(plan, name, names) for name, names in plan.processes().items()}
    try:
        while any(process.poll() is None for process in processes.values()):
            show(_reports(plan, jobs), SYSTEM.monotonic() - began)
            if SYSTEM.monotonic() - began > plan.seconds + _GRACE_S:
                break
            SYSTEM.sleep(0.5)
    finally:
        late = [name for name, process in processes.items() if process.poll() is None]
        for process in processes.values():
            process.kill()
            process.wait()
    reports = _reports(plan, jobs)
    found = [f"the application {name} did not stop in time" for name in late]
    found += [
        f"the application {name} ended with exit code {process.returncode}; see {plan.reports}/{name}.log"
        for name, process in processes.items()
        if name not in late and process.returncode
    ]
    found += findings(lake.table(plan.table), plan, reports)
    show(reports, SYSTEM.monotonic() - began)
    return Outcome(reports, tuple(found), SYSTEM.monotonic() - began)


def _start(plan: Plan, name: str, jobs: list[str]) -> subprocess.Popen[bytes]:
    with open(os.path.join(plan.reports, f"{name}.log"), "wb") as log:
        command = [sys.executable, "-m", "frazil.verify.fleet.jobs", plan.to_json(), *jobs]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def _reports(plan: Plan, jobs: list[str]) -> dict[str, Report]:
    lines = []
    for job in jobs:
        path = Path(plan.reports) / f"{job}.jsonl"
        if path.exists():
            # A line without a newline is still being written.
            lines += [orjson.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line]
    return gathered(jobs, lines)
