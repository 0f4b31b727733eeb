"""What needs a Spark application of its own: executors that are other processes, have other packages, or die."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def bare_python(folder: Path) -> Path:
    """An environment with pyarrow and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for found in Path(sysconfig.get_path("platlib")).glob("pyarrow*"):
        if "stubs" not in found.name:
            (site / found.name).symlink_to(found)
    return folder / "bin" / "python"


def run(program: str, *arguments: str) -> str:
    """The program's output; it runs without this process's PYTHONPATH, which executors would inherit."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    code = (
        f"import sys; sys.path.insert(0, {str(HERE.parent)!r}); from spark.{program} import main; main(*sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=kept, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


@pytest.mark.slow
def test_trap_8_executors_need_pyarrow_and_nothing_else(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")
    assert run("cluster_program", str(tmp_path / "lake"), str(python)).endswith("done\n")


@pytest.mark.slow
def test_p33_tasks_that_fail_dawdle_or_die_leave_exact_rows_and_no_file(tmp_path: Path) -> None:
    assert run("failing_program", str(tmp_path), sys.executable).endswith("done\n")
