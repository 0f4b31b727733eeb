"""A statement as tokens with their positions, and a cursor over them.

Only the outline of a statement is parsed here. Conditions, values and queries are cut out of the user's own text, so
that Frazil's filters and Spark parse what the user wrote and not what a generator made of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from frazil._sqlglot import SqlSyntaxError, TokenType, tokenize
from frazil.errors import InvalidInput

Kind = Literal["word", "quoted", "text", "number", "sign"]

_TEXTS = {TokenType.STRING, TokenType.RAW_STRING}
_WORD = re.compile(r"\w+")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Token:
    """One word, name, string, number or sign. ``end`` is exclusive."""

    kind: Kind
    start: int
    end: int
    value: str
    """A string without its quotes, a name without its back-ticks, otherwise as it is written."""

    def says(self, *words: str) -> bool:
        return self.kind in ("word", "sign") and self.value.upper() in words

    @property
    def names(self) -> bool:
        return self.kind in ("word", "quoted")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its text, and its tokens without a closing semicolon."""

    text: str
    tokens: tuple[Token, ...]
    plain_texts: bool
    """No string has an escape, a raw form or double quotes, which Spark and sqlglot may read differently."""

    def slice(self, tokens: Sequence[Token]) -> str:
        return self.text[tokens[0].start : tokens[-1].end] if tokens else ""


def read_statement(text: str) -> Statement:
    """Raises InvalidInput unless the text is exactly one statement."""
    if not isinstance(text, str):
        raise InvalidInput(f"A statement is SQL text, not {type(text).__name__}")
    tokens = _tokens(text)
    while tokens and tokens[-1].says(";"):
        tokens.pop()
    if not tokens:
        raise InvalidInput("The statement is empty", advice="Write, for example, SELECT * FROM shop.events")
    second = next((each for each in tokens if each.says(";")), None)
    if second is not None:
        raise InvalidInput(
            f"There is a second statement after position {second.start + 1}", advice="Pass one statement per call"
        )
    texts = [text[each.start : each.end] for each in tokens if each.kind == "text"]
    # Spark 4.0 reads a doubled quote differently from later versions.
    plain = all(each[0] == "'" and not {"\\", "'"} & set(each[1:-1]) for each in texts)
    return Statement(text, tuple(tokens), plain)


def _tokens(text: str) -> list[Token]:
    try:
        # After a parenthesis, no word makes the tokenizer read the rest of the statement as one string.
        raw = tokenize("(" + text)[1:]
    except SqlSyntaxError as error:
        raise InvalidInput(
            "The statement cannot be split into tokens", advice="Check for a quote that is not closed"
        ) from error
    found: list[Token] = []
    for each in raw:
        start, end = each.start - 1, each.end
        if found and start < found[-1].end:
            # sqlglot splits a number with a suffix, as in 1L, into a number, a cast and a type.
            continue
        if each.token_type in _TEXTS:
            touches = found and found[-1].kind == "text" and found[-1].end == start and text[start] == "'"
            if touches:
                # Spark reads 'it''s' as it's, from 4.1 on.
                before = found.pop()
                found.append(Token("text", before.start, end, f"{before.value}'{each.text}"))
            else:
                found.append(Token("text", start, end, each.text))
        elif each.token_type == TokenType.IDENTIFIER:
            found.append(Token("quoted", start, end, each.text))
        elif each.token_type == TokenType.NUMBER:
            found.append(Token("number", start, end, text[start:end]))
        else:
            found.extend(_words(text, start, end))
    return found


def _words(text: str, start: int, end: int) -> list[Token]:
    """Splits a keyword of several words, such as ORDER BY, into several tokens."""
    places = [(start + each.start(), start + each.end()) for each in re.finditer(r"\S+", text[start:end])]
    return [Token("word" if _WORD.fullmatch(text[a:b]) else "sign", a, b, text[a:b]) for a, b in places]


class Cursor:
    """Reads a statement from left to right. Raises InvalidInput with the position of what does not fit."""

    def __init__(self, statement: Statement) -> None:
        self.statement = statement
        self.at = 0

    # Peeking

    @property
    def next(self) -> Token | None:
        return self.peek(0)

    def peek(self, ahead: int) -> Token | None:
        position = self.at + ahead
        return self.statement.tokens[position] if position < len(self.statement.tokens) else None

    def sees(self, *phrase: str) -> bool:
        """Whether these words come next."""
        found = [self.peek(ahead) for ahead in range(len(phrase))]
        return all(each is not None and each.says(word) for each, word in zip(found, phrase, strict=True))

    def sees_one(self, *words: str) -> bool:
        return self.next is not None and self.next.says(*words)

    @property
    def done(self) -> bool:
        return self.next is None

    # Taking

    def take(self) -> Token:
        if self.next is None:
            raise self.wrong("something more")
        self.at += 1
        return self.statement.tokens[self.at - 1]

    def accept(self, *phrase: str) -> bool:
        """Take these words if they come next."""
        if not self.sees(*phrase):
            return False
        self.at += len(phrase)
        return True

    def expect(self, *phrase: str) -> None:
        if not self.accept(*phrase):
            raise self.wrong(" ".join(phrase))

    def one_of(self, *words: str) -> str:
        """Take one of these words; returns it in capitals."""
        if not self.sees_one(*words):
            raise self.wrong(" or ".join(words))
        return self.take().value.upper()

    def end(self) -> None:
        if self.next is not None:
            raise self.wrong("the end of the statement")

    def name(self, what: str = "a name") -> tuple[str, ...]:
        """``a.b``, with back-ticks where a part needs them."""
        parts = [self.part(what)]
        while self.accept("."):
            parts.append(self.part(what))
        return tuple(parts)

    def part(self, what: str = "a name") -> str:
        """A name of one part."""
        if self.next is None or not self.next.names:
            raise self.wrong(what)
        return self.take().value

    def text(self, what: str = "a string in single quotes") -> str:
        if self.next is None or self.next.kind != "text":
            raise self.wrong(what)
        return self.take().value

    def number(self, what: str = "a whole number") -> int:
        negative = self.accept("-")
        if self.next is None or self.next.kind != "number" or not self.next.value.isdigit():
            raise self.wrong(what)
        found = int(self.take().value)
        return -found if negative else found

    def until(self, *words: str) -> tuple[Token, ...]:
        """The tokens up to one of these words or signs, or to the end. Brackets and CASE … END are skipped as one."""
        start, depth, cases = self.at, 0, 0
        while self.next is not None:
            token = self.next
            if depth == 0 and cases == 0 and token.says(*words):
                break
            depth += 1 if token.says("(", "[") else -1 if token.says(")", "]") else 0
            cases += 1 if token.says("CASE") else -1 if token.says("END") and cases else 0
            if depth < 0:
                break
            self.at += 1
        return self.statement.tokens[start : self.at]

    def expression(self, what: str, *words: str) -> tuple[Token, ...]:
        """Like until(), but at least one token is required."""
        found = self.until(*words)
        if not found:
            raise self.wrong(what)
        return found

    def group(self, what: str) -> tuple[Token, ...]:
        """The tokens between the parenthesis that comes next and the one that closes it."""
        opened = self.next
        if not self.accept("("):
            raise self.wrong(what)
        found = self.until()
        if not self.accept(")"):
            assert opened is not None
            raise InvalidInput(f"The parenthesis at position {opened.start + 1} is not closed")
        return found

    def listed(self, item: Callable[[Cursor], object], what: str) -> list[object]:
        """Items in parentheses, with commas between them."""
        inner = Cursor(replace(self.statement, tokens=self.group(what)))
        found = [item(inner)]
        while inner.accept(","):
            found.append(item(inner))
        if not inner.done:
            raise inner.wrong("a comma or a closing parenthesis")
        return found

    # Refusing

    def wrong(self, wanted: str) -> InvalidInput:
        text, found = self.statement.text, self.next
        if found is None:
            last = self.statement.tokens[-1].end if self.statement.tokens else len(text)
            return InvalidInput(f"Expected {wanted}, but the statement ends at position {last}")
        shown = text[found.start : found.end]
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
        return InvalidInput(f"Expected {wanted} at position {found.start + 1}, found {shown!r}")


def split(statement: Statement, tokens: Sequence[Token], *, types: bool = False) -> list[tuple[Token, ...]]:
    """The parts between top-level commas. ``types``: angle brackets count as brackets."""
    opening, closing = ("([<", ")]>") if types else ("([", ")]")
    found: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.says(",") and depth == 0:
            found.append([])
            continue
        if token.kind == "sign":
            depth += sum(token.value.count(each) for each in opening)
            depth -= sum(token.value.count(each) for each in closing)
        found[-1].append(token)
    empty = next((index for index, each in enumerate(found) if not each), None)
    if empty is not None:
        place = tokens[0].start if tokens else len(statement.text)
        raise InvalidInput(f"Something is missing beside a comma, after position {place + 1}")
    return [tuple(each) for each in found]


def quoted(parts: Sequence[str]) -> str:
    """A name for Frazil's own parsers, with every part in back-ticks."""
    return ".".join(f"`{part}`" for part in parts)


def renamed(statement: Statement, tokens: Sequence[Token], names: Mapping[tuple[str, ...], str]) -> str:
    """The text of an expression with qualifiers replaced: ``{("shop", "events"): "`e`"}`` makes shop.events.id `e`.id.

    An empty replacement removes the qualifier and its dot.
    """
    pieces: list[str] = []
    place = tokens[0].start
    position = 0
    while position < len(tokens):
        length, new = _qualifier(tokens, position, names)
        if length:
            dot = position + 2 * length - 1
            pieces += [statement.text[place : tokens[position].start], new]
            place = tokens[dot].start if new else tokens[dot].end
            position = dot
        position += 1
    return "".join([*pieces, statement.text[place : tokens[-1].end]])


def _qualifier(tokens: Sequence[Token], position: int, names: Mapping[tuple[str, ...], str]) -> tuple[int, str]:
    if position and tokens[position - 1].says("."):
        return 0, ""
    for parts, new in sorted(names.items(), key=lambda item: -len(item[0])):
        run = tokens[position : position + 2 * len(parts)]
        if len(run) < 2 * len(parts) or not all(dot.says(".") for dot in run[1::2]):
            continue
        same = (each.names and each.value.lower() == part.lower() for each, part in zip(run[::2], parts, strict=True))
        if all(same):
            return len(parts), new
    return 0, ""


def has_query(tokens: Sequence[Token]) -> bool:
    return any(each.says("SELECT") for each in tokens)
