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
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "src" / "frazil"
VERIFICATION = ROOT / "verification" / "src" / "frazil_verification"
SEAM = PRODUCT / "cli" / "_verification.py"
HELP = (("-h",), ("lab", "-h"), ("lab", "backoff", "-h"), ("simulate", "-h"))
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
