"""The types that Iceberg Java's Spark runtime has: docs/types.md shows them beside ours."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from interop import jars
from spark.test_types import ICEBERG_JAVA, KINDS, schema_of

pytestmark = pytest.mark.interop
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
given = json.load(sys.stdin)
builder = SparkSession.builder.master("local[1]").config("spark.jars", given["jars"])
spark = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "localhost").getOrCreate()
iceberg = spark._jvm.org.apache.iceberg
found = []
for text in given["schemas"]:
    schema = iceberg.SchemaParser.fromJson(text)
    try:
        found.append(iceberg.spark.SparkSchemaUtil.convert(schema).fields()[0].dataType().simpleString())
    except Exception:
        found.append("refused")
print("found " + json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """Asked of a Spark of its own, whose classes no other test of this process meets."""
    given = {
        "jars": ",".join(str(each) for each in jars.fetched(jars.SPARK)),
        "schemas": [schema_of(kind).model_dump_json() for kind, _, _ in KINDS],
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    line = next(each for each in done.stdout.splitlines() if each.startswith("found "))
    return dict(zip((str(kind) for kind, _, _ in KINDS), json.loads(line.removeprefix("found ")), strict=True))


def test_iceberg_javas_types_are_those_of_the_page(found: dict[str, str]) -> None:
    from frazil.on_spark import types

    wanted: dict[str, Any] = {str(kind): types.spark_type(kind).simpleString() for kind, _, _ in KINDS}
    assert found == {**wanted, **ICEBERG_JAVA}
