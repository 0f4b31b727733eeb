"""The examples of the pages about Spark, run on the test session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spark.conftest import KIND

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


@pytest.mark.skipif(KIND != "local", reason="foreachBatch runs in this process on classic Spark only")
def test_the_examples_of_the_page_about_spark_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python no-run\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {"__name__": "__example__"}
    # A relative path is the JVM's matter, which was started elsewhere.
    text = "\n".join(blocks).replace("./checkpoint", str(tmp_path / "checkpoint"))
    exec(compile(text, str(PAGE), "exec"), found)
    events = found["events"]
    # All of them were deleted; the merge brought one back.
    assert events.scan(where="user_id = 7").count() == 1
    assert events.scan(where="note = 'changed'").count() == 10
    assert events.scan(where="note = 'streamed'").count() >= 10
