"""Text to sqlglot's tree, refusing what engines read in two ways."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from frazil._sqlglot import COMMANDS, MissingArgument, SqlSyntaxError, Token, TokenType, exp, parse, tokenize
from frazil.errors import InvalidInput


def parsed(text: str, what: str) -> exp.Expr:
    """The tree of one expression. ``what`` it is called in messages. Raises InvalidInput."""
    try:
        tokens = tokenize(_escape_doubled_quotes(text, tokenize(text)))
        _refuse_double_quotes(text, tokens, what)
        _refuse_statements(text, tokens, what)
        trees = parse(text, tokens)
    except SqlSyntaxError as error:
        raise InvalidInput(
            f"The {what} {text!r} is not valid SQL", evidence=error.place or _unbalanced_quotes(text)
        ) from error
    except MissingArgument as error:
        raise InvalidInput(f"A function in the {what} {text!r} has too few arguments") from error
    except RecursionError as error:
        raise InvalidInput(
            f"The {what} is nested too deeply", advice="Write long lists with IN instead of chained conditions"
        ) from error
    if len(trees) != 1 or trees[0] is None:
        raise InvalidInput(f"The {what} {text!r} has more than one statement", advice="Write one condition or value")
    return trees[0]


def placeholders(text: str) -> set[str]:
    """The names of the parameters in a text."""
    return {str(each.this) for each in parsed(text, "SQL text").find_all(exp.Placeholder) if each.this}


def without_placeholders(text: str, values: Mapping[str, str]) -> str:
    """The text with SQL in place of its parameters."""
    tokens = tokenize(_escape_doubled_quotes(text, tokenize(text)))
    for number in range(len(tokens) - 2, -1, -1):
        sign, name = tokens[number : number + 2]
        if sign.token_type == TokenType.COLON and name.text in values:
            is_whole_list = number > 0 and tokens[number - 1].token_type == TokenType.IN
            value = f"({values[name.text]})" if is_whole_list else values[name.text]
            text = f"{text[: sign.start]}{value}{text[name.end + 1 :]}"
    return text


def _escape_doubled_quotes(text: str, tokens: list[Token]) -> str:
    # Spark 4 reads 'it''s' as it's. sqlglot reads two adjacent strings, which Spark would concatenate to "its".
    for token, following in itertools.pairwise(tokens):
        adjacent = following.start == token.end + 1
        if adjacent and token.token_type == following.token_type == TokenType.STRING and text[token.end] == "'":
            text = text[: token.end] + "\\'" + text[following.start + 1 :]
    return text


def _refuse_double_quotes(text: str, tokens: list[Token], what: str) -> None:
    for token in tokens:
        if token.token_type == TokenType.STRING and text[token.start] == '"':
            quoted = text[token.start : token.end + 1]
            raise InvalidInput(
                f"The {what} has {quoted} in double quotes (position {token.start + 1}), which is a string to some "
                "engines and a column to others",
                advice=f"Write '{token.text}' for a string, `{token.text}` for a column",
            )


def _refuse_statements(text: str, tokens: list[Token], what: str) -> None:
    # sqlglot would log the text of a statement that it reads only in part, and filters hold personal data.
    if tokens and tokens[0].token_type in COMMANDS:
        raise InvalidInput(f"The {what} {text!r} is a statement", advice='Write one condition, as in "id = 3"')


def _unbalanced_quotes(text: str) -> str:
    unbalanced = text.count("'") % 2 or text.count("`") % 2
    return "A quote is not closed" if unbalanced else "It cannot be split into tokens"
