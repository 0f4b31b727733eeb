"""Starts moto's S3 and Glue for tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KEYS = {"access-key-id": "tester", "secret-access-key": "open-sesame-4711", "region": "eu-north-1"}


@dataclass(frozen=True, slots=True)
class Aws:
    url: str

    @property
    def properties(self) -> dict[str, str]:
        """PyIceberg's names for the address and the keys of both services."""
        services = ("s3", "glue")
        keys = {f"{service}.{key}": value for service in services for key, value in KEYS.items()}
        return {**keys, **{f"{service}.endpoint": self.url for service in services}}

    def create_bucket(self, name: str) -> str:
        """A new bucket, as a location."""
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT", data=b"")
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
        return f"s3://{name}"

    def forget_everything(self) -> None:
        """Neither buckets nor databases are left."""
        self._post("moto-api/reset", b"")

    @contextlib.contextmanager
    def checking_keys(self) -> Iterator[None]:
        """Amazon's habit that moto lacks: unknown keys are refused."""
        self._post("moto-api/reset-auth", b"0")
        try:
            yield
        finally:
            self._post("moto-api/reset-auth", b"inf")

    def _post(self, path: str, data: bytes) -> None:
        request = urllib.request.Request(f"{self.url}/{path}", data=data, headers={"Content-Type": "text/plain"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()


@contextlib.contextmanager
def start_aws(*, glue_checks_versions: bool = True) -> Iterator[Aws]:
    """Both services, empty, until the block ends."""
    command = [sys.executable, str(Path(__file__).with_name("moto_process.py"))]
    options = ["--glue-checks-versions"] if glue_checks_versions else []
    with subprocess.Popen(
        [*command, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "moto did not start"
        try:
            yield Aws(url)
        finally:
            process.stdin.close()
            process.wait(timeout=30)
