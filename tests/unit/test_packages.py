"""What the product's wheel contains, and what it leaves to the package frazil-verification."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

import frazil as frazil_package

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "src" / "frazil"
VERIFICATION = ROOT / "verification" / "src" / "frazil_verification"
SEAM = PRODUCT / "cli" / "_verification.py"
HELP = (("-h",), ("lab", "-h"), ("lab", "backoff", "-h"), ("simulate", "-h"))
HEAVY = ("pandas", "pyarrow.dataset", "sqlglot", "pyspark", "pyiceberg.table", "pyiceberg.io.pyarrow")
"""Loaded on first use."""
LOADED = """
import contextlib, io, json, sys
names = json.loads(sys.argv[1])
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
{code}
print(json.dumps([name for name in names if name in sys.modules]))
"""
COMMANDS = """
import contextlib, io, json, sys
blocked, commands = json.loads(sys.argv[1])
for name in blocked:
    sys.modules[name] = None
from frazil.cli import main
answers = []
for arguments in commands:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main(arguments)
        except SystemExit as end:
            answers.append([end.code or 0, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str
    err: str


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def frazil(*commands: tuple[str, ...], blocked: tuple[str, ...] = ()) -> list[Answer]:
    """The commands, one after the other, in a new process that cannot import what is blocked."""
    return [Answer(*each) for each in json.loads(python(COMMANDS, json.dumps([blocked, commands])))]


def loaded_by(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of the modules a new process has loaded after the code."""
    found: list[str] = json.loads(python(LOADED.format(code=indent(code, "    ")), json.dumps(names)))
    return found


def imports(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(name)):
                yield name
            case ast.Call(args=[ast.Constant(value=str(name)), *_]):
                yield name
            case _:
                pass


# The wheels


def test_each_wheel_is_built_from_the_folder_of_its_package() -> None:
    for folder, package in ((ROOT, "src/frazil"), (ROOT / "verification", "src/frazil_verification")):
        targets = project(folder)["tool"]["hatch"]["build"]["targets"]
        assert targets["wheel"] == {"packages": [package]}


def test_the_product_contains_no_simulator_model_or_lab() -> None:
    found = {path.stem for path in (PRODUCT / "verify").iterdir() if path.name != "__pycache__"}
    assert found == {"__init__", "checker", "doctor", "fleet", "recording", "probe", "processes"}


def test_the_verification_package_contains_them() -> None:
    found = {path.name for path in VERIFICATION.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found == {"commands", "lab", "model", "simulator"}


def test_the_verification_package_is_released_with_the_product() -> None:
    product, verification = project(ROOT)["project"], project(ROOT / "verification")["project"]
    assert verification["version"] == product["version"]
    assert f"frazil=={product['version']}" in verification["dependencies"]
    assert not [each for each in product["dependencies"] if each.startswith(("frazil", "greenlet", "matplotlib"))]


# What is loaded, and when


def test_importing_frazil_loads_neither_pyiceberg_nor_arrow() -> None:
    assert loaded_by("import frazil", (*HEAVY, "pyarrow", "pyiceberg", "numpy", "frazil.lake")) == []


def test_every_public_name_without_a_table_in_use_leaves_the_heavy_modules_alone() -> None:
    assert loaded_by("import frazil\nfor name in frazil.__all__: getattr(frazil, name)", (*HEAVY, "pyarrow")) == [
        "pyarrow"
    ]


def test_the_help_of_the_command_line_loads_neither_pyiceberg_nor_arrow() -> None:
    code = "from frazil.cli import main\nmain(['--help'])"
    assert loaded_by(code, (*HEAVY, "pyarrow", "pyiceberg", "numpy", "frazil.lake", "typer")) == ["typer"]


def test_listing_the_tables_of_a_lake_loads_no_heavy_module(tmp_path: Path) -> None:
    frazil(("--uri", str(tmp_path), "create", "shop.events", "id bigint"))
    code = f"from frazil.cli import main\nmain(['--uri', {str(tmp_path)!r}, 'tables'])"
    assert loaded_by(code, (*HEAVY, "frazil.lake")) == ["frazil.lake"]


def test_a_public_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'frazil' has no attribute 'no_such_name'"):
        frazil_package.no_such_name  # type: ignore[attr-defined]  # noqa: B018
    assert set(frazil_package.__all__) <= set(dir(frazil_package))


def test_a_fork_waits_for_a_module_that_another_thread_loads() -> None:
    python(
        """
import importlib, os, sys, threading, types
from importlib.machinery import ModuleSpec
import frazil

begun, done = threading.Event(), []

class Slow:
    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self) if name == "frazil.slow" else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        begun.set()
        threading.Event().wait(0.5)
        module.value = 7
        done.append(True)

sys.meta_path.insert(0, Slow())
loading = threading.Thread(target=importlib.import_module, args=("frazil.slow",))
loading.start()
begun.wait()
child = os.fork()
assert done
if child == 0:
    import frazil.slow
    os._exit(frazil.slow.value)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
loading.join()
"""
    )


# The seam


def test_the_product_imports_the_verification_package_in_one_module() -> None:
    found = {
        module
        for module in PRODUCT.rglob("*.py")
        if any(name.partition(".")[0] == "frazil_verification" for name in imports(module))
    }
    assert found == {SEAM}


def test_importing_every_module_of_the_product_does_not_import_the_verification_package() -> None:
    python("""
import importlib, pkgutil, sys
sys.modules["frazil_verification"] = None
import frazil
for each in pkgutil.walk_packages(frazil.__path__, "frazil."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
""")


def test_without_the_verification_package_its_commands_are_listed_and_say_how_to_get_it() -> None:
    simulate, lab, *shown = frazil(
        ("simulate", "--seed", "0"),
        ("lab", "backoff", "--commits", "30", "--no-plot"),
        *HELP,
        blocked=("frazil_verification",),
    )
    for answer, command in ((simulate, "frazil simulate"), (lab, "frazil lab backoff")):
        assert answer.code == 2
        assert answer.out == ""
        assert answer.err == (
            f'frazil: "{command}" needs the package frazil-verification, which is not installed. '
            "pip install 'frazil[verify]'.\n"
        )
    assert shown == frazil(*HELP)
    assert {answer.code for answer in shown} == {0}
    assert "simulate" in shown[0].out
    assert "lab" in shown[0].out


def test_without_greenlet_the_simulator_says_how_to_get_it() -> None:
    (answer,) = frazil(("simulate",), blocked=("greenlet",))
    assert answer.code == 2
    assert "needs the package greenlet" in answer.err
    assert "pip install 'frazil[verify]'" in answer.err


def test_another_missing_module_is_a_defect() -> None:
    (answer,) = frazil(("simulate",), blocked=("concurrent.futures.process",))
    assert answer.code == 70
    assert "frazil[verify]" not in answer.err


def test_with_the_verification_package_its_commands_run() -> None:
    simulated, raced = frazil(
        ("simulate", "--seed", "0", "--steps", "5", "--json"),
        ("lab", "backoff", "--writers", "3", "--commits", "30", "--no-plot"),
    )
    assert simulated.code == raced.code == 0, (simulated.err, raced.err)
    assert "digest" in json.loads(simulated.out)
    assert "jitter" in raced.out
