"""ALTER TABLE, with Iceberg's extensions: partition fields, write order, identifier fields, branches and tags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from frazil.errors import InvalidInput, Unsupported
from frazil.format.partitions import parse_partitioning
from frazil.model import Commit, Isolation
from frazil.sql.ddl import partition_texts, properties, property_key, transform_text
from frazil.sql.session import Context
from frazil.sql.tokens import Cursor, Statement, Token, split
from frazil.table.handle import TableHandle

Name = tuple[str, ...]
_MILLISECONDS = {"DAYS": 86_400_000, "HOURS": 3_600_000, "MINUTES": 60_000}


def alter(context: Context, cursor: Cursor) -> Commit | None:
    """``ALTER TABLE t …``"""
    cursor.expect("ALTER", "TABLE")
    name = cursor.name("a table")
    if cursor.accept("RENAME", "TO"):
        context.scope.check_outside("ALTER TABLE … RENAME TO", "a table has its new name at once")
        new = cursor.name("a table")
        cursor.end()
        context.lake.rename_table(name, new)
        return None
    statement = _AlterStatement(context, context.table(name), cursor)
    for phrase, run in _FORMS:
        if cursor.accept(*phrase):
            change = run(statement)
            cursor.end()
            return change()
    forms = ", ".join(" ".join(phrase) for phrase, _ in _FORMS)
    raise InvalidInput(f"{cursor.wrong('a change of the table').problem}", advice=f"Supported are RENAME TO, {forms}")


Change = Callable[[], Commit]
"""Makes the change, after the whole statement was read."""


@dataclass(frozen=True, slots=True)
class _AlterStatement:
    """The rest of one ALTER TABLE, each clause as a method that reads it and returns the change."""

    context: Context
    table: TableHandle
    cursor: Cursor

    # Columns

    def add_column(self) -> Change:
        cursor = self.cursor
        inside = cursor.sees("(")
        given = cursor.group("columns") if inside else cursor.expression("a column")
        columns = [_new_column(cursor.statement, each) for each in split(cursor.statement, given, types=True)]
        return lambda: self._together([each.add for each in columns])

    def _together(self, changes: list[Callable[[TableHandle], Commit]]) -> Commit:
        if len(changes) == 1:
            return changes[0](self.table)
        return self.context.write(
            self.table.name,
            self.context.given,
            Isolation.SERIALIZABLE,
            lambda table, _reader: [each(table) for each in changes][-1],
        )

    def drop_column(self) -> Change:
        cursor = self.cursor
        inside = cursor
        if cursor.sees("("):
            inside = Cursor(replace(cursor.statement, tokens=cursor.group("columns")))
        names = _names(inside)
        inside.end()
        return lambda: self.table.drop_column(*names)

    def rename_column(self) -> Change:
        old = self.cursor.name("a column")
        self.cursor.expect("TO")
        new = self.cursor.part("a new name")
        return lambda: self.table.rename_column(old, f"`{new}`")

    def alter_column(self) -> Change:
        cursor, table = self.cursor, self.table
        name = cursor.name("a column")
        if cursor.accept("TYPE"):
            kind = cursor.statement.slice(cursor.expression("a type"))
            return lambda: table.widen_column(name, kind)
        if cursor.accept("DROP", "NOT", "NULL"):
            return lambda: table.make_optional(name)
        if cursor.accept("SET", "NOT", "NULL"):
            return lambda: table.require_column(name)
        if cursor.accept("COMMENT"):
            doc = cursor.text()
            return lambda: table.set_column_doc(name, doc)
        if cursor.accept("FIRST"):
            return lambda: table.move_column(name, first=True)
        cursor.expect("AFTER")
        after = cursor.name("a column")
        beside = (*name[:-1], *after) if len(after) == 1 else after
        return lambda: table.move_column(name, after=beside)

    # Properties and keys

    def set_properties(self) -> Change:
        given = properties(self.cursor)
        return lambda: self.table.set_properties(given)

    def unset_properties(self) -> Change:
        self.cursor.accept("IF", "EXISTS")
        keys = [str(each) for each in self.cursor.listed(property_key, "properties in parentheses")]
        return lambda: self.table.remove_properties(*keys)

    def set_keys(self) -> Change:
        names = _names(self.cursor)
        return lambda: self.table.set_keys(names)

    def drop_keys(self) -> Change:
        gone = [".".join(each).lower() for each in _names(self.cursor)]
        kept = [each for each in self.table.keys if each.lower() not in gone]
        if len(kept) + len(gone) != len(self.table.keys):
            raise InvalidInput(f"The keys of {self.table.name} are {', '.join(self.table.keys) or 'none'}")
        return lambda: self.table.set_keys(kept)

    # Layout

    def add_partition_field(self) -> Change:
        new = self._term()
        return lambda: self.table.set_partitioning([*partition_texts(self.table), new])

    def drop_partition_field(self) -> Change:
        kept = self._without(self.cursor.expression("a partition field"))
        return lambda: self.table.set_partitioning([each for each in kept if each is not None])

    def replace_partition_field(self) -> Change:
        kept = self._without(self.cursor.expression("a partition field", "WITH"))
        self.cursor.expect("WITH")
        new = self._term()
        return lambda: self.table.set_partitioning([new if each is None else each for each in kept])

    def _term(self) -> str:
        found = self.cursor.statement.slice(self.cursor.expression("a partition field", "AS"))
        if self.cursor.sees("AS"):
            raise Unsupported(
                "Partition fields get their names from the transform, as Iceberg gives them", advice="Leave AS out"
            )
        return found

    def _without(self, tokens: tuple[Token, ...]) -> list[str | None]:
        """The partitioning with one field, given by name or as a transform, replaced by None."""
        text = self.cursor.statement.slice(tokens)
        schema = self.table.schema
        fields = [each for each in self.table.spec.fields if str(each.transform) != "void"]
        found: list[str | None] = [transform_text(str(each.transform), schema, each.source_id) for each in fields]
        named = [index for index, each in enumerate(fields) if each.name.lower() == text.strip("`").lower()]
        if not named:
            asked = parse_partitioning([text], schema).fields[0]
            wanted = (asked.source_id, asked.transform)
            named = [index for index, each in enumerate(fields) if (each.source_id, each.transform) == wanted]
        if not named:
            raise InvalidInput(
                f"The table {self.table.name} is not partitioned by {text}",
                advice=f"It is partitioned by {', '.join(map(str, found)) or 'nothing'}",
            )
        found[named[0]] = None
        return found

    def write_ordered(self) -> Change:
        terms = split(self.cursor.statement, self.cursor.expression("columns"))
        texts = [self.cursor.statement.slice(each) for each in terms]
        return lambda: self.table.set_sort_order(texts)

    def write_unordered(self) -> Change:
        return lambda: self.table.set_sort_order([])

    # Branches and tags

    def create_branch(self) -> Change:
        name, exists, snapshot, age = self._ref()
        if exists:
            return lambda: self._nothing(name)
        return lambda: self.table.create_branch(name, snapshot, max_ref_age_ms=age)

    def create_tag(self) -> Change:
        name, exists, snapshot, age = self._ref()
        if exists:
            return lambda: self._nothing(name)
        return lambda: self.table.create_tag(name, snapshot, max_ref_age_ms=age)

    def drop_branch(self) -> Change:
        name, there = self._old_ref()
        return (lambda: self.table.drop_branch(name)) if there else lambda: self._nothing(name)

    def drop_tag(self) -> Change:
        name, there = self._old_ref()
        return (lambda: self.table.drop_tag(name)) if there else lambda: self._nothing(name)

    def _ref(self) -> tuple[str, bool, int | None, int | None]:
        cursor = self.cursor
        if_not_there = cursor.accept("IF", "NOT", "EXISTS")
        name = cursor.part()
        snapshot = cursor.number("a snapshot id") if cursor.accept("AS", "OF", "VERSION") else None
        age = None
        if cursor.accept("RETAIN"):
            count = cursor.number()
            age = count * _MILLISECONDS[cursor.one_of(*_MILLISECONDS)]
        return name, if_not_there and name in self.table.refs, snapshot, age

    def _old_ref(self) -> tuple[str, bool]:
        if_there = self.cursor.accept("IF", "EXISTS")
        name = self.cursor.part()
        return name, not if_there or name in self.table.refs

    def _nothing(self, name: str) -> Commit:
        """The result of a statement that IF [NOT] EXISTS made a no-op."""
        snapshot = self.table.snapshot(name) if name in self.table.refs else self.table.snapshot()
        number = 0 if snapshot is None else snapshot.sequence_number
        return Commit(None if snapshot is None else snapshot.snapshot_id, number, "", attempts=0, changed=False)


@dataclass(frozen=True, slots=True)
class _NewColumn:
    name: Name
    kind: str
    required: bool
    doc: str | None
    first: bool
    after: Name | None

    def add(self, table: TableHandle) -> Commit:
        return table.add_column(
            self.name, self.kind, after=self.after, first=self.first, doc=self.doc, required=self.required
        )


def _new_column(statement: Statement, tokens: tuple[Token, ...]) -> _NewColumn:
    """``a.b struct<x:int> [NOT NULL] [COMMENT 'text'] [FIRST | AFTER c]``"""
    cursor = Cursor(replace(statement, tokens=tokens))
    name = cursor.name("a column")
    kind = statement.slice(cursor.expression("a type", "NOT", "COMMENT", "FIRST", "AFTER", "DEFAULT"))
    required, first, doc, after = False, False, None, None
    while not cursor.done:
        match cursor.one_of("NOT", "COMMENT", "FIRST", "AFTER"):
            case "NOT":
                cursor.expect("NULL")
                required = True
            case "COMMENT":
                doc = cursor.text()
            case "FIRST":
                first = True
            case _:
                beside = cursor.name("a column")
                after = (*name[:-1], *beside) if len(beside) == 1 else beside
    return _NewColumn(name, kind, required, doc, first, after)


def _names(cursor: Cursor) -> list[Name]:
    found = [cursor.name("a column")]
    while cursor.accept(","):
        found.append(cursor.name("a column"))
    return found


_FORMS: tuple[tuple[tuple[str, ...], Callable[[_AlterStatement], Change]], ...] = (
    (("ADD", "PARTITION", "FIELD"), _AlterStatement.add_partition_field),
    (("DROP", "PARTITION", "FIELD"), _AlterStatement.drop_partition_field),
    (("REPLACE", "PARTITION", "FIELD"), _AlterStatement.replace_partition_field),
    (("ADD", "COLUMN"), _AlterStatement.add_column),
    (("ADD", "COLUMNS"), _AlterStatement.add_column),
    (("DROP", "COLUMN"), _AlterStatement.drop_column),
    (("DROP", "COLUMNS"), _AlterStatement.drop_column),
    (("RENAME", "COLUMN"), _AlterStatement.rename_column),
    (("ALTER", "COLUMN"), _AlterStatement.alter_column),
    (("SET", "TBLPROPERTIES"), _AlterStatement.set_properties),
    (("UNSET", "TBLPROPERTIES"), _AlterStatement.unset_properties),
    (("SET", "IDENTIFIER", "FIELDS"), _AlterStatement.set_keys),
    (("DROP", "IDENTIFIER", "FIELDS"), _AlterStatement.drop_keys),
    (("WRITE", "ORDERED", "BY"), _AlterStatement.write_ordered),
    (("WRITE", "LOCALLY", "ORDERED", "BY"), _AlterStatement.write_ordered),
    (("WRITE", "UNORDERED"), _AlterStatement.write_unordered),
    (("CREATE", "BRANCH"), _AlterStatement.create_branch),
    (("CREATE", "TAG"), _AlterStatement.create_tag),
    (("DROP", "BRANCH"), _AlterStatement.drop_branch),
    (("DROP", "TAG"), _AlterStatement.drop_tag),
)
