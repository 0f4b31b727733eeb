"""Queries over the tables of a lake, pinned at one instant and run by Spark.

    text ─▶ positions of its tables ─▶ a scan of each, with pushed conditions ─▶ the same text over the scans' frames

Only table names are replaced in the text; Spark parses the rest as the user wrote it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from frazil._sqlglot import MissingArgument, SqlSyntaxError, exp, parse, tokenize
from frazil.errors import InvalidInput, NoSuchNamespace, NoSuchTable, Unsupported
from frazil.expr import pushed
from frazil.format.schemas import suggestion
from frazil.on_spark.queries import run_query, runs_in_utc
from frazil.on_spark.session import Frame, Session
from frazil.read.scan import Scan
from frazil.sql.pushdown import conditions_by_table
from frazil.sql.scope import Reader
from frazil.sql.session import Context, part_of_a_table
from frazil.sql.tokens import Statement, Token, quoted, read_statement
from frazil.transaction import TransactionTable

QUERY_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "(")


def query(
    context: Context, text: str, reader: Reader | None = None, *, as_of: dt.datetime | str | int | None = None
) -> Frame:
    """The frame of a query. Raises InvalidInput, NoSuchTable, Unsupported."""
    session = context.session("A query")
    if reader is None:
        reader = context.reader(session) if as_of is None else context.snapshot(session, as_of)
    return prepared(context, text, reader, session).run()


@dataclass(frozen=True, slots=True)
class _Travel:
    """``VERSION AS OF 7``: the version of the table whose name ends at ``after``."""

    after: int
    start: int
    end: int
    snapshot: int | None = None
    ref: str | None = None
    as_of: str | int | None = None


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    new: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A query whose tables are replaced by scans."""

    session: Session
    text: str
    known: Callable[[], Sequence[str]]
    """The names of the lake's tables, for advice."""
    scans: dict[str, Scan]
    """Name in the text → scan."""

    def run(self) -> Frame:
        try:
            return run_query(self.session, self.text, {name: scan.to_spark() for name, scan in self.scans.items()})
        except NoSuchTable as error:
            name = error.problem.rpartition(" ")[2]
            raise NoSuchTable(error.problem, advice=suggestion(name, self.known())) from error


def prepared(context: Context, text: str, reader: Reader, session: Session) -> Prepared:
    """A query with its tables found and scanned, not run yet."""
    statement = read_statement(text)
    travels = list(_travels(statement))
    tree = parse_query(_blanked(statement, travels))
    # Where Spark and sqlglot may read a string differently, nothing is pushed.
    safe = statement.plain_texts and not any(each.says("|>") for each in statement.tokens)
    finder = _Finder(reader, travels, conditions_by_table(tree) if safe else {}, runs_in_utc(session))
    edits = [edit for table in tree.find_all(exp.Table) for edit in finder.edits(table)]
    unused = next((each for each in travels if each.after not in finder.travelled), None)
    if unused is not None:
        raise InvalidInput(f"The version at position {unused.start + 1} does not follow a table of the lake")
    edits += [_Edit(each.start, each.end, "") for each in travels]
    edits += _shortened(tree, finder.plain)
    return Prepared(session, _edited(text, edits), context.tables, finder.scans)


def parse_query(text: str) -> exp.Expr:
    """Raises InvalidInput with the position of a syntax error, or for a statement that is not a query."""
    try:
        trees = parse(text, tokenize(_with_escaped_quotes(text)))
    except SqlSyntaxError as error:
        raise InvalidInput("The query is not valid SQL", evidence=error.place) from error
    except MissingArgument as error:
        raise InvalidInput("A function in the query has too few arguments") from error
    except RecursionError as error:
        raise InvalidInput("The query is nested too deeply") from error
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Query | exp.Values | exp.Subquery):
        raise InvalidInput("The statement is not a query", advice="Write SELECT, WITH … SELECT, FROM … or VALUES")
    return tree


def _with_escaped_quotes(text: str) -> str:
    """Replaces doubled quotes inside a string by a backslash and a quote: sqlglot reads them as two strings.

    Positions do not change. Strings that contain backslashes are left alone: conditions with one are not pushed.
    """
    edits = []
    for token in read_statement(text).tokens:
        inner = text[token.start + 1 : token.end - 1]
        if token.kind == "text" and text[token.start] == "'" and "\\" not in inner:
            edits.append(_Edit(token.start + 1, token.end - 1, inner.replace("''", "\\'")))
    return _spliced(text, edits)


# Time travel


def _travels(statement: Statement) -> Iterator[_Travel]:
    """``[FOR] [SYSTEM_]VERSION AS OF 7``, ``[FOR] TIMESTAMP AS OF '…'``, after a name."""
    tokens = statement.tokens
    for position, token in enumerate(tokens[:-2]):
        if not (tokens[position + 1].says("AS") and tokens[position + 2].says("OF")):
            continue
        version = token.says("VERSION", "SYSTEM_VERSION")
        if not version and not token.says("TIMESTAMP", "SYSTEM_TIME"):
            continue
        first = position - 1 if position and tokens[position - 1].says("FOR") else position
        if not first or not tokens[first - 1].names:
            continue
        yield _travel(statement, first, position + 3, version)


def _travel(statement: Statement, first: int, position: int, version: bool) -> _Travel:
    tokens = statement.tokens
    start, after = tokens[first].start, tokens[first - 1].end
    if not version and position + 1 < len(tokens) and tokens[position].says("TIMESTAMP"):
        position += 1
    value = tokens[position] if position < len(tokens) else None
    if value is None or value.kind not in ("text", "number"):
        raise Unsupported(
            f"The version at position {start + 1} is not a constant",
            advice="Write VERSION AS OF 123, VERSION AS OF 'tag' or TIMESTAMP AS OF '2026-11-01T00:00:00Z'",
        )
    return _constant(value, after, start, version)


def _constant(value: Token, after: int, start: int, version: bool) -> _Travel:
    number = int(value.value) if value.kind == "number" and value.value.isdigit() else None
    if version:
        if value.kind == "number" and number is None:
            raise InvalidInput(f"The version at position {start + 1} is not a snapshot id")
        return _Travel(after, start, value.end, snapshot=number, ref=value.value if number is None else None)
    # A bare number is in seconds, as everywhere in Spark's SQL.
    return _Travel(after, start, value.end, as_of=value.value if number is None else number * 1000)


def _blanked(statement: Statement, travels: Sequence[_Travel]) -> str:
    """The text with the clauses blanked out, so that positions stay the same."""
    return _spliced(statement.text, [_Edit(each.start, each.end, " " * (each.end - each.start)) for each in travels])


# Tables


class _Finder:
    """Which of a query's tables are the lake's, and a scan for each."""

    def __init__(
        self, reader: Reader, travels: Sequence[_Travel], conditions: dict[int, list[str]], in_utc: bool
    ) -> None:
        self._reader = reader
        self._travels = {each.after: each for each in travels}
        self._conditions = conditions
        self._in_utc = in_utc
        self._names: dict[tuple[object, ...], str] = {}
        self.scans: dict[str, Scan] = {}
        self.plain: set[tuple[str, ...]] = set()
        """Tables without an alias: their columns may be named with the namespace in front."""
        self.travelled: set[int] = set()

    def edits(self, table: exp.Table) -> list[_Edit]:
        parts = table.parts
        # A name of one part is a temporary view or a common table expression: tables have a namespace.
        named = len(parts) > 1 and all(isinstance(each, exp.Identifier) for each in parts)
        if not named or table.find_ancestor(exp.Hint) is not None:
            return []
        name = tuple(each.name for each in parts)
        found = self._found(name)
        if found is None:
            refused = part_of_a_table(name)
            if refused is not None and self._found(name[:-1]) is not None:
                raise refused
            return []
        start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
        travel = self._travels.get(end)
        self.travelled.add(end)
        new = f"{{{self._scanned(name, found, travel, self._conditions.get(id(table), []))}}}"
        if not table.alias:
            if table.args.get("sample"):
                raise Unsupported(
                    f"TABLESAMPLE of {'.'.join(name)} needs an alias", advice="Write … TABLESAMPLE (…) AS e"
                )
            self.plain.add(name)
            new += f" AS {quoted(name[-1:])}"
        return [_Edit(start, end, new)]

    def _found(self, name: tuple[str, ...]) -> TransactionTable | None:
        """None: not a table of the lake; Spark resolves the name."""
        try:
            table = self._reader.table(name)
            _ = table.uuid
        except (NoSuchTable, NoSuchNamespace, InvalidInput):
            return None
        return table

    def _scanned(
        self, name: tuple[str, ...], table: TransactionTable, travel: _Travel | None, conditions: list[str]
    ) -> str:
        where = pushed(conditions, table.schema, in_utc=self._in_utc)
        which = (travel.snapshot, travel.ref, travel.as_of) if travel is not None else None
        key = (name, which, where)
        if key not in self._names:
            self._names[key] = f"t{len(self._names)}"
            self.scans[self._names[key]] = _scan(table, travel, where)
        return self._names[key]


def _scan(table: TransactionTable, travel: _Travel | None, where: str | None) -> Scan:
    if travel is None:
        return table.scan(where=where)
    snapshot, ref = travel.snapshot, travel.ref
    if ref is not None and ref not in table.refs and ref.isdigit():
        snapshot, ref = int(ref), None
    if where is not None:
        # The earlier version may lack columns of the current schema.
        with contextlib.suppress(InvalidInput):
            return table.scan(where=where, snapshot=snapshot, ref=ref, as_of=travel.as_of)
    return table.scan(snapshot=snapshot, ref=ref, as_of=travel.as_of)


# The text


def _shortened(tree: exp.Expr, plain: set[tuple[str, ...]]) -> list[_Edit]:
    """``shop.events.id`` is ``events.id`` to a query in which shop.events is a view called events."""
    edits = []
    for column in tree.find_all(exp.Column):
        parts = column.parts
        names = [each.name.lower() for each in parts]
        for name in plain:
            if len(names) > len(name) and names[: len(name)] == [each.lower() for each in name]:
                edits.append(_Edit(parts[0].meta["start"], parts[len(name) - 1].meta["start"], ""))
                break
    return edits


def _spliced(text: str, edits: Sequence[_Edit], outside: Callable[[str], str] = str) -> str:
    pieces, place = [], 0
    for each in sorted(edits, key=lambda edit: edit.start):
        pieces += [outside(text[place : each.start]), each.new]
        place = each.end
    return "".join([*pieces, outside(text[place:])])


def _edited(text: str, edits: Sequence[_Edit]) -> str:
    """A format string: the user's own braces are escaped."""
    return _spliced(text, edits, lambda piece: piece.replace("{", "{{").replace("}", "}}"))
