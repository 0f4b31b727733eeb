"""Races of writer processes on one table, and what they left on disk."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, NestedField

from interop import jars

BATCHES = Schema(NestedField(1, "writer", IntegerType()), NestedField(2, "seq", IntegerType()))

# The kinds' file names are alike, so each kind's files are told apart by their permissions.
FRAZIL_UMASK = 0o027
OTHERS_UMASK = 0o022


@dataclass(frozen=True, slots=True)
class Writers:
    """Writer processes of one kind, under one parent process (Python) or alone (Java)."""

    kind: str
    """``frazil``, ``pyiceberg`` or ``java``."""
    numbers: tuple[int, ...]
    request: dict[str, Any]

    def command(self) -> list[str]:
        if self.kind == "java":
            (number,) = self.numbers
            return jars.CATALOG.command("append", json.dumps({**self.request, "writer": number}))
        request = {**self.request, "kind": self.kind, "writers": self.numbers}
        return [sys.executable, "-m", "interop.race_writer", json.dumps(request)]


def race(groups: Sequence[Writers], logs: Path) -> list[dict[str, Any]]:
    """Start all, let them go at once, and return what each said of each batch. A writer that failed fails the race."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_started(group, logs / f"writers-{n}.log")) for n, group in enumerate(groups)]
        for process, group in zip(processes, groups, strict=True):
            _await_ready(process, group, logs)
        said: list[list[str]] = [[] for _ in processes]
        readers = [threading.Thread(target=_collect, args=(p, lines)) for p, lines in zip(processes, said, strict=True)]
        for reader in readers:
            reader.start()
        for process in processes:
            _tell(process, "go\n")
        for reader in readers:
            reader.join()
        codes = [process.wait() for process in processes]
    assert not any(codes), f"a writer failed:\n{_last_words(logs)}"
    return [json.loads(line) for lines in said for line in lines]


@contextlib.contextmanager
def _started(group: Writers, log: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with (
        open(log, "wb") as errors,
        subprocess.Popen(
            group.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            umask=FRAZIL_UMASK if group.kind == "frazil" else OTHERS_UMASK,
            process_group=0,
        ) as process,
    ):
        try:
            yield process
        finally:
            # Its forked children too, when the race was given up.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def _await_ready(process: subprocess.Popen[str], group: Writers, logs: Path) -> None:
    assert process.stdout is not None
    ready = {json.loads(process.stdout.readline() or "{}").get("ready") for _ in group.numbers}
    assert ready == set(group.numbers), f"of writers {group.numbers} only {ready} started:\n{_last_words(logs)}"


def _last_words(logs: Path) -> str:
    return "\n".join(log.read_text()[-3000:] for log in sorted(logs.glob("writers-*.log")))


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()


def _collect(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    lines.extend(process.stdout)


def unreferenced(table: Table) -> set[Path]:
    """Files under the table's folder that neither its metadata, its log nor any of its snapshots' manifests name."""
    live = set(_metadata_files(table))
    manifests = {}
    for snapshot in table.snapshots():
        live.add(local_path(snapshot.manifest_list))
        manifests.update({manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)})
    for path, manifest in manifests.items():
        live.add(local_path(path))
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        live.update(local_path(entry.data_file.file_path) for entry in entries)
    # Hadoop's local file system keeps a checksum beside each file it writes.
    found = {path for path in local_path(table.location()).rglob("*") if path.is_file() and path.suffix != ".crc"}
    assert live <= found, f"files that the table names are gone: {sorted(live - found)[:3]}"
    return found - live


def _metadata_files(table: Table) -> Iterator[Path]:
    """Every metadata file the table ever had: a log keeps the last hundred, its oldest one has a log of its own."""
    yield local_path(table.metadata_location)
    log = [local_path(entry.metadata_file) for entry in table.metadata.metadata_log]
    while log:
        yield from log
        oldest = json.loads(log[0].read_bytes())
        log = [local_path(entry["metadata-file"]) for entry in oldest.get("metadata-log", ())]


def is_ours(path: Path) -> bool:
    """Whether a writer of kind ``frazil`` made the file."""
    return not path.stat().st_mode & stat.S_IROTH


def local_path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))
