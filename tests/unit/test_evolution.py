"""Schemas in, schemas out: every change of a column, through structs, lists and maps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from frazil.errors import InvalidInput
from frazil.format import evolution
from frazil.format.evolution import FIRST, LAST, BoundColumn, ColumnPosition, bind
from frazil.format.schemas import to_type

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "Count", IntegerType(), required=False),
    NestedField(3, "ratio", FloatType(), required=False),
    NestedField(4, "price", DecimalType(5, 2), required=False),
    NestedField(
        5,
        "place",
        StructType(
            NestedField(6, "city", StringType(), required=True),
            NestedField(7, "zip", IntegerType(), required=False),
        ),
        required=True,
    ),
    NestedField(8, "tags", ListType(9, StructType(NestedField(10, "x", IntegerType())), element_required=True)),
    NestedField(
        11,
        "attrs",
        MapType(
            12,
            StructType(NestedField(13, "k", StringType(), required=True)),
            14,
            StructType(NestedField(15, "v", IntegerType())),
            value_required=True,
        ),
    ),
    NestedField(16, "dotted.name", StringType(), required=False),
    NestedField(17, "größe", StringType(), required=False),
    identifier_field_ids=[1],
)
LAST_ID = 17


def col(name: str | tuple[str, ...]) -> BoundColumn:
    return bind(SCHEMA, name)


def names(schema: Schema | None) -> list[str]:
    assert schema is not None
    return [field.name for field in schema.fields]


# Finding


@pytest.mark.parametrize(
    ("name", "field_id", "full"),
    [
        ("id", 1, "id"),
        ("COUNT", 2, "Count"),
        ("GRÖSSE", None, ""),
        ("Größe", 17, "größe"),
        ("place.city", 6, "place.city"),
        ("Place.CITY", 6, "place.city"),
        (("place", "city"), 6, "place.city"),
        ("`place`.`city`", 6, "place.city"),
        ("tags.element", 9, "tags.element"),
        ("tags.element.x", 10, "tags.element.x"),
        ("tags.x", 10, "tags.element.x"),
        ("attrs.value.v", 15, "attrs.value.v"),
        ("attrs.v", 15, "attrs.value.v"),
        ("attrs.key.k", 13, "attrs.key.k"),
        ("dotted.name", 16, "dotted.name"),
        ("Dotted.Name", 16, "dotted.name"),
        ("`dotted.name`", 16, "dotted.name"),
        (("dotted.name",), 16, "dotted.name"),
        (("dotted", "name"), None, ""),
        ("`place.city`", None, ""),
        ("city", None, ""),
        ("place.city.more", None, ""),
    ],
)
def test_names_are_found_as_filters_find_them(name: Any, field_id: int | None, full: str) -> None:
    if field_id is None:
        with pytest.raises(InvalidInput, match="There is no column"):
            bind(SCHEMA, name)
    else:
        assert bind(SCHEMA, name) == BoundColumn(field_id, full)


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "`a", "a`b", "``", (), ("a", ""), 7, None, ["a"]])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match="is not the name of a column"):
        evolution.split_name(name)


def test_names_that_differ_by_case_alone_must_be_spelt_exactly() -> None:
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "A", LongType()))
    assert bind(schema, "A").field_id == 2
    twice = Schema(NestedField(1, "ab", LongType()), NestedField(2, "AB", LongType()))
    with pytest.raises(InvalidInput, match="There is no column"):
        bind(twice, "Ab")


@pytest.mark.parametrize(
    ("new", "expected"), [("b", "b"), ("`x.y`", "x.y"), ("`tick``ed`", "tick`ed"), ("a b", "a b"), ("列", "列")]
)
def test_a_name_of_one_level(new: str, expected: str) -> None:
    assert evolution.one_name(new) == expected


def test_a_new_name_with_a_dot_needs_back_ticks() -> None:
    with pytest.raises(InvalidInput, match=r"has a dot.*`a\.b`"):
        evolution.one_name("a.b")


# Types


class SparkType:
    """As much of a Spark type as is asked for."""

    def jsonValue(self) -> Any:  # noqa: N802
        return {"type": "array", "elementType": "long", "containsNull": True}

    def simpleString(self) -> str:  # noqa: N802
        return "array<bigint>"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bigint", "long"),
        ("decimal(9, 2)", "decimal(9, 2)"),
        ("struct<a: int not null>", "struct<2: a: required int>"),
        (LongType(), "long"),
        (pa.int16(), "int"),
        (pa.timestamp("us", "UTC"), "timestamptz"),
        (SparkType(), "list<long>"),
    ],
)
def test_a_type_is_text_arrows_icebergs_or_sparks(kind: object, expected: str) -> None:
    assert str(to_type(kind, "x")) == expected


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "no_such",
        "int, y int",
        "int not null",
        "int comment 'c'",
        "int) using parquet",
        7,
        None,
        LongType,
        pa.null(),
    ],
)
def test_what_is_no_type_is_refused(kind: object) -> None:
    with pytest.raises(InvalidInput):
        to_type(kind, "x")


def test_a_type_of_two_fields_of_one_name_or_too_deep_is_refused() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        to_type("struct<a: int, a: int>", "x")
    with pytest.raises(InvalidInput, match="nested more than"):
        to_type("array<" * 60 + "int" + ">" * 60, "x")
    with pytest.raises(InvalidInput, match="nested more than"):
        to_type("array<int>", "x", depth=50)


# Adding


def add(name: Any, kind: str, place: ColumnPosition = LAST, schema: Schema = SCHEMA) -> tuple[Schema, int] | None:
    owner, own = evolution.struct_for_new(schema, name)
    return evolution.add_column(schema, LAST_ID, owner, own, to_type(kind, own), place=place)


@pytest.mark.parametrize(
    ("name", "found_as"),
    [
        ("new", "new"),
        ("place.street", "place.street"),
        ("tags.y", "tags.element.y"),
        ("tags.element.y", "tags.element.y"),
        ("attrs.w", "attrs.value.w"),
        ("attrs.value.w", "attrs.value.w"),
        ("`with.dot`", "with.dot"),
        (("with.dot",), "with.dot"),
        ("place.`a.b`", "place.a.b"),
        ("naïve 列", "naïve 列"),
    ],
)
def test_a_column_is_added_where_its_name_says(name: Any, found_as: str) -> None:
    added = add(name, "int")
    assert added is not None
    schema, last = added
    assert (schema.find_field(found_as).field_id, last) == (18, 18)
    assert schema.field_ids == SCHEMA.field_ids | {18}
    assert schema.identifier_field_ids == [1]
    assert schema.find_field(found_as).optional


def test_a_nested_type_gets_fresh_ids_at_every_level() -> None:
    added = add("new", "struct<a: int, b: array<struct<c: map<string, int>>>>")
    assert added is not None
    schema, last = added
    assert sorted(schema.field_ids - SCHEMA.field_ids) == list(range(18, last + 1))
    assert last == 24


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("id", "string", "already, as long and not string"),
        ("ID", "bigint", "already, as 'id'"),
        ("place.ZIP", "int", "already, as 'zip'"),
        ("nowhere.x", "int", "There is no column 'nowhere'"),
        ("id.x", "int", "not a struct"),
        ("attrs.key.x", "int", "map's keys"),
        ("`place.city`", "int", "would not be valid"),
        ("place", "struct<city: string>", "already"),
    ],
)
def test_what_cannot_be_added_is_refused(name: Any, kind: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        add(name, kind)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("id", "bigint"),
        ("place.zip", "int"),
        ("place", "struct<city: string not null, zip: int>"),
        ("price", "decimal(5, 2)"),
    ],
)
def test_the_same_column_is_nothing_to_add(name: str, kind: str) -> None:
    assert add(name, kind) is None


PLACES = [
    (FIRST, ["new", "id", "Count", "ratio"]),
    (ColumnPosition("after", (1,)), ["id", "new", "Count", "ratio"]),
    (ColumnPosition("before", (2,)), ["id", "new", "Count", "ratio"]),
    # The anchor is gone: where it was.
    (ColumnPosition("after", (99, 2, 1)), ["id", "Count", "new", "ratio"]),
    (ColumnPosition("after", (99,)), ["new", "id", "Count", "ratio"]),
]


@pytest.mark.parametrize(("place", "expected"), PLACES)
def test_a_column_goes_to_its_place(place: ColumnPosition, expected: list[str]) -> None:
    added = add("new", "int", place)
    assert names(added and added[0])[:4] == expected


def test_a_place_remembers_the_neighbours() -> None:
    assert evolution.position_beside(SCHEMA, None, "after", "RATIO") == ColumnPosition("after", (3, 2, 1))
    assert evolution.position_beside(SCHEMA, None, "before", "dotted.name") == ColumnPosition("before", (16, 17))
    owner = col("place")
    assert evolution.position_beside(SCHEMA, owner, "after", "zip").anchors == (7, 6)
    assert evolution.position_beside(SCHEMA, owner, "after", "place.zip").anchors == (7, 6)
    for name in ("id", "nothing", "tags.x"):
        with pytest.raises(InvalidInput, match="There is no column"):
            evolution.position_beside(SCHEMA, owner, "after", name)
    with pytest.raises(InvalidInput, match="itself"):
        evolution.position_beside(SCHEMA, None, "after", "id", moved=1)


# The other changes. Each row: what is done → the schema's difference, None for nothing to do, or the refusal.


def drop(*columns: Any) -> Callable[[Schema], Schema | None]:
    return lambda schema: evolution.drop_columns(schema, [col(name) for name in columns])


def rename(name: Any, new: str, old: str | None = None) -> Callable[[Schema], Schema | None]:
    column = col(name)
    was = SCHEMA.find_field(column.field_id).name if old is None else old
    return lambda schema: evolution.rename_column(schema, column, was, new)


def widen(name: Any, kind: IcebergType) -> Callable[[Schema], Schema | None]:
    return lambda schema: evolution.widen_column(schema, col(name), kind)


def optional(name: Any) -> Callable[[Schema], Schema | None]:
    return lambda schema: evolution.make_optional(schema, col(name))


def doc(name: Any, text: str | None) -> Callable[[Schema], Schema | None]:
    return lambda schema: evolution.set_doc(schema, col(name), text)


def keys(*columns: Any) -> Callable[[Schema], Schema | None]:
    return lambda schema: evolution.set_keys(schema, tuple(col(name) for name in columns))


def move(name: Any, place: ColumnPosition) -> Callable[[Schema], Schema | None]:
    return lambda schema: evolution.move_column(schema, col(name), place)


GONE = BoundColumn(99, "gone")
CHANGES: list[tuple[str, Callable[[Schema], Schema | None], Callable[[Any], object], object]] = [
    ("drop", drop("ratio"), lambda s: 3 in s.field_ids, False),
    ("drop nested", drop("place.zip"), lambda s: sorted(SCHEMA.field_ids - s.field_ids), [7]),
    ("drop in a list", drop("place.zip", "ratio"), lambda s: sorted(SCHEMA.field_ids - s.field_ids), [3, 7]),
    ("drop a list whole", drop("tags"), lambda s: sorted(SCHEMA.field_ids - s.field_ids), [8, 9, 10]),
    ("drop a struct and its field", drop("tags.x", "tags"), lambda s: 8 in s.field_ids, False),
    ("rename", rename("Count", "number"), lambda s: s.find_field(2).name, "number"),
    ("rename by case", rename("Count", "count"), lambda s: s.find_field(2).name, "count"),
    ("rename nested", rename("place.city", "town"), lambda s: s.find_column_name(6), "place.town"),
    ("rename in a list", rename("tags.x", "y"), lambda s: s.find_column_name(10), "tags.element.y"),
    ("rename a key", rename("id", "key"), lambda s: s.identifier_field_ids, [1]),
    ("widen int", widen("Count", LongType()), lambda s: s.find_field(2).field_type, LongType()),
    ("widen float", widen("ratio", DoubleType()), lambda s: s.find_field(3).field_type, DoubleType()),
    ("widen decimal", widen("price", DecimalType(9, 2)), lambda s: s.find_field(4).field_type, DecimalType(9, 2)),
    ("widen in a list", widen("tags.x", LongType()), lambda s: s.find_field(10).field_type, LongType()),
    ("widen in a map", widen("attrs.v", LongType()), lambda s: s.find_field(15).field_type, LongType()),
    ("optional", optional("place.city"), lambda s: s.find_field(6).required, False),
    ("optional struct", optional("place"), lambda s: s.find_field(5).required, False),
    ("optional element", optional("tags.element"), lambda s: s.find_field(9).required, False),
    ("optional value", optional("attrs.value"), lambda s: s.find_field(14).required, False),
    ("doc", doc("ratio", "how much"), lambda s: s.find_field(3).doc, "how much"),
    ("doc nested", doc("tags.x", "an x"), lambda s: s.find_field(10).doc, "an x"),
    ("keys", keys("id", "place.city"), lambda s: s.identifier_field_ids, [1, 6]),
    ("no keys", keys(), lambda s: s.identifier_field_ids, []),
    ("move first", move("ratio", FIRST), lambda s: names(s)[:3], ["ratio", "id", "Count"]),
    ("move last", move("id", LAST), lambda s: names(s)[-1], "id"),
    (
        "move nested",
        move("place.zip", FIRST),
        lambda s: [field.name for field in s.fields[4].field_type.fields],
        ["zip", "city"],
    ),
]


@pytest.mark.parametrize(("change", "seen", "expected"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_a_change_does_one_thing(
    change: Callable[[Schema], Schema | None], seen: Callable[[Schema], object], expected: object
) -> None:
    frozen = SCHEMA.model_dump_json()
    after = change(SCHEMA)
    assert after is not None
    assert seen(after) == expected
    assert after.field_ids <= SCHEMA.field_ids
    assert SCHEMA.model_dump_json() == frozen
    # What came out parses as JSON would bring it.
    assert Schema.model_validate_json(after.model_dump_json()) == after


NOTHING = [
    ("drop what is gone", lambda s: evolution.drop_columns(s, [GONE])),
    ("rename to its name", rename("id", "id")),
    ("renamed already", rename("Count", "Count", old="n")),
    ("widen to its type", widen("id", LongType())),
    ("wider already", widen("id", IntegerType())),
    ("wider decimal already", widen("price", DecimalType(4, 2))),
    ("optional already", optional("ratio")),
    ("no doc", doc("id", None)),
    ("the same keys", keys("id")),
    ("move to its place", move("id", FIRST)),
    ("move after its neighbour", move("Count", ColumnPosition("after", (1,)))),
]


@pytest.mark.parametrize("change", [row[1] for row in NOTHING], ids=[row[0] for row in NOTHING])
def test_nothing_to_do(change: Callable[[Schema], Schema | None]) -> None:
    assert change(SCHEMA) is None


REFUSED = [
    ("drop a key", drop("id"), "is a key"),
    ("drop an element", drop("tags.element"), "is the element, key or value of a list or map"),
    ("drop in a map key", drop("attrs.key.k"), "map's keys"),
    ("drop the last field", drop("tags.x"), "without columns"),
    ("rename what is gone", lambda s: evolution.rename_column(s, GONE, "gone", "x"), "'gone' was dropped"),
    ("renamed otherwise", rename("Count", "n", old="count_of"), "was renamed to 'Count'"),
    ("rename to a taken name", rename("Count", "ratio"), "There is a column 'ratio' already"),
    ("rename to a name taken by case", rename("Count", "ID"), "already, as 'id'"),
    ("rename an element", rename("tags.element", "e"), "is the element, key or value of a list or map"),
    ("rename in a map key", rename("attrs.key.k", "e"), "map's keys"),
    ("rename to what reads like a nested name", rename("Count", "place.city"), "would not be valid"),
    ("widen to text", widen("Count", StringType()), "cannot become string"),
    ("widen to another scale", widen("price", DecimalType(9, 3)), "cannot become"),
    ("widen a struct", widen("place", LongType()), "cannot become"),
    ("widen what is gone", lambda s: evolution.widen_column(s, GONE, LongType()), "was dropped"),
    ("optional key", optional("id"), "keys are never null"),
    ("optional map key", optional("attrs.key"), "map's keys"),
    ("doc of an element", doc("tags.element", "x"), "is the element, key or value of a list or map"),
    ("optional column as a key", keys("Count"), "may be null"),
    ("struct as a key", keys("place"), "cannot be a key"),
    ("float as a key", keys("ratio"), "cannot be a key"),
    ("key in a list", keys("tags.x"), "inside a list or map"),
    ("move an element", move("tags.element", FIRST), "is the element, key or value of a list or map"),
    ("move what is gone", lambda s: evolution.move_column(s, GONE, FIRST), "was dropped"),
]


@pytest.mark.parametrize(("change", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_the_format_does_not_allow_is_refused(change: Callable[[Schema], Schema | None], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        change(SCHEMA)


def test_a_table_keeps_a_column() -> None:
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType()))
    with pytest.raises(InvalidInput, match="The table would be left without columns"):
        evolution.drop_columns(schema, [bind(schema, "a"), bind(schema, "b")])


def test_a_key_inside_a_struct_keeps_the_struct_required_and_in_place() -> None:
    schema = keys("place.city")(SCHEMA)
    assert schema is not None
    with pytest.raises(InvalidInput, match=r"place.city is a key"):
        evolution.make_optional(schema, bind(schema, "place"))
    with pytest.raises(InvalidInput, match=r"place.city is a key"):
        evolution.drop_columns(schema, [bind(schema, "place")])


TYPES: list[IcebergType] = [
    *(IntegerType(), LongType(), FloatType(), DoubleType(), StringType(), BooleanType()),
    *(DecimalType(5, 2), DecimalType(6, 2), DecimalType(6, 3)),
]


def test_exactly_the_specifications_promotions_are_allowed() -> None:
    allowed = [(str(a), str(b)) for a, b in itertools.product(TYPES, TYPES) if evolution.can_widen(a, b)]
    assert allowed == [("int", "long"), ("float", "double"), ("decimal(5, 2)", "decimal(6, 2)")]


@pytest.mark.parametrize(
    ("mine", "other", "same"),
    [
        ("struct<a: int>", "struct<a: int>", True),
        ("struct<a: int>", "struct<a: int not null>", False),
        ("struct<a: int>", "struct<b: int>", False),
        ("struct<a: int>", "struct<a: int, b: int>", False),
        ("struct<a: int comment 'x'>", "struct<a: int>", True),
        ("array<struct<a: int>>", "array<struct<a: bigint>>", False),
        ("map<string, array<int>>", "map<string, array<int>>", True),
        ("array<int>", "int", False),
    ],
)
def test_types_are_the_same_but_for_ids_and_comments(mine: str, other: str, same: bool) -> None:
    shifted = evolution.add_column(SCHEMA, 500, None, "new", to_type(other, "x"))
    assert shifted is not None
    assert evolution.same_type(to_type(mine, "x"), shifted[0].find_field("new").field_type) is same


# What hangs on a schema


def test_a_name_mapping_keeps_old_names_and_gains_new_ones() -> None:
    mapping = create_mapping_from_schema(SCHEMA)
    frozen = mapping.model_dump_json()
    renamed = rename("place.city", "town")(SCHEMA)
    assert renamed is not None
    added = evolution.add_column(renamed, LAST_ID, bind(renamed, "place"), "city", StringType())
    assert added is not None
    text = evolution.mapping_after(mapping, SCHEMA, renamed)
    assert '"names":["city","town"]' in text
    both = evolution.mapping_after(mapping, SCHEMA, added[0])
    # The name belongs to the new column now.
    assert '"names":["town"]' in both
    assert '"names":["city"],"field-id":18' in both
    assert mapping.model_dump_json() == frozen
    dropped = drop("place")(SCHEMA)
    assert dropped is not None
    assert evolution.mapping_after(mapping, SCHEMA, dropped) == frozen


def test_properties_named_after_a_column_follow_it() -> None:
    prefix = "write.metadata.metrics.column."
    properties = {prefix + "place.city": "full", prefix + "ratio": "none", prefix + "Count": "counts", "other": "1"}
    after = rename("place", "spot")(SCHEMA)
    assert after is not None
    after = evolution.drop_columns(after, [col("ratio")])
    assert after is not None
    moved, gone = evolution.column_properties_after(properties, SCHEMA, after)
    assert moved == {prefix + "spot.city": "full"}
    assert sorted(gone) == [prefix + "place.city", prefix + "ratio"]
