"""What the product's wheel contains, and what it leaves to the package frazil-verification."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "src" / "frazil"
VERIFICATION = ROOT / "verification" / "src" / "frazil_verification"
SEAM = PRODUCT / "cli" / "_verification.py"
WITHOUT_VERIFICATION = """
import sys
sys.modules[{blocked!r}] = None
from frazil.cli import main
main(sys.argv[1:])
"""


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def frazil(*arguments: object, blocked: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, where a module cannot be imported."""
    code = "from frazil.cli import main; main()" if blocked is None else WITHOUT_VERIFICATION.format(blocked=blocked)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


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
    code = """
import importlib, pkgutil, sys
sys.modules["frazil_verification"] = None
import frazil
for each in pkgutil.walk_packages(frazil.__path__, "frazil."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("simulate", "--seed", 0), "frazil simulate"),
        (("lab", "backoff", "--commits", 30, "--no-plot"), "frazil lab backoff"),
    ],
    ids=["simulate", "lab"],
)
@pytest.mark.parametrize("blocked", ["frazil_verification", "frazil_verification.commands"])
def test_without_the_verification_package_its_commands_say_how_to_get_it(
    arguments: tuple[object, ...], command: str, blocked: str
) -> None:
    answer = frazil(*arguments, blocked=blocked)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == (
        f'frazil: "{command}" needs the package frazil-verification, which is not installed. '
        "pip install 'frazil[verify]'.\n"
    )


def test_without_greenlet_the_simulator_says_how_to_get_it() -> None:
    answer = frazil("simulate", blocked="greenlet")
    assert answer.returncode == 2
    assert "needs the package greenlet" in answer.stderr
    assert "pip install 'frazil[verify]'" in answer.stderr


def test_another_missing_module_is_a_defect() -> None:
    answer = frazil("simulate", blocked="concurrent.futures.process")
    assert answer.returncode == 70
    assert "frazil[verify]" not in answer.stderr


@pytest.mark.parametrize(
    "arguments", [("--help",), ("lab", "--help"), ("simulate", "--help"), ("lab", "backoff", "-h")]
)
def test_the_help_is_the_same_without_the_verification_package(arguments: tuple[str, ...]) -> None:
    without, installed = frazil(*arguments, blocked="frazil_verification"), frazil(*arguments)
    assert without.returncode == installed.returncode == 0, without.stderr
    assert without.stdout == installed.stdout


def test_with_the_verification_package_its_commands_run() -> None:
    simulated = frazil("simulate", "--seed", 0, "--steps", 5, "--json")
    assert simulated.returncode == 0, simulated.stderr
    assert '"digest"' in simulated.stdout
    raced = frazil("lab", "backoff", "--writers", 3, "--commits", 30, "--no-plot")
    assert raced.returncode == 0, raced.stderr
    assert "jitter" in raced.stdout
