"""The documentation is run and compared, so that it cannot drift from the code."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil import errors
from frazil.cli._errors import EXIT_CODES, exit_code
from frazil.commit.checks import Check
from frazil.commit.conflicts import REQUIRED
from frazil.commit.operations import Kind
from frazil.model import Isolation
from mutants.listed import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
ADRS = sorted(ROOT.glob("docs/adr/[0-9]*.md"))
STATUSES = {"Proposed", "Accepted", "Rejected", "Superseded"}
RULES = range(1, 45)
_FENCE = re.compile(r"^```python(?P<mark>[^\n]*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> Iterator[tuple[str, str]]:
    """Each page's python blocks, joined: later blocks of a page go on where earlier ones stopped.

    A block that cannot run here (it needs a server) is fenced as ``python no-run`` and is compiled only.
    """
    for page in PAGES:
        blocks = [found["code"] for found in _FENCE.finditer(page.read_text()) if "no-run" not in found["mark"]]
        if blocks:
            yield str(page.relative_to(ROOT)), "\n".join(blocks)


@pytest.mark.parametrize(("page", "code"), [pytest.param(page, code, id=page) for page, code in examples()])
def test_the_examples_of_a_page_run(page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {"__name__": "__example__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_that_cannot_run_here_are_python_all_the_same(page: Path) -> None:
    for found in _FENCE.finditer(page.read_text()):
        compile(found["code"], str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_do_not_talk_down_to_the_reader(page: Path) -> None:
    text = re.sub(r'"[^"\n]*"', "", page.read_text())
    assert re.findall(r"(?i)\b(?:simply|obviously|just)\b", text) == []


@pytest.mark.parametrize("page", ADRS, ids=lambda page: page.name)
def test_a_decision_has_one_of_the_four_statuses_and_is_listed(page: Path) -> None:
    status = re.findall(r"^Status: (\w+)", page.read_text(), re.MULTILINE)
    assert len(status) == 1
    assert status[0] in STATUSES
    assert f"({page.name})" in (page.parent / "README.md").read_text()


def test_the_index_lists_each_page_once() -> None:
    listed = re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    pages = [page.name for page in ROOT.glob("docs/*.md") if page.name != "index.md"]
    assert sorted(listed) == sorted([*pages, "adr/README.md"])


def test_the_layout_in_contributing_is_that_of_the_tree() -> None:
    """Every module and package of the source and every folder with code is described, and none that is gone."""
    layout = (ROOT / "CONTRIBUTING.md").read_text().partition("## Layout")[2].split("```")[1]
    source, _, folders = layout.strip().partition("\n\n")
    described = [name for line in source.splitlines()[1:] for name in re.split(r"\s{2,}", line.strip())[0].split()]
    tree = [each for each in (ROOT / "src" / "frazil").glob("[a-z]*") if each.is_dir() or each.suffix == ".py"]
    assert sorted(described) == sorted(f"{each.name}{'/' if each.is_dir() else ''}" for each in tree)
    named = re.findall(r"^([\w/]+)/", folders, re.MULTILINE)
    assert [name for name in named if not (ROOT / name).is_dir()] == []
    code = {each.name for each in ROOT.glob("[a-z]*") if each.is_dir() and any(each.rglob("*.py"))}
    assert code - {"src", "build"} <= {name.split("/")[0] for name in named}


def test_the_readme_names_exactly_the_two_commands_for_a_fresh_machine() -> None:
    blocks = re.findall(
        r"^```(?:sh|bash|console)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    first = [line.split("#")[0].strip() for line in blocks[0].splitlines() if line.strip()]
    assert first == ["make demo", "make test"]


def test_tests_named_as_proof_exist() -> None:
    """A promise is worth the test behind it: every ``tests/…`` path and ``::name`` in the pages must be there."""
    for page in PAGES:
        for path, name in re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", page.read_text()):
            assert (ROOT / path).is_file(), f"{page.name} names {path}"
            if name:
                assert f"def {name}(" in (ROOT / path).read_text(), f"{page.name} names {path}::{name}"


def error_classes(
    root: type[errors.FrazilError] = errors.FrazilError, depth: int = 0
) -> Iterator[tuple[type[errors.FrazilError], int]]:
    yield root, depth
    for child in sorted(root.__subclasses__(), key=lambda each: each.__name__):
        if child.__module__ == errors.__name__:
            yield from error_classes(child, depth + 1)


def errors_table() -> str:
    lines = [
        "| Error | Meaning | Retryable | Staged files may go | Who must act | Exit code |",
        "|---|---|---|---|---|---|",
    ]
    for cls, depth in error_classes():
        meaning = " ".join((inspect.getdoc(cls) or "").split()).replace("``", "`").replace("|", "\\|")
        name = f"{'&nbsp;&nbsp;' * depth}`{cls.__name__}`"
        retryable, staged = ("yes" if flag else "no" for flag in (cls.retryable, cls.safe_to_delete_staged))
        code = exit_code(cls("problem"))
        lines.append(f"| {name} | {meaning} | {retryable} | {staged} | {cls.who_must_act} | {code} |")
    return "\n".join(lines)


def rule_tests() -> dict[int, list[str]]:
    """Rule → tests, from the names of the tests."""
    found: dict[int, list[str]] = {rule: [] for rule in RULES}
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        for rule, name in re.findall(r"^ *def (?=test_p(\d+)_)(\w+)\(", path.read_text(), re.MULTILINE):
            if int(rule) in found:
                found[int(rule)].append(f"`{path.relative_to(ROOT)}::{name}`")
    return found


def rules_table() -> str:
    lines = ["| Rule | Tests |", "|---|---|"]
    lines += [f"| P{rule} | {'<br>'.join(tests)} |" for rule, tests in rule_tests().items()]
    return "\n".join(lines)


def conflicts_table() -> str:
    kinds = list(Kind)
    lines = [f"| Check | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for check in Check:
        marks = []
        for kind in kinds:
            levels = [check in REQUIRED[kind, level] for level in (Isolation.SNAPSHOT, Isolation.SERIALIZABLE)]
            marks.append("x" if all(levels) else "s" if any(levels) else "")
        lines.append(f"| {check} | {' | '.join(marks)} |")
    return "\n".join(lines)


def unseen_table() -> str:
    lines = ["| Rule | What was taken out | Why no simulation sees it |", "|---|---|---|"]
    lines += [f"| {each.rule} | {each.name} | {each.unseen} |" for each in MUTANTS if each.unseen]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("errors.md", errors_table()),
        ("guarantees.md", rules_table()),
        ("conflicts.md", conflicts_table()),
        ("simulator.md", unseen_table()),
    ],
)
def test_the_generated_part_of_a_page_is_current(page: str, wanted: str) -> None:
    path = ROOT / "docs" / page
    before, mark, rest = path.read_text().partition("<!-- generated: make docs -->\n")
    _, end, after = rest.partition("\n<!-- end -->")
    assert mark
    assert end
    whole = f"{before}{mark}{wanted}{end}{after}"
    if os.environ.get("FRAZIL_WRITE_DOCS"):
        path.write_text(whole)
    assert path.read_text() == whole, "run `make docs`"


def benchmarks_table() -> str:
    lines = ["| What | Figure | |", "|---|---|---|"]
    for path in sorted(ROOT.glob("benchmarks/results/*.json")):
        found = json.loads(path.read_text())
        for what, value in found["figures"].items():
            lines.append(f"| {what} | {_figure(what, value)} |")
    return "\n".join(lines)


def _figure(what: str, value: Any) -> str:
    if not isinstance(value, dict):
        return f"{_with_unit(what, value)} |"
    verdict = "reached" if value["reached"] else "not reached"
    if "megabytes" in value:
        return f"**{value['megabytes']:.0f} MB** | wanted at most {value['allowed']} MB: {verdict}"
    bound = "at most" if "cost at" in what else "at least"
    return f"**{value['ratio']:.2f} ×** | wanted {bound} {value['wanted']} ×: {verdict}"


def _with_unit(what: str, value: float) -> str:
    if ": queries" in what or ": files read" in what or what in ("rows", "files", "repeat"):
        return f"{value:.0f}"
    if what.startswith("driver memory"):
        return f"{value:.0f} MB"
    if what.endswith(("user time", "user time of the other")):
        return f"{value:.0f} ms"
    if what.endswith("the other over this"):
        return f"{value:.2f} ×"
    if " version, median of " in what:
        return f"{value:.2f} commits/s"
    unit = "commits/s" if ": files," in what or ": rows," in what else "ms" if ": " in what else "s"
    return f"{value:.2f} {unit}"


def test_the_generated_benchmarks_name_what_was_measured() -> None:
    """The figures are those of the run that was kept; a run on another machine must not make the page wrong."""
    path = ROOT / "docs" / "benchmarks.md"
    before, mark, rest = path.read_text().partition("<!-- generated: make docs -->\n")
    old, end, after = rest.partition("\n<!-- end -->")
    assert mark
    assert end
    if os.environ.get("FRAZIL_WRITE_DOCS"):
        path.write_text(f"{before}{mark}{benchmarks_table()}{end}{after}")
        old = benchmarks_table()
    assert _measured(old) == _measured(benchmarks_table())


def _measured(table: str) -> list[str]:
    """The first column, whatever the size of the run was."""
    return [re.sub(r"\d+", "N", line.split(" | ")[0]) for line in table.splitlines()]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_this_release_has_a_test_and_a_word_in_the_guarantees(rule: int) -> None:
    assert rule_tests()[rule] != []
    assert f"**P{rule}, " in (ROOT / "docs" / "guarantees.md").read_text()


def test_every_check_is_explained() -> None:
    text = (ROOT / "docs" / "conflicts.md").read_text().partition("## What each check asks")[2]
    assert [check for check in Check if check not in text] == []


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for code in {0, 2, 70, 130, *EXIT_CODES.values()}:
        assert re.search(rf"^\| {code} \|", text, re.MULTILINE), f"docs/cli.md does not say what {code} means"
