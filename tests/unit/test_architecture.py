"""``docs/architecture.md`` says what the code does: its paths, its stages and its picture of the packages."""

from __future__ import annotations

import configparser
import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import frazil
from call_paths import PAGE, Code, Hop, Recording, check_connection, paths
from frazil.commit import stages
from frazil.commit.context import Phase

ROOT = Path(__file__).resolve().parents[2]
PATHS = paths(PAGE.read_text())
APPEND, MERGE, DELETE = "An append", "A MERGE", "A delete that meets a compaction"
MOST_HOPS = 20
HOPS = [
    pytest.param(hops, number, id=f"{title}-{number + 1}")
    for title, hops in PATHS.items()
    for number in range(len(hops))
]


def test_the_page_has_the_three_paths() -> None:
    assert list(PATHS) == [APPEND, MERGE, DELETE]
    assert {title: len(hops) for title, hops in PATHS.items() if len(hops) > MOST_HOPS} == {}


@pytest.mark.parametrize(("hops", "number"), HOPS)
def test_a_hop_is_defined_in_its_module_and_makes_the_values_it_names(hops: list[Hop], number: int) -> None:
    hop = hops[number]
    code = Code.of(hop.name)
    place, _, dotted = hop.name.partition(":")
    found: Any = importlib.import_module(f"frazil.{place}")
    for each in dotted.split("."):
        found = getattr(found, each)
    assert callable(found)
    assert found.__module__ == f"frazil.{place}"
    assert [value for value in hop.values if not code.mentions(value)] == []


@pytest.mark.parametrize(("hops", "number"), [each for each in HOPS if each.values[1] != 0])
def test_a_hop_is_called_by_the_hop_that_the_page_says(hops: list[Hop], number: int) -> None:
    check_connection(hops[hops[number].caller].name, hops[number])


def test_all_code_that_the_page_names_exists() -> None:
    for name in re.findall(r"`([\w.]+:[\w.]+)`", PAGE.read_text()):
        Code.of(name)


def test_the_picture_of_the_stages_is_that_of_the_module() -> None:
    (picture,) = re.findall(r"^```\n(.*?)^```", PAGE.read_text().partition("## Stages")[2], re.M | re.S)[:1]
    assert picture.rstrip() in (stages.__doc__ or "")


# The paths as they are run


@pytest.fixture
def table(tmp_path: Path) -> Iterator[frazil.Table]:
    lake = frazil.connect(f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path / "warehouse"))
    lake.create_namespace("shop")
    yield lake.create_table("shop.events", "id bigint")
    lake.close()


def test_an_append_runs_along_its_path(table: frazil.Table) -> None:
    recording = Recording(PATHS[APPEND])
    with recording.running():
        table.append([{"id": 1}])
    recording.check(PATHS[APPEND])


def test_a_delete_that_meets_a_compaction_runs_along_its_path(table: frazil.Table) -> None:
    table.append([{"id": 1}, {"id": 2}])
    table.append([{"id": 3}, {"id": 4}])
    recording = Recording(PATHS[DELETE])

    def compact_first(phase: Phase, attempt: int) -> None:
        if phase is Phase.HEAD_READ and attempt == 1:
            recording.paused(table.compact)

    with recording.running():
        done = table.delete("id = 1 or id = 3", mode="merge-on-read", on_phase=compact_first)
    recording.check(PATHS[DELETE])
    assert done.attempts == 2
    assert sorted(row["id"] for row in table.scan().to_arrow().to_pylist()) == [2, 4]
    assert len(table.files()) == 1


# A page that does not say what the code does is noticed

TRUE = """
## A
1. `table.handle:TableHandle.append` calls
2. `table.writes:append` makes → `Statement`
3. `table.destination:CommitNow.run` (through `table.destination:Destination.run`) runs → `Commit`
"""


def checked(page: str) -> None:
    ((_, hops),) = paths(page).items()
    for hop in hops:
        assert [value for value in hop.values if not Code.of(hop.name).mentions(value)] == []
    for hop in hops[1:]:
        check_connection(hops[hop.caller].name, hop)


def test_a_true_page_passes() -> None:
    checked(TRUE)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        pytest.param("TableHandle.append", "TableHandle.put", id="a method that is not there"),
        pytest.param("table.writes:append", "table.write:append", id="a module that is not there"),
        pytest.param("table.handle:TableHandle", "table.table:TableHandle", id="a class that is only imported there"),
        pytest.param("table.writes:append", "dml.append:append", id="a module that the caller does not import"),
        pytest.param("CommitNow.run", "CommitNow.identify", id="a method that the protocol's is not"),
        pytest.param("Destination.run", "Destination.identify", id="another method of the protocol"),
        pytest.param("destination:Destination.run", "destination:CommitNow.run", id="not a protocol"),
        pytest.param("`table.destination:CommitNow.run` (through `table.destination:Destination.run`)",
                     "`table.destination:CommitNow.accept`", id="a method that the caller does not name"),
        pytest.param("`Statement`", "`Prepared`", id="a value that the hop does not have"),
        pytest.param("(through", "(from 1, through", id="another caller"),
        pytest.param("(through", "(from 3, through", id="a later caller"),
        pytest.param("(through", "(by", id="an unknown mark"),
        pytest.param("2. ", "3. ", id="a wrong number"),
        pytest.param("2. `table.writes:append`", "2. The function append", id="a hop without code"),
    ],
)  # fmt: skip
def test_a_page_that_lies_is_refused(was: str, now: str) -> None:
    assert was in TRUE
    with pytest.raises(AssertionError):
        checked(TRUE.replace(was, now))


def test_a_path_that_is_not_run_in_its_order_is_refused(table: frazil.Table) -> None:
    hops = PATHS[APPEND]
    recording = Recording(hops)
    with recording.running():
        table.append([{"id": 1}])
    # Staging before the attempt is the order; no attempt runs while the rows are staged.
    stage, attempt = (next(i for i, hop in enumerate(hops) if hop.name.endswith(end)) for end in ("add_rows", "t.run"))
    wrong = [*hops[:stage], replace(hops[attempt], caller=stage - 1), *hops[stage:]]
    with pytest.raises(AssertionError, match="was not called by"):
        recording.check(wrong)
    with pytest.raises(AssertionError, match="was not called by"):
        recording.check([*hops, hops[0]])


# The packages


def packages_picture() -> str:
    """The contracts of ``.importlinter``: layers as boxes, the others by what they forbid."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    parts: list[str] = []
    others: list[str] = []
    for section in contracts.sections():
        contract = contracts[section]
        kind = contract.get("type")
        if kind == "layers":
            (container,) = _lines(contract["containers"])
            parts.append(f"{contract['name']} (`{container}`):\n\n```\n{_boxes(_lines(contract['layers']))}\n```\n")
        elif kind is not None:
            others.append(f"- {contract['name']}: {_limits(kind, contract)}")
    return "\n".join([*parts, "Besides:\n", *others])


def _boxes(layers: list[str]) -> str:
    rows = ["   ".join(part.strip() for part in layer.split("|")) for layer in layers]
    width = max(map(len, rows)) + 4
    lines = [f"│{row:^{width}}│" for row in rows]
    return "\n".join([f"┌{'─' * width}┐", *lines, f"└{'─' * width}┘"])


def _limits(kind: str, contract: configparser.SectionProxy) -> str:
    if kind == "forbidden":
        but = [f"`{each.split(' -> ')[0]}`" for each in _lines(contract.get("ignore_imports", ""))]
        words = "do not import" if len(_lines(contract["source_modules"])) > 1 else "does not import"
        text = f"{_named(contract['source_modules'])} {words} {_named(contract['forbidden_modules'])}"
        return f"{text}, except in {', '.join(dict.fromkeys(but))}." if but else f"{text}."
    assert kind == "protected", f"draw contracts of type {kind}"
    return f"{_named(contract['protected_modules'])} is imported by {_named(contract['allowed_importers'])} alone."


def _named(text: str) -> str:
    return ", ".join(f"`{each}`" for each in _lines(text))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_the_generated_picture_of_the_packages_is_current() -> None:
    before, mark, rest = PAGE.read_text().partition("<!-- generated: make docs -->\n")
    _, end, after = rest.partition("<!-- end -->")
    assert mark
    assert end
    whole = f"{before}{mark}{packages_picture()}\n{end}{after}"
    if os.environ.get("FRAZIL_WRITE_DOCS"):
        PAGE.write_text(whole)
    assert PAGE.read_text() == whole, "run `make docs`"


def test_the_picture_shows_each_module_of_the_source_once() -> None:
    drawn = re.findall(r"\w+", packages_picture().partition("┌")[2].partition("└")[0])
    tree = [each for each in (ROOT / "src" / "frazil").iterdir() if each.is_dir() or each.suffix == ".py"]
    modules = {each.stem for each in tree} - {"__init__", "__pycache__"}
    assert sorted(drawn) == sorted(modules)
