"""The rules of the protocol that are about operations, each with the interleaving it was written for.

Where a rule names an order of events, ``mine`` is called with its files staged and the head read, and ``theirs`` lands
at that moment: the first swap is lost, and mine is rebased or refused.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal

import fastavro
import pytest

import frazil
from frazil.commit.context import Phase
from frazil.errors import CommitFailed
from frazil.format.manifests import read_manifest, read_manifest_list
from frazil.model import Content, Entry, Ident, Manifest
from frazil.runtime import SYSTEM
from surface.matrix import QUICK, check_evidence, files_of, losing_a_race, named_files, once, rows_of

DDL = "id bigint not null, part string, v bigint"
NAME = "ns.t"
ChangeMode = Literal["merge-on-read", "copy-on-write"]
MODES: tuple[ChangeMode, ...] = ("merge-on-read", "copy-on-write")


def row(key: int, part: str | None, v: int) -> dict[str, Any]:
    return {"id": key, "part": part, "v": v}


ONE, TWO, THREE = row(1, "A", 10), row(2, "A", 20), row(3, "A", 30)


@pytest.fixture
def lake() -> frazil.Lake:
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    return lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    """One file with three rows."""
    table = lake.create_table(NAME, DDL, keys=["id"])
    table.append([ONE, TWO, THREE])
    return table


@pytest.fixture
def parted(lake: frazil.Lake) -> frazil.Table:
    parted = lake.create_table(NAME, DDL, partition_by=["part"], keys=["id"])
    parted.append([ONE, TWO, THREE, row(11, "B", 110)])
    return parted


def after(theirs: Callable[[], object]) -> dict[str, Any]:
    """Options with which a verb finds that ``theirs`` landed after it had staged its files and read the head."""
    return {"retry": QUICK, "on_phase": once(Phase.HEAD_READ, theirs), "on_conflict": "abort"}


def redone_after(theirs: Callable[[], object]) -> dict[str, Any]:
    """The same, and the statement is evaluated again instead of being refused."""
    return {"retry": QUICK, "on_phase": once(Phase.HEAD_READ, theirs)}


def refused(mine: Callable[[], object], table: frazil.Table, *says: str) -> frazil.ConflictError:
    """Mine is refused for a conflict, and leaves nothing behind."""
    with pytest.raises(frazil.ConflictError) as caught:
        mine()
    for part in says:
        assert part in str(caught.value)
    assert files_of(table) == named_files(table)
    return caught.value


def manifests_of(table: frazil.Table) -> tuple[Manifest, ...]:
    snapshot = table.snapshot()
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    return read_manifest_list(table._lake.storage, snapshot.manifest_list)


def live_entries(table: frazil.Table, content: Content) -> Iterator[Entry]:
    for manifest in manifests_of(table):
        for entry in read_manifest(table._lake.storage, manifest):
            if entry.file.content == content:
                yield entry


def raw_entries(table: frazil.Table, manifest: Manifest) -> list[dict[str, Any]]:
    """A manifest's records as they are in the file, with nothing inherited."""
    data = table._lake.storage.read(manifest.manifest_path)
    return [record for record in fastavro.reader(io.BytesIO(data)) if isinstance(record, dict)]


# P14 Inheritance

EXISTING, ADDED, DELETED = 0, 1, 2


@pytest.mark.parametrize("lost_races", [0, 1])
def test_p14_new_entries_inherit_and_old_ones_are_explicit(parted: frazil.Table, lost_races: int) -> None:
    def theirs() -> None:
        if lost_races:
            parted.append([row(99, "Z", 0)])

    verbs: list[Callable[..., frazil.Commit]] = [
        lambda **how: parted.append([row(4, "A", 40), row(12, "B", 120)], **how),
        lambda **how: parted.update(set={"v": "v + 1"}, where="id = 1", mode="copy-on-write", **how),
        lambda **how: parted.delete("id = 2", mode="merge-on-read", **how),
        lambda **how: parted.upsert([row(3, "A", 31)], mode="equality", **how),
        lambda **how: parted.delete("part = 'B'", **how),
        parted.compact,
    ]
    statuses = set()
    for verb in verbs:
        done = verb(**after(theirs))
        assert done.attempts == 1 + lost_races
        own = [each for each in manifests_of(parted) if each.added_snapshot_id == done.snapshot_id]
        assert own
        for manifest in own:
            assert manifest.sequence_number == done.sequence_number
            for record in raw_entries(parted, manifest):
                statuses.add(record["status"])
                _check_inheritance(record, done)
            for entry in read_manifest(parted._lake.storage, manifest, live_only=False):
                if entry.status == ADDED:
                    assert entry.snapshot_id == done.snapshot_id
    assert statuses == {EXISTING, ADDED, DELETED}


def _check_inheritance(record: dict[str, Any], done: frazil.Commit) -> None:
    if record["status"] == EXISTING:
        assert None not in (record["snapshot_id"], record["sequence_number"], record["file_sequence_number"])
        return
    assert record["snapshot_id"] is None
    if record["status"] == ADDED:
        # A rewrite's output has a data sequence number of its own (P20); when it came is inherited all the same.
        assert record["file_sequence_number"] is None
        assert record["sequence_number"] is None or record["sequence_number"] < done.sequence_number
    else:
        assert None not in (record["sequence_number"], record["file_sequence_number"])


# P15 Spec


def test_p15_a_position_delete_has_the_spec_and_partition_of_the_file_it_names(parted: frazil.Table) -> None:
    (old,) = (each for each in live_entries(parted, Content.DATA) if each.file.partition == ("A",))
    parted.set_partitioning(["truncate(10, id)"])
    parted.append([row(4, "A", 40), row(5, "A", 50)])
    assert parted.spec.spec_id != old.file.spec_id
    done = parted.delete("id in (1, 4)", mode="merge-on-read", **after(lambda: parted.append([row(50, "Z", 0)])))
    assert (done.attempts, done.rows_deleted) == (2, 2)
    data = {each.file.file_path: each.file for each in live_entries(parted, Content.DATA)}
    deletes = [each.file for each in live_entries(parted, Content.POSITION_DELETES)]
    assert {each.spec_id for each in deletes} == {old.file.spec_id, parted.spec.spec_id}
    for each in deletes:
        assert each.referenced_data_file is not None
        named = data[each.referenced_data_file]
        assert (each.spec_id, each.partition) == (named.spec_id, named.partition)
    assert [each["id"] for each in rows_of(parted)] == [2, 3, 5, 11, 50]


def test_p15_files_stay_under_the_spec_they_were_staged_with(parted: frazil.Table) -> None:
    old = parted.spec.spec_id
    theirs = after(lambda: parted.set_partitioning(["truncate(10, id)"]))
    parted.update(set={"v": "v + 1"}, where="id = 1", mode="copy-on-write", **theirs)
    assert {each.file.spec_id for each in live_entries(parted, Content.DATA)} == {old}
    assert rows_of(parted, where="part = 'A'") == [row(1, "A", 11), TWO, THREE]
    for manifest in manifests_of(parted):
        specs = {entry.file.spec_id for entry in read_manifest(parted._lake.storage, manifest)}
        assert specs <= {manifest.partition_spec_id}


# P16 Field ids

USES_V: dict[str, Callable[..., frazil.Commit]] = {
    "delete": lambda table, **how: table.delete("v = 10", mode="merge-on-read", **how),
    "delete by copying": lambda table, **how: table.delete("v = 10", mode="copy-on-write", **how),
    "update": lambda table, **how: table.update(set={"v": "v + 1"}, where="v = 10", mode="merge-on-read", **how),
    "update by copying": lambda table, **how: table.update(
        set={"v": "v + 1"}, where="v = 10", mode="copy-on-write", **how
    ),
    "overwrite": lambda table, **how: table.overwrite([row(7, "A", 10)], where="v = 10", **how),
    "upsert": lambda table, **how: table.upsert([row(1, "A", 11)], mode="equality", **how),
    "append": lambda table, **how: table.append([row(7, "A", 70)], **how),
}


def drop_and_add_again(table: frazil.Table) -> None:
    table.drop_column("v")
    table.add_column("v", "bigint")


@pytest.mark.parametrize("verb", USES_V)
@pytest.mark.parametrize("theirs", [lambda table: table.drop_column("v"), drop_and_add_again], ids=["drop", "readd"])
def test_p16_a_column_that_was_used_and_dropped_concurrently_aborts(
    table: frazil.Table, verb: str, theirs: Callable[[frazil.Table], object]
) -> None:
    error = refused(lambda: USES_V[verb](table, **after(lambda: theirs(table))), table)
    assert {each.check for each in error.conflicts} == {"schema still compatible"}
    assert [each["id"] for each in rows_of(table)] == [1, 2, 3]


def test_p16_a_dropped_column_that_was_not_used_does_not_matter(table: frazil.Table) -> None:
    table.delete("id = 1", mode="merge-on-read", **after(lambda: table.drop_column("v")))
    assert rows_of(table) == [{"id": 2, "part": "A"}, {"id": 3, "part": "A"}]


@pytest.mark.parametrize("verb", USES_V)
def test_p16_a_column_renamed_concurrently_is_still_the_same(table: frazil.Table, verb: str) -> None:
    def theirs() -> None:
        table.rename_column("v", "value")
        # Another column takes the name: resolving columns by name is wrong from here on.
        table.add_column("v", "bigint")

    USES_V[verb](table, **after(theirs))
    found = {each["id"]: each["value"] for each in rows_of(table)}
    assert {each["v"] for each in rows_of(table)} == {None}
    expected: dict[str, dict[int, int]] = {
        "delete": {2: 20, 3: 30},
        "overwrite": {2: 20, 3: 30, 7: 10},
        "append": {1: 10, 2: 20, 3: 30, 7: 70},
    }
    assert found == expected.get(verb.removesuffix(" by copying"), {1: 11, 2: 20, 3: 30})


WIDE_DDL = "id int not null, n int, f float, d decimal(5, 2), name string"
WIDENED: dict[str, tuple[str, str, list[Any], Any]] = {
    # column: its new type, what selects row 1 alone, its values before, a value that only the new type holds
    "n": ("bigint", "n in (10, 3000000000)", [10, 20, 30], 3_000_000_001),
    "f": ("double", "f < 0.2", [0.125, 0.5, 2.0**100], 1e300),
    "d": (
        "decimal(12, 2)",
        "d = 1.50 or d > 999999.99",
        [Decimal("1.50"), Decimal("2.50"), Decimal("999.99")],
        Decimal("1000.00"),
    ),
    "id": ("bigint", "id = 1 or id > 3000000000", [1, 2, 3], 3_000_000_000),
}
BY_CONDITION: dict[str, Callable[..., frazil.Commit]] = {
    "delete": lambda table, where, _, **how: table.delete(where, mode="merge-on-read", **how),
    "delete by copying": lambda table, where, _, **how: table.delete(where, mode="copy-on-write", **how),
    "update": lambda table, where, _, **how: table.update(
        set={"name": "'new'"}, where=where, mode="merge-on-read", **how
    ),
    "update by copying": lambda table, where, _, **how: table.update(
        set={"name": "'new'"}, where=where, mode="copy-on-write", **how
    ),
    "overwrite": lambda table, where, new, **how: table.overwrite([new], where=where, **how),
}


def wide_rows(column: str) -> list[dict[str, Any]]:
    values = WIDENED[column][2]
    rest = {"n": 0, "f": 0.0, "d": Decimal("0.00"), "name": "old"}
    return [{"id": number, **rest, column: value} for number, value in enumerate(values, 1)]


def wide_table(lake: frazil.Lake, column: str, **how: Any) -> frazil.Table:
    table = lake.create_table(NAME, WIDE_DDL, keys=["id"], **how)
    table.append(wide_rows(column))
    return table


def also(column: str, number: int, value: Any) -> dict[str, Any]:
    return {**wide_rows(column)[0], "id": number, "name": "theirs", column: value}


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
@pytest.mark.parametrize("column", WIDENED)
@pytest.mark.parametrize("verb", BY_CONDITION)
def test_p16_a_column_widened_concurrently_is_still_the_same(
    lake: frazil.Lake, verb: str, column: str, isolation: Any
) -> None:
    kind, where, _, beyond = WIDENED[column]
    table = wide_table(lake, column)
    one, two, three = wide_rows(column)

    def theirs() -> None:
        table.widen_column(column, kind)
        # A file whose bounds only the new type can read, and which the condition does not select.
        table.append([also(column, 4, beyond)])

    new = {**one, "name": "new"}
    done = BY_CONDITION[verb](table, where, new, isolation=isolation, **after(theirs))
    assert done.attempts == 2
    left = [] if verb.startswith("delete") else [new]
    assert rows_of(table) == [*left, two, three, also(column, 4, beyond)]
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize(("column", "value"), [("n", 3_000_000_000), ("f", -1e300), ("d", Decimal("1000000.00"))])
@pytest.mark.parametrize("verb", BY_CONDITION)
def test_p16_a_row_that_only_the_wider_type_holds_is_seen_when_it_matches(
    lake: frazil.Lake, verb: str, column: str, value: Any
) -> None:
    kind, where, *_ = WIDENED[column]
    table = wide_table(lake, column)
    new = {**wide_rows(column)[0], "name": "new"}

    def theirs() -> None:
        table.widen_column(column, kind)
        table.append([also(column, 4, value)])

    error = refused(lambda: BY_CONDITION[verb](table, where, new, **after(theirs)), table)
    assert {each.check for each in error.conflicts} == {"no added rows match my filter"}


@pytest.mark.parametrize("partitioned", [[], ["id"], ["bucket(4, id)"], ["truncate(2, id)"]], ids=str)
@pytest.mark.parametrize("mode", ["equality", "position", "copy-on-write"])
def test_p16_keys_that_were_widened_concurrently_are_still_the_same(
    lake: frazil.Lake, mode: Any, partitioned: list[str]
) -> None:
    table = wide_table(lake, "n", partition_by=partitioned)
    one, two, three = wide_rows("n")
    mine = [{**two, "name": "mine"}, {**two, "id": 5, "name": "mine"}]

    def theirs() -> None:
        table.widen_column("id", "bigint")
        # The low half of its bits is the key 2.
        table.append([{**one, "id": 2**32 + 2}])

    assert table.upsert(mine, mode=mode, **after(theirs)).attempts == 2
    wanted = [one, mine[0], three, mine[1], {**one, "id": 2**32 + 2}]
    assert rows_of(table) == wanted
    # The deletes by key stay what they are when everything is rewritten in the wider type.
    table.upsert([{**one, "id": 2**32 + 2, "name": "again"}, {**three, "name": "again"}], mode=mode)
    wanted[2:] = [{**three, "name": "again"}, mine[1], {**one, "id": 2**32 + 2, "name": "again"}]
    assert rows_of(table) == wanted
    table.compact()
    assert rows_of(table) == wanted


@pytest.mark.parametrize("mode", ["position", "copy-on-write"])
def test_p16_a_key_that_came_after_the_widening_is_found(lake: frazil.Lake, mode: Any) -> None:
    table = wide_table(lake, "n")
    five = {**wide_rows("n")[0], "id": 5}

    def theirs() -> None:
        table.widen_column("id", "bigint")
        table.append([five])

    error = refused(lambda: table.upsert([{**five, "name": "mine"}], mode=mode, **after(theirs)), table)
    assert {each.check for each in error.conflicts} == {"no added rows match my filter"}


@pytest.mark.parametrize("column", ["n", "f", "d"])
def test_p16_partitions_of_a_column_that_was_widened_are_replaced(lake: frazil.Lake, column: str) -> None:
    kind, _, _, beyond = WIDENED[column]
    table = wide_table(lake, column, partition_by=[column])
    one, two, three = wide_rows(column)

    def theirs() -> None:
        table.widen_column(column, kind)
        table.append([also(column, 4, beyond)])

    table.replace_partitions([{**one, "name": "new"}], **after(theirs))
    assert rows_of(table) == [{**one, "name": "new"}, two, three, also(column, 4, beyond)]


def test_p16_what_a_transaction_read_of_a_widened_column_still_counts(lake: frazil.Lake) -> None:
    kind, where, _, beyond = WIDENED["n"]
    table = wide_table(lake, "n")
    for number, (value, lands) in enumerate([(beyond, True), (3_000_000_000, False)]):
        with contextlib.nullcontext() if lands else pytest.raises(frazil.ConflictError), lake.transaction() as tx:
            assert tx.table(NAME).scan(where=where).count() == 1
            tx.table(NAME).append([also("f", 10 + number, 0.0)])
            table.widen_column("n", kind)
            table.append([also("n", 20 + number, value)])
    assert [each["id"] for each in rows_of(table)] == [1, 2, 3, 10, 20, 21]


def test_p16_rows_asked_to_go_are_known_after_the_column_was_widened(lake: frazil.Lake) -> None:
    """The condition of a delete is bound to the type its column had; an append finds a wider type (P23)."""
    table = wide_table(lake, "n")

    def theirs(column: str, where: str) -> None:
        table.delete(where)
        table.widen_column(column, WIDENED[column][0])

    meanwhile = after(lambda: theirs("n", "n >= 20"))
    error = refused(lambda: table.append([also("n", 4, 40)], **meanwhile), table)
    assert {each.check for each in error.conflicts} == {"my rows not deleted meanwhile"}
    assert table.append([also("n", 5, 5)], **after(lambda: theirs("d", "d = 0 and n = 10"))).attempts == 2
    assert [each["id"] for each in rows_of(table)] == [5]


def test_p16_more_digits_abort_a_condition_that_divides_by_them(lake: frazil.Lake) -> None:
    table = wide_table(lake, "d")
    theirs = after(lambda: table.widen_column("d", "decimal(38, 2)"))
    error = refused(lambda: table.delete("10 / d > 5", **theirs), table, "rounded otherwise")
    assert {each.check for each in error.conflicts} == {"schema still compatible"}


def test_p16_two_writers_new_columns_get_ids_of_their_own(table: frazil.Table) -> None:
    theirs = after(lambda: table.append([{**row(5, "A", 50), "theirs": 5}], merge_schema=True))
    table.append([{**row(4, "A", 40), "mine": "four"}], merge_schema=True, **theirs)
    found = {each["id"]: (each["mine"], each["theirs"]) for each in rows_of(table)}
    assert found == {**dict.fromkeys((1, 2, 3), (None, None)), 4: ("four", None), 5: (None, 5)}


def test_p16_one_column_with_two_types_aborts_and_with_one_type_is_nothing(table: frazil.Table) -> None:
    lake = table._lake
    with losing_a_race(lake, lambda: table.add_column("x", "int")):
        assert not table.add_column("x", "int", retry=QUICK).changed
    with losing_a_race(lake, lambda: table.add_column("y", "int")):
        refused(lambda: table.add_column("y", "string", retry=QUICK), table, "y")
    with losing_a_race(lake, lambda: table.add_column("w", "int")):
        table.add_column("z", "int", retry=QUICK)
    assert table.schema.column_names == ["id", "part", "v", "x", "y", "w", "z"]
    assert str(table.schema.find_field("y").field_type) == "int"


# P19 Files I replace


@pytest.mark.parametrize(
    "theirs",
    [
        lambda table: table.upsert([row(2, "A", 99)], mode="equality"),
        lambda table: table.upsert([row(2, "A", 99)], mode="position"),
        lambda table: table.update(set={"v": "99"}, where="id = 2", mode="merge-on-read"),
        lambda table: table.update(set={"v": "99"}, where="id = 2", mode="copy-on-write"),
        lambda table: table.overwrite([row(2, "A", 99)], where="id = 2"),
    ],
    ids=["upsert", "position upsert", "update", "copying update", "overwrite"],
)
@pytest.mark.parametrize("mode", MODES)
def test_p19_a_row_that_was_only_copied_does_not_come_back(
    table: frazil.Table, theirs: Callable[[frazil.Table], object], mode: ChangeMode
) -> None:
    """f = {1, 2}; 1 is updated by copying to f'; an upsert of 2 lands; f' must not restore the old 2."""
    table.update(set={"v": "11"}, where="id = 1", mode=mode, **after(lambda: theirs(table)))
    assert rows_of(table) == [row(1, "A", 11), row(2, "A", 99), THREE]


@pytest.mark.parametrize("their_mode", MODES)
@pytest.mark.parametrize("mode", MODES)
def test_p19_a_row_deleted_concurrently_does_not_come_back_in_a_copy(
    table: frazil.Table, mode: ChangeMode, their_mode: ChangeMode
) -> None:
    table.delete("id = 1", mode=mode, **after(lambda: table.delete("id = 2", mode=their_mode)))
    assert rows_of(table) == [THREE]


def test_p19_the_row_i_change_is_one_that_another_replaced_by_key(table: frazil.Table) -> None:
    def mine() -> None:
        how = after(lambda: table.upsert([row(1, "A", 99)], mode="equality"))
        table.update(set={"v": "11"}, where="id = 1", mode="copy-on-write", isolation="snapshot", **how)

    refused(mine, table)
    assert rows_of(table) == [row(1, "A", 99), TWO, THREE]


# P20 A rewrite's output


def test_p20_a_row_inserted_again_survives_a_rewrite_of_older_files(table: frazil.Table) -> None:
    """The oldest of the inputs' numbers would put the new row 1 below the delete that brought it."""
    table.upsert([row(1, "A", 11)], mode="equality")
    snapshot = table.snapshot()
    assert snapshot is not None
    table.compact()
    assert rows_of(table) == [row(1, "A", 11), TWO, THREE]
    assert {each.sequence_number for each in table.files()} == {snapshot.sequence_number}


@pytest.mark.parametrize("rewrite", ["compact", "update", "delete"])
def test_p20_a_row_deleted_by_key_concurrently_stays_deleted(table: frazil.Table, rewrite: str) -> None:
    """The commit's own number would put the copy above the delete, and the old row 2 would be back."""
    table.append([row(4, "A", 40)])
    read = table.snapshot()
    assert read is not None
    verbs: dict[str, Callable[..., frazil.Commit]] = {
        "compact": table.compact,
        "update": lambda **how: table.update(set={"v": "0"}, where="id = 3", mode="copy-on-write", **how),
        "delete": lambda **how: table.delete("id = 3", mode="copy-on-write", **how),
    }
    done = verbs[rewrite](**after(lambda: table.upsert([row(2, "A", 22)], mode="equality")))
    assert done.attempts == 2
    assert [each["v"] for each in rows_of(table, where="id <> 3")] == [10, 22, 40]
    (copy,) = (
        each
        for each in live_entries(table, Content.DATA)
        if each.snapshot_id == done.snapshot_id and each.sequence_number != done.sequence_number
    )
    assert copy.sequence_number == read.sequence_number
    # Java skips deletes below a manifest's smallest number, so the list has to say the truth about it.
    for manifest in manifests_of(table):
        numbers = [each.sequence_number or 0 for each in read_manifest(table._lake.storage, manifest)]
        assert manifest.min_sequence_number == min(numbers, default=manifest.min_sequence_number)


# P21 Equality deletes


def test_p21_a_row_is_replaced_by_key_in_whatever_partition_it_is(parted: frazil.Table) -> None:
    parted.upsert([row(1, "B", 11), row(11, None, 111)], mode="equality")
    assert rows_of(parted) == [row(1, "B", 11), TWO, THREE, row(11, None, 111)]
    deletes = list(live_entries(parted, Content.EQUALITY_DELETES))
    assert deletes
    metadata = parted._lake.catalog.load(Ident.parse(NAME)).metadata
    for each in deletes:
        assert metadata.spec(each.file.spec_id).is_unpartitioned()
    assert not parted.spec.is_unpartitioned(), "the spec for deletes is not the one for rows"


def test_p21_a_row_moved_to_another_partition_concurrently_is_replaced(parted: frazil.Table) -> None:
    theirs = after(lambda: parted.update(set={"part": "'Z'"}, where="id = 1"))
    parted.upsert([row(1, "A", 11)], mode="equality", **theirs)
    assert rows_of(parted) == [row(1, "A", 11), TWO, THREE, row(11, "B", 110)]


def test_p21_deletes_under_a_spec_of_keys_need_it_to_stay_the_only_one(lake: frazil.Lake) -> None:
    table = lake.create_table(NAME, DDL, partition_by=["part"], keys=["id", "part"])
    table.append([ONE, row(1, "B", 100)])
    table.upsert([row(1, "A", 11)], mode="equality")
    assert rows_of(table) == [row(1, "A", 11), row(1, "B", 100)]
    theirs = after(lambda: table.set_partitioning(["truncate(10, id)"]))
    error = refused(lambda: table.upsert([row(1, "B", 101)], mode="equality", **theirs), table)
    assert {each.check for each in error.conflicts} == {"keys unchanged"}
    table.upsert([row(1, "B", 101)], mode="equality")
    assert rows_of(table) == [row(1, "A", 11), row(1, "B", 101)]


def test_p21_upserts_of_one_key_both_land_and_the_later_wins(table: frazil.Table) -> None:
    for key in (1, 50):
        theirs = after(lambda key=key: table.upsert([row(key, "A", -1)], mode="equality"))  # type: ignore[misc]
        done = table.upsert([row(key, "A", -2)], mode="equality", **theirs)
        assert done.attempts == 2
        assert rows_of(table, where=f"id = {key}") == [row(key, "A", -2)]


def test_p21_one_key_twice_in_a_batch_is_refused(table: frazil.Table) -> None:
    before = files_of(table)
    with pytest.raises(frazil.InvalidInput, match="id"):
        table.upsert([row(1, "A", 1), row(1, "A", 2)], mode="equality")
    assert files_of(table) == before


# P22 Serializable reads


@pytest.mark.parametrize(
    "theirs",
    [
        lambda table: table.delete("part = 'A'"),
        lambda table: table.delete("id = 1", mode="merge-on-read"),
        lambda table: table.upsert([row(1, "Z", 0)], mode="equality"),
    ],
    ids=["metadata", "position", "key"],
)
def test_p22_rows_read_and_removed_concurrently_abort_what_depends_on_them(
    lake: frazil.Lake, parted: frazil.Table, theirs: Callable[[frazil.Table], frazil.Commit]
) -> None:
    tx = lake.transaction()
    assert tx.table(NAME).scan(where="part = 'A' and v < 15").count() == 1
    tx.table(NAME).append([row(50, "C", 0)])
    done = theirs(parted)
    with pytest.raises(frazil.ConflictError) as caught:
        tx.commit()
    check_evidence(caught.value, done.snapshot_id)
    assert files_of(parted) == named_files(parted)


def test_p22_the_read_set_is_the_condition_and_not_the_files_it_touched(
    lake: frazil.Lake, parted: frazil.Table
) -> None:
    with lake.transaction() as tx:
        assert tx.table(NAME).scan(where="id = 1").count() == 1
        tx.table(NAME).append([row(50, "C", 0)])
        parted.delete("id = 2", mode="merge-on-read")
        parted.update(set={"v": "0"}, where="id = 3", mode="copy-on-write")
        parted.append([row(4, "A", 40)])
    assert [each["id"] for each in rows_of(parted)] == [1, 3, 4, 11, 50]


# P23 Append against delete

DELETES_A: dict[str, Callable[[frazil.Table], frazil.Commit]] = {
    "files": lambda table: table.delete("part = 'A'"),
    "rows": lambda table: table.delete("v >= 20 and v < 100"),
    "overwrite": lambda table: table.overwrite([row(9, "A", 90)], where="part = 'A'"),
    "replace": lambda table: table.replace_partitions([row(9, "A", 90)]),
}
NEW = [row(4, "A", 40), row(12, "B", 120)]


@pytest.mark.parametrize("delete", DELETES_A)
def test_p23_rows_that_match_a_concurrent_delete_abort_by_default(parted: frazil.Table, delete: str) -> None:
    error = refused(lambda: parted.append(NEW, **after(lambda: DELETES_A[delete](parted))), parted, "on_deleted")
    assert {each.check for each in error.conflicts} == {"my rows not deleted meanwhile"}
    assert not {4, 12} & {each["id"] for each in rows_of(parted)}


@pytest.mark.parametrize("delete", DELETES_A)
@pytest.mark.parametrize("how", [{"on_deleted": "keep"}, {"isolation": "snapshot"}], ids=["keep", "snapshot"])
def test_p23_they_are_kept_when_asked_or_at_snapshot(parted: frazil.Table, delete: str, how: dict[str, Any]) -> None:
    parted.append(NEW, **how, **after(lambda: DELETES_A[delete](parted)))
    assert [each for each in rows_of(parted) if each["id"] in (4, 12)] == NEW


@pytest.mark.parametrize("delete", DELETES_A)
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_p23_or_dropped_and_only_they(parted: frazil.Table, delete: str, isolation: str) -> None:
    how = after(lambda: DELETES_A[delete](parted))
    done = parted.append([*NEW, row(5, "A", 500)], on_deleted="drop", isolation=isolation, **how)
    kept = {"rows": [row(5, "A", 500), NEW[1]]}.get(delete, [NEW[1]])
    assert [each for each in rows_of(parted) if each["id"] in (4, 5, 12)] == kept
    assert done.attempts == 2
    assert files_of(parted) == named_files(parted)


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_p23_in_a_transaction_that_has_read_something_else(
    lake: frazil.Lake, parted: frazil.Table, isolation: str
) -> None:
    tx = lake.transaction(isolation=isolation)
    assert tx.table(NAME).scan(where="part = 'B'").count() == 1
    tx.table(NAME).append([row(4, "A", 40)], on_deleted="keep")
    parted.delete("part = 'A'")
    tx.commit()
    assert rows_of(parted) == [row(4, "A", 40), row(11, "B", 110)]


def test_p23_rows_that_were_only_copied_or_changed_are_not_appended(parted: frazil.Table) -> None:
    """Copied rows of a replaced file are not new: a delete of them is rebased onto the copy, without a conflict."""
    how = after(lambda: parted.delete("id = 2", mode="merge-on-read"))
    parted.upsert([row(1, "A", -1)], mode="copy-on-write", **how)
    assert rows_of(parted) == [row(1, "A", -1), THREE, row(11, "B", 110)]


def test_p23_a_delete_of_other_rows_is_none_of_its_business(parted: frazil.Table) -> None:
    for theirs in (
        lambda: parted.delete("id = 1"),
        lambda: parted.delete("part = 'B'"),
        lambda: parted.update(set={"v": "40"}, where="id = 2"),
        lambda: parted.upsert([row(4, "A", 0)], mode="equality"),
        parted.compact,
    ):
        parted.append([row(4, "A", 40)], **after(theirs))
    # The upsert's own row, and what was appended after it.
    assert [each["v"] for each in rows_of(parted, where="id = 4")] == [0, 40, 40]


def test_p23_what_was_deleted_is_personal_and_in_no_file_of_the_table(parted: frazil.Table) -> None:
    parted.delete("part = 'A' and id <> 987654321")
    parted.update(set={"v": "0"}, where="id = 876543219")
    parted.update(set={"v": "765432198"}, where="id = 11")
    texts = {path: parted._lake.storage.read(path) for path in files_of(parted) if path.endswith(".metadata.json")}
    assert texts
    for text in texts.values():
        for secret in (b"987654321", b"876543219", b"765432198"):
            assert secret not in text


# P24 A delete's files are fixed at its base


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["part = 'A'", "v >= 20"], ids=["files", "rows"])
def test_p24_rows_added_concurrently_abort_a_delete_or_stay(parted: frazil.Table, mode: ChangeMode, where: str) -> None:
    def theirs() -> None:
        parted.append([row(4, "A", 40)])

    error = refused(lambda: parted.delete(where, mode=mode, **after(theirs)), parted)
    assert {each.check for each in error.conflicts} == {"no added rows match my filter"}
    parted.delete("id = 4")
    parted.delete(where, mode=mode, isolation="snapshot", **after(theirs))
    left = [row(4, "A", 40), row(11, "B", 110)] if where == "part = 'A'" else [ONE, row(4, "A", 40)]
    assert rows_of(parted) == left


def test_p24_rows_added_concurrently_that_do_not_match_are_ignored(parted: frazil.Table) -> None:
    # The bounds of the new file hold 30, and none of its rows does: only a look into the file can tell.
    theirs = after(lambda: parted.append([row(4, "A", 25), row(5, "A", 35)]))
    parted.delete("v = 30", mode="merge-on-read", **theirs)
    assert [each["v"] for each in rows_of(parted)] == [10, 20, 25, 35, 110]


def test_p24_a_delete_of_whole_files_may_take_in_what_was_added(parted: frazil.Table) -> None:
    theirs = redone_after(lambda: parted.append([row(4, "A", 40)]))
    done = parted.delete("part = 'A'", on_added="include", **theirs)
    assert rows_of(parted) == [row(11, "B", 110)]
    assert (done.rows_deleted, done.files_removed, done.redone) == (4, 2, 1)


def test_p24_on_added_is_an_earlier_name_of_on_conflict(parted: frazil.Table) -> None:
    theirs = redone_after(lambda: parted.append([row(4, "A", 40)]))
    refused(lambda: parted.delete("part = 'A'", on_added="abort", **theirs), parted)
    for wrong in ({"on_added": "include", "on_conflict": "redo"}, {"on_added": "yes"}, {"on_conflict": "yes"}):
        with pytest.raises(frazil.InvalidInput, match=next(iter(wrong))):
            parted.delete("part = 'A'", **wrong)  # type: ignore[arg-type]


# P25 Ref moves


def test_p25_a_ref_moved_concurrently_aborts_another_move_of_it(table: frazil.Table) -> None:
    (first,) = (each.snapshot_id for each in table.history())
    table.append([row(4, "A", 40)])
    with losing_a_race(table._lake, lambda: table.append([row(5, "A", 50)])):
        error = refused(lambda: table.rollback_to(first, retry=QUICK), table)
    assert all("ref" in each.check for each in error.conflicts)
    assert [each["id"] for each in rows_of(table)] == [1, 2, 3, 4, 5]


BY_BASE: dict[str, Callable[..., frazil.Commit]] = {
    "delete": lambda table, **how: table.delete("id = 1", **how),
    "update": lambda table, **how: table.update(set={"v": "0"}, where="id = 1", **how),
    "overwrite": lambda table, **how: table.overwrite([row(7, "A", 70)], where="v >= 0", **how),
    "upsert by position": lambda table, **how: table.upsert([row(1, "A", 0)], mode="position", **how),
    "compact": lambda table, **how: table.compact(**how),
}


@pytest.mark.parametrize("verb", BY_BASE)
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_p25_a_base_that_was_rolled_back_aborts(table: frazil.Table, verb: str, isolation: str) -> None:
    (first,) = (each.snapshot_id for each in table.history())
    table.append([row(4, "A", 40)])
    how = after(lambda: table.rollback_to(first))
    if verb != "compact":
        how["isolation"] = isolation
    error = refused(lambda: BY_BASE[verb](table, **how), table)
    assert {each.check for each in error.conflicts} == {"history unbroken since the base"}
    assert rows_of(table) == [ONE, TWO, THREE]


def test_p25_blind_writes_land_on_any_history(table: frazil.Table) -> None:
    (first,) = (each.snapshot_id for each in table.history())
    table.append([row(4, "A", 40)])
    table.append([row(5, "A", 50)], **after(lambda: table.rollback_to(first)))
    assert [each["id"] for each in rows_of(table)] == [1, 2, 3, 5]
    table.upsert([row(1, "A", 0)], mode="equality", **after(lambda: table.rollback_to(first)))
    assert rows_of(table) == [row(1, "A", 0), TWO, THREE]


# P26 Rows of one file


@pytest.mark.parametrize("their_mode", MODES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_p26_changes_of_different_rows_in_one_file_both_land(
    table: frazil.Table, mode: ChangeMode, their_mode: ChangeMode, isolation: str
) -> None:
    theirs = after(lambda: table.update(set={"v": "22"}, where="id = 2", mode=their_mode))
    done = table.delete("id = 1", mode=mode, isolation=isolation, **theirs)
    assert (done.attempts, rows_of(table)) == (2, [row(2, "A", 22), THREE])
    assert files_of(table) == named_files(table)


VERBS_ON_ONE: dict[str, Callable[..., frazil.Commit]] = {
    "delete": lambda table, mode, **how: table.delete("id = 1", mode=mode, **how),
    "update": lambda table, mode, **how: table.update(set={"v": "11"}, where="id = 1", mode=mode, **how),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verb", VERBS_ON_ONE)
def test_p26_a_change_is_rebased_over_a_compaction(parted: frazil.Table, verb: str, mode: ChangeMode) -> None:
    parted.append([row(4, "A", 40)])
    parted.delete("id = 2", mode="merge-on-read")
    done = VERBS_ON_ONE[verb](parted, mode, **after(parted.compact))
    assert done.attempts == 2
    left = [row(1, "A", 11)] if verb == "update" else []
    assert rows_of(parted) == [*left, THREE, row(4, "A", 40), row(11, "B", 110)]
    data = {each.file.file_path: each.file for each in live_entries(parted, Content.DATA)}
    for each in live_entries(parted, Content.POSITION_DELETES):
        assert each.file.referenced_data_file is not None
        named = data[each.file.referenced_data_file]
        assert (each.file.spec_id, each.file.partition) == (named.spec_id, named.partition)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verb", VERBS_ON_ONE)
def test_p26_a_compaction_takes_a_new_change_along(parted: frazil.Table, verb: str, mode: ChangeMode) -> None:
    parted.append([row(4, "A", 40)])
    parted.delete("id = 2", mode="merge-on-read")
    done = parted.compact(**after(lambda: VERBS_ON_ONE[verb](parted, mode)))
    assert done.attempts == 2
    left = [row(1, "A", 11)] if verb == "update" else []
    assert rows_of(parted) == [*left, THREE, row(4, "A", 40), row(11, "B", 110)]
    assert files_of(parted) == named_files(parted)


def test_p26_a_change_is_rebased_over_two_rewrites_in_a_row(parted: frazil.Table) -> None:
    parted.append([row(4, "A", 40)])

    def theirs() -> None:
        parted.compact()
        parted.append([row(5, "A", 50)])
        parted.delete("id = 4", mode="copy-on-write")
        parted.compact()

    parted.delete("id = 1", mode="merge-on-read", **after(theirs))
    assert [each["id"] for each in rows_of(parted)] == [2, 3, 5, 11]


@pytest.mark.parametrize("their_mode", MODES)
@pytest.mark.parametrize("mode", MODES)
def test_p26_a_row_that_is_gone_is_nothing_to_a_delete_and_a_conflict_to_an_update(
    table: frazil.Table, mode: ChangeMode, their_mode: ChangeMode
) -> None:
    def theirs() -> None:
        table.delete("id = 1", mode=their_mode)
        table.append([row(50, "B", 0)])
        table.compact()

    table.delete("id in (1, 2)", mode=mode, **after(theirs))
    assert [each["id"] for each in rows_of(table)] == [3, 50]
    gone = after(lambda: (table.delete("id = 3", mode=their_mode), table.compact()))
    mine = lambda: table.update(set={"v": "0"}, where="id = 3", mode=mode, isolation="snapshot", **gone)  # noqa: E731
    refused(mine, table, "another writer")
    assert [each["id"] for each in rows_of(table)] == [50]


def test_p26_a_row_that_was_changed_is_a_conflict_to_both(table: frazil.Table) -> None:
    for verb in VERBS_ON_ONE.values():
        theirs = after(lambda: table.update(set={"v": "v + 1"}, where="id = 1", mode="copy-on-write"))
        refused(lambda verb=verb, how=theirs: verb(table, "merge-on-read", isolation="snapshot", **how), table)  # type: ignore[misc]
    assert rows_of(table)[0] == row(1, "A", 12)


def test_p26_without_the_record_of_a_rewrite_it_aborts_and_says_so(parted: frazil.Table) -> None:
    parted.append([row(4, "A", 40)])

    def theirs() -> None:
        parted.compact()
        snapshot = parted.snapshot()
        assert snapshot is not None
        parted._lake.storage.delete([snapshot.summary["frazil.lineage"]])

    with pytest.raises(frazil.ConflictError, match="recorded no lineage"):
        parted.delete("id = 1", mode="merge-on-read", **after(theirs))
    assert [each["id"] for each in rows_of(parted)] == [1, 2, 3, 4, 11]


def test_p26_two_compactions_of_one_file_cannot_both(parted: frazil.Table) -> None:
    parted.append([row(4, "A", 40)])
    error = refused(lambda: parted.compact(**after(parted.compact)), parted)
    assert {each.check for each in error.conflicts} == {"my files not removed by another"}
    parted.append([row(5, "A", 50)])
    parted.append([row(12, "B", 120)])
    parted.compact(where="part = 'A'", **after(lambda: parted.compact(where="part = 'B'")))
    assert len(parted.files()) == 2


# P27 replace_partitions over several specs


def test_p27_files_of_older_specs_give_up_the_rows_of_the_partition(lake: frazil.Lake) -> None:
    table = lake.create_table(NAME, DDL)
    table.append([ONE, row(11, "B", 110)])
    table.append([TWO])
    table.set_partitioning(["part"])
    table.append([THREE, row(12, "B", 120)])
    table.replace_partitions([row(9, "A", 90)])
    assert rows_of(table) == [row(9, "A", 90), row(11, "B", 110), row(12, "B", 120)]


def test_p27_it_meets_rows_that_land_under_another_spec(parted: frazil.Table) -> None:
    def theirs() -> None:
        parted.set_partitioning(["truncate(10, id)"])
        parted.append([row(4, "A", 40)])

    refused(lambda: parted.replace_partitions([row(9, "A", 90)], **after(theirs)), parted)
    assert rows_of(parted, where="part = 'A'") == [ONE, TWO, THREE, row(4, "A", 40)]


# P28 Transactions pin one instant


def test_p28_all_tables_are_seen_at_the_first_touch_of_any(lake: frazil.Lake, table: frazil.Table) -> None:
    """Otherwise half of a commit to both tables would be seen: the table touched late shows it, the other does not."""
    other = lake.create_table("ns.other", DDL)
    tx = lake.transaction()
    first = tx.table(NAME)
    table.append([row(4, "A", 40)])
    other.append([row(4, "A", 40)])
    assert (len(rows_of(first)), rows_of(tx.table("ns.other"))) == (3, [])
    tx.rollback()


def test_p28_the_base_is_the_first_touch_and_not_the_first_write(lake: frazil.Lake, table: frazil.Table) -> None:
    tx = lake.transaction()
    mine = tx.table(NAME)
    table.update(set={"v": "11"}, where="id = 1")
    mine.update(set={"v": "v + 5"}, where="id = 1")
    with pytest.raises(frazil.ConflictError):
        tx.commit()
    assert rows_of(table)[0] == row(1, "A", 11)


# P35 Files of an old operation

GRACE_MS = 1_000_000


class Clock:
    """A wall clock that jumps."""

    def __init__(self, lake: frazil.Lake) -> None:
        self.now_ms = SYSTEM.now_ms()
        lake.runtime = replace(SYSTEM, now_ms=lambda: self.now_ms)


def staged(table: frazil.Table, suffix: str) -> list[str]:
    """Files of this kind that no snapshot names yet."""
    return [path for path in files_of(table) - named_files(table) if path.endswith(suffix)]


STAGED = {"data": ".parquet", "manifest": "-m0.avro"}


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "spared"])
@pytest.mark.parametrize("kind", STAGED)
@pytest.mark.parametrize("verb", ["append", "upsert", "delete", "transaction"])
def test_p35_an_old_operation_lands_only_if_its_files_are_still_there(
    lake: frazil.Lake, table: frazil.Table, verb: str, kind: str, removed: bool
) -> None:
    """Otherwise the table lists a file that was removed as an orphan, and cannot be read any more."""
    table.set_properties({"frazil.orphans.grace-ms": str(GRACE_MS)})
    clock = Clock(lake)
    before = rows_of(table)

    def clean_up() -> None:
        """While another writer wins the race; the manifests of the first attempt exist as well."""
        clock.now_ms += GRACE_MS // 2 + 1
        found = sorted(staged(table, STAGED[kind]))
        assert found
        if removed:
            table._lake.storage.delete(found[-1:])
        table.append([row(99, "Z", 0)])

    tx = lake.transaction(retry=QUICK) if verb == "transaction" else None
    verbs: dict[str, Callable[[], object]] = {
        "append": lambda: table.append([row(4, "A", 40)], retry=QUICK),
        "upsert": lambda: table.upsert([row(1, "A", 11)], mode="equality", retry=QUICK),
        "delete": lambda: table.delete("id = 1", mode="merge-on-read", isolation="snapshot", retry=QUICK),
    }
    if tx is not None:
        tx.table(NAME).append([row(5, "A", 50)])
        tx.table(NAME).append([row(6, "A", 60)])
        verbs["transaction"] = tx.commit
    with losing_a_race(lake, clean_up), pytest.raises(CommitFailed) if removed else contextlib.nullcontext() as caught:
        verbs[verb]()
    if removed:
        assert caught is not None
        assert type(caught.value) is CommitFailed
        assert "were removed before" in str(caught.value)
        assert "Repeat the write" in str(caught.value)
        assert rows_of(table) == [*before, row(99, "Z", 0)]
    else:
        assert len(table.history()) == 3
        assert rows_of(table) != [*before, row(99, "Z", 0)]
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize("over", [0, 1])
def test_p35_an_operation_that_is_not_old_pays_nothing(
    lake: frazil.Lake, table: frazil.Table, monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    three_days = 3 * 24 * 3600 * 1000
    clock = Clock(lake)
    opened: list[str] = []
    open_input = lake.storage.open_input

    def watched(path: str) -> Any:
        opened.append(path)
        return open_input(path)

    def jump() -> None:
        clock.now_ms += three_days // 2 + over
        monkeypatch.setattr(lake.storage, "open_input", watched)

    table.append([row(4, "A", 40)], on_phase=once(Phase.HEAD_READ, jump))
    assert len(opened) == over


def test_p35_a_grace_period_is_a_number(table: frazil.Table) -> None:
    with pytest.raises(frazil.InvalidInput, match="grace-ms"):
        table.set_properties({"frazil.orphans.grace-ms": "3 days"})


# P36 Readers without deletes by key


def delete_files(table: frazil.Table) -> int:
    totals = table.history()[-1].summary
    live = [*live_entries(table, Content.POSITION_DELETES), *live_entries(table, Content.EQUALITY_DELETES)]
    assert int(totals["total-delete-files"]) == len(live)
    for content, word in ((Content.POSITION_DELETES, "position"), (Content.EQUALITY_DELETES, "equality")):
        count = sum(entry.file.record_count for entry in live if entry.file.content == content)
        assert int(totals[f"total-{word}-deletes"]) == count
    return len(live)


def test_p36_a_compaction_takes_out_every_delete_file(parted: frazil.Table) -> None:
    parted.upsert([row(2, "A", 21), row(12, "B", 120)], mode="equality")
    parted.delete("id = 3", mode="merge-on-read")
    parted.upsert([row(2, "A", 22)], mode="equality")
    expected = rows_of(parted)
    assert delete_files(parted) == 3
    done = parted.compact()
    assert rows_of(parted) == expected == [ONE, row(2, "A", 22), row(11, "B", 110), row(12, "B", 120)]
    assert delete_files(parted) == 0
    summary = parted.history()[-1].summary
    assert (summary["operation"], summary["removed-delete-files"], summary["removed-equality-deletes"]) == (
        "replace",
        "3",
        "3",
    )
    assert done.files_removed == int(summary["deleted-data-files"]) + 3
    assert not parted.compact().changed


def test_p36_a_delete_file_that_a_file_beside_the_compacted_ones_needs_stays(parted: frazil.Table) -> None:
    parted.upsert([row(2, "A", 21), row(11, "B", 111)], mode="equality")
    parted.compact(where="part = 'A'")
    assert rows_of(parted) == [ONE, row(2, "A", 21), THREE, row(11, "B", 111)]
    assert delete_files(parted) == 1
    parted.compact(where="part = 'B'")
    assert rows_of(parted) == [ONE, row(2, "A", 21), THREE, row(11, "B", 111)]
    assert delete_files(parted) == 0


def test_p36_delete_files_that_apply_to_nothing_go_also_where_no_file_is_rewritten(lake: frazil.Lake) -> None:
    table = lake.create_table(NAME, DDL, keys=["id"])
    assert not table.compact().changed
    table.upsert([ONE, TWO], mode="equality")
    assert delete_files(table) == 1
    before = [entry.file.file_path for entry in live_entries(table, Content.DATA)]
    assert table.compact(where="id > 100").changed
    assert delete_files(table) == 0
    assert [entry.file.file_path for entry in live_entries(table, Content.DATA)] == before
    assert rows_of(table) == [ONE, TWO]
    assert not table.compact().changed
