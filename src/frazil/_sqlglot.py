"""The adapter to sqlglot: the only module that imports it, so that a new release of it is met in one place.

sqlglot takes a tenth of a second to load, so the modules that import this one are loaded on first use: ``import
frazil`` loads none of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

COMMANDS: frozenset[TokenType] = frozenset(Spark.tokenizer_class.COMMANDS)
"""Words that open a statement which sqlglot reads only in part, and whose text it then logs."""


class SqlSyntaxError(ValueError):
    """Text that is not Spark SQL. ``line``, ``column`` and ``near`` are None where sqlglot reports no place."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None, near: str | None = None):
        super().__init__(message)
        self.line = line
        self.column = column
        self.near = near

    @property
    def place(self) -> str | None:
        if self.line is None:
            return None
        return f"Syntax error at line {self.line}, column {self.column}, near {self.near!r}"


class MissingArgument(ValueError):
    """A function has fewer arguments than it needs."""


def tokenize(text: str) -> list[Token]:
    """Raises SqlSyntaxError, for instance for a quote that is not closed."""
    with _errors():
        return Spark().tokenize(text)


def parse(text: str, tokens: Sequence[Token] | None = None) -> list[exp.Expr | None]:
    """A tree for each statement. ``tokens``: those of the text, where they are changed.

    Raises SqlSyntaxError, MissingArgument, and RecursionError for text that is nested too deeply.
    """
    with _errors():
        dialect = Spark()
        return dialect.parser().parse(list(dialect.tokenize(text) if tokens is None else tokens), text)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        raise SqlSyntaxError(str(error), first.get("line"), first.get("col"), first.get("highlight")) from error
    except SqlglotError as error:
        raise SqlSyntaxError(str(error)) from error
    except (IndexError, KeyError, AttributeError, TypeError) as error:
        # sqlglot builds some functions without counting their arguments.
        raise MissingArgument(str(error)) from error


__all__ = ["COMMANDS", "MissingArgument", "SqlSyntaxError", "Token", "TokenType", "exp", "parse", "tokenize"]
