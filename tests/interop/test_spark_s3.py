"""Spark on a warehouse in S3 (moto's), with Hadoop's connector and without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aws.server import Aws
from interop.jars import S3, fetched

pytestmark = pytest.mark.interop
TESTS = Path(__file__).resolve().parents[1]


def run(tmp_path: Path, aws: Aws, jars: str) -> None:
    aws.forget_everything()
    bucket = aws.create_bucket("lake")
    given = [str(tmp_path / "catalog.db"), f"{bucket}/ware house", json.dumps(aws.properties), jars]
    # What the environment knows of a store must not help.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-m", "interop.spark_s3_program", *given],
        env={**kept, "PYTHONPATH": str(TESTS), "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.endswith("done\n")


def test_every_verb_on_s3_needs_no_setting_of_the_session(tmp_path: Path, aws: Aws) -> None:
    run(tmp_path, aws, ",".join(map(str, fetched(S3))))


def test_trap_9_without_a_connector_a_sentence_says_so(tmp_path: Path, aws: Aws) -> None:
    run(tmp_path, aws, "")
