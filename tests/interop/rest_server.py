"""Starts Iceberg's reference REST catalog server, for tests of catalogs that are not ours."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from interop import jars


@dataclass(frozen=True, slots=True)
class RestServer:
    url: str
    warehouse: str
    """A local folder, as a file URI."""
    database: Path
    """The SQLite file behind it: Iceberg's JDBC catalog named ``rest``."""

    def lose_answers(self, count: int) -> None:
        """The next commits land, and their clients are told 502."""
        self._faults(f"lose={count}")

    def refuse(self, count: int) -> None:
        """The next commits do not land, and their clients are told 503."""
        self._faults(f"refuse={count}")

    def _faults(self, query: str) -> None:
        request = urllib.request.Request(f"{self.url}/faults?{query}", method="POST", data=b"")
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()


@contextlib.contextmanager
def start_rest_server(folder: Path) -> Iterator[RestServer]:
    """A server that keeps its database and warehouse in ``folder`` and ends with the block."""
    program = jars.ready(jars.REST)
    warehouse = folder / "warehouse"
    warehouse.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with (
        open(log, "wb") as errors,
        subprocess.Popen(
            program.command(str(folder / "rest.db"), warehouse.as_uri()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"The REST server did not start:\n{log.read_text()}")
        try:
            yield RestServer(url, warehouse.as_uri(), folder / "rest.db")
        finally:
            process.stdin.close()
