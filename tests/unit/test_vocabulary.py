"""One word for one thing: the glossary names existing modules, and retired words do not come back.

``SCOPE`` has the paths whose words are checked.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"

SCOPE = (
    "src/frazil",
    "verification/src/frazil_verification",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
)
BANNED = (
    # For a process: the writer, another writer, the leader, the reader, the caller.
    "anybody",
    "everybody",
    "nobody",
    "somebody",
    "whoever",
    # Retired terms; the glossary has the words that replaced them.
    "boarded",
    "combiner",
    "courtesy",
    "crowded",
    "glance",
    "namesake",
    "parcel",
    "passenger",
    "stranger",
)
ALLOWED = {
    # A value of FrazilError.who_must_act.
    ("docs/errors.md", "nobody"),
    ("src/frazil/errors.py", "nobody"),
    # The name of a count in the simulator's reports, also in kept ones.
    ("verification/src/frazil_verification/simulator/process.py", "combiner"),
}
_BANNED = re.compile(rf"(?i)(?<![a-z])(?:{'|'.join(BANNED)})s?(?![a-z])")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENTRY = re.compile(r"^- \*\*(?P<term>[^*]+)\*\*.*?\((?:planned, )?`(?P<module>[^`]+)`\): .", re.MULTILINE)
# Names of code are checked in the code, and generated parts where they come from.
_NOT_PROSE = re.compile(r"^```.*?^```|`[^`\n]+`|\]\([^)]*\)|<!-- generated.*?<!-- end -->", re.MULTILINE | re.DOTALL)


def files() -> Iterator[Path]:
    for each in SCOPE:
        place = ROOT / each
        yield from (place,) if place.is_file() else sorted([*place.rglob("*.py"), *place.rglob("*.md")])


def words_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of what the vocabulary covers: prose, or names, comments and strings of code."""
    if path.suffix != ".py":
        text = _NOT_PROSE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text())
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        yield token.start[0], _CAMEL.sub("_", token.string) if token.type == tokenize.NAME else token.string


def retired(path: Path) -> list[str]:
    name = str(path.relative_to(ROOT))
    found = ((line, word.lower()) for line, text in words_of(path) for word in _BANNED.findall(text))
    return [f"{name}:{line}: {word}" for line, word in found if (name, word) not in ALLOWED]


@pytest.mark.parametrize("path", list(files()), ids=lambda path: str(path.relative_to(ROOT)))
def test_retired_words_do_not_come_back(path: Path) -> None:
    assert retired(path) == []


@pytest.mark.parametrize(
    "code",
    ["class GroupCombiner: ...", "combiner_of = 1", "# Nobody waits.", '"""Whoever commits."""', 'f"a stranger {1}"'],
)
def test_a_retired_word_is_found_in_names_comments_and_strings(code: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"{code}\n")
    assert [word for _, text in words_of(path) for word in _BANNED.findall(text)] != []


def test_every_scope_has_files() -> None:
    assert [each for each in SCOPE if not (ROOT / each).exists()] == []


def test_glossary_entries_name_modules_that_exist() -> None:
    entries = _ENTRY.findall(GLOSSARY.read_text())
    assert len(entries) == len(re.findall(r"^- ", GLOSSARY.read_text(), re.MULTILINE))
    assert [module for _, module in entries if not (ROOT / "src" / "frazil" / module).is_file()] == []


def test_the_glossary_defines_each_term_once_in_two_screens() -> None:
    terms = [term for term, _ in _ENTRY.findall(GLOSSARY.read_text())]
    assert sorted(set(terms)) == sorted(terms)
    assert len(GLOSSARY.read_text().splitlines()) <= 70
