"""Every (mine × theirs × isolation) of the operations, on real tables: which lands, and the resulting rows."""

from __future__ import annotations

import itertools
import random

import pytest

from surface.matrix import (
    ISOLATIONS,
    OPERATIONS,
    SEEDED,
    SETTINGS,
    Case,
    Driver,
    Isolation,
    Mode,
    Row,
    Setting,
    Verdict,
    by_hand,
    case,
    cases,
    check,
    expected_rows,
    land,
    rows_of,
    seeded,
    visible,
)

IN_TRANSACTIONS = Setting(partitioned=True, mode=Mode.MERGE_ON_READ, driver=Driver.TRANSACTION)
IN_LOST_RACES = Setting(partitioned=False, mode=Mode.COPY_ON_WRITE, driver=Driver.LOST_RACE)
REDONE = [
    Setting(partitioned=True, mode=Mode.MERGE_ON_READ, driver=Driver.REDO),
    Setting(partitioned=False, mode=Mode.COPY_ON_WRITE, driver=Driver.REDO),
]
OTHERS = [each for each in SETTINGS if each not in (IN_TRANSACTIONS, IN_LOST_RACES, *REDONE)]

A = [Row(1, "A", 10), Row(2, "A", 20), Row(3, "A", 30), Row(4, "A", 40), Row(5, "A", 50)]
B = [Row(11, "B", 110), Row(12, "B", 120)]


# The model itself


@pytest.mark.parametrize("mine", OPERATIONS)
def test_the_model_agrees_with_the_table_by_hand(mine: str) -> None:
    written = by_hand()
    assert {key[0] for key in written} == {key[1] for key in written} == set(OPERATIONS)
    for theirs, isolation in itertools.product(OPERATIONS, ISOLATIONS):
        assert case(mine, theirs, isolation).verdict == written[mine, theirs, isolation], (theirs, isolation)


@pytest.mark.parametrize(
    ("mine", "theirs", "isolation", "rows"),
    [
        ("append_A", "append_A", "serializable", [*A, Row(6, "A", 60), Row(6, "A", 60), *B]),
        ("append_A", "delete_A", "snapshot", [Row(6, "A", 60), *B]),
        ("delete_A", "append_A", "snapshot", [Row(6, "A", 60), *B]),
        ("delete_1", "delete_2", "serializable", [*A[2:], *B]),
        ("delete_1", "delete_1", "serializable", [*A[1:], *B]),
        ("delete_1", "upsert_1", "snapshot", [Row(1, "A", -1), *A[1:], *B]),
        ("update_1", "update_2", "serializable", [Row(1, "A", 1010), Row(2, "A", 1020), *A[2:], *B]),
        ("update_1", "upsert_7", "serializable", [Row(1, "A", 1010), *A[1:], Row(7, "A", 70), *B]),
        ("upsert_1", "update_1", "serializable", [Row(1, "A", -1), *A[1:], *B]),
        ("upsert_1", "upsert_1", "serializable", [Row(1, "A", -1), *A[1:], *B]),
        ("look_upsert_7", "upsert_7", "snapshot", [*A, Row(7, "A", -70), Row(7, "A", 70), *B]),
        ("overwrite_A", "overwrite_B", "serializable", [Row(21, "A", 210), Row(31, "B", 310)]),
        ("overwrite_A", "overwrite_2", "snapshot", [A[0], Row(2, "A", -2), *A[2:], *B]),
        ("delete_A", "overwrite_2", "snapshot", [Row(2, "A", -2), *B]),
        ("replace_B", "move_1_to_B", "snapshot", [Row(1, "B", 10), *A[1:], Row(51, "B", 510)]),
        ("compact", "delete_high", "serializable", A[:4]),
        ("update_A", "delete_1", "snapshot", [*A[1:], *B]),
        ("update_1", "delete_1", "snapshot", [*A[1:], *B]),
    ],
)
def test_the_model_has_the_rows_that_a_person_expects(
    mine: str, theirs: str, isolation: Isolation, rows: list[Row]
) -> None:
    assert list(case(mine, theirs, isolation).rows) == sorted(rows)


def test_at_serializable_the_result_is_that_of_one_after_the_other() -> None:
    for given in cases(IN_TRANSACTIONS):
        if given.isolation == "serializable" and given.verdict == "both":
            after_theirs = land(SEEDED, OPERATIONS[given.theirs].decide(SEEDED), "theirs")
            after_both = land(after_theirs, OPERATIONS[given.mine].decide(after_theirs), "mine")
            assert list(given.rows) == visible(after_both)[0], str(given)


# Refused at serializable although "theirs, then mine" gives the very rows that rebasing would give.
BEYOND_SERIAL_ORDER = {
    # The documents ask for it (P23).
    *itertools.product(["append_A"], ["overwrite_A", "replace_A", "delete_A", "delete_high"]),
    *itertools.product(["append_B"], ["overwrite_B", "replace_B", "delete_B", "delete_high"]),
    # One row, written by both: the delete did not know that the row moves.
    *itertools.product(["overwrite_A", "replace_A", "delete_A"], ["move_1_to_B"]),
    # No rows are at stake, but work: the files that the second one planned for are gone.
    ("compact", "compact"),
    ("add_int", "add_text"),
    ("add_text", "add_int"),
}


def test_every_other_refusal_prevents_a_result_that_no_serial_order_has() -> None:
    found = set()
    for given in cases(IN_TRANSACTIONS):
        mine, theirs = OPERATIONS[given.mine], OPERATIONS[given.theirs]
        head = land(SEEDED, theirs.decide(SEEDED), "theirs")
        rebased, serial = land(head, mine.decide(SEEDED), "mine"), land(head, mine.decide(head), "mine")
        if given.isolation == "serializable" and given.verdict == "mine fails" and visible(rebased) == visible(serial):
            found.add((given.mine, given.theirs))
    assert found == BEYOND_SERIAL_ORDER


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("partitioned", [True, False], ids=["partitioned", "flat"])
def test_a_real_seed_has_the_rows_of_the_models(partitioned: bool, mode: Mode) -> None:
    table = seeded(partitioned, mode).table("ns.seed")
    assert rows_of(table) == rows_of(table, ref="audit") == expected_rows(SEEDED)
    assert visible(SEEDED)[0] == [*A, *B]


# The documents' own table, by name, in both orders


DOCUMENTED: dict[str, tuple[str, str, Verdict]] = {
    "append-append-both": ("append_A", "append_A", "both"),
    "append-append-elsewhere-both": ("append_A", "append_B", "both"),
    "overwriteA-appendA-one-fails": ("overwrite_A", "append_A", "mine fails"),
    "overwriteA-overwriteB-both": ("overwrite_A", "overwrite_B", "both"),
    "deleteA-appendA-one-fails": ("delete_A", "append_A", "mine fails"),
    "schema-append-both": ("add_int", "append_A", "both"),
}


@pytest.mark.parametrize("driver", Driver)
@pytest.mark.parametrize("first_is_mine", [True, False], ids=["first-commits-last", "second-commits-last"])
@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_documents_table(name: str, first_is_mine: bool, driver: Driver) -> None:
    first, second, verdict = DOCUMENTED[name]
    mine, theirs = (first, second) if first_is_mine else (second, first)
    given = case(mine, theirs, "serializable", driver)
    is_redone = driver is Driver.REDO and verdict == "mine fails" and OPERATIONS[mine].is_whole
    assert given.verdict == ("redone" if is_redone else verdict)
    check(Setting(partitioned=True, mode=Mode.MERGE_ON_READ, driver=driver), given)


# Every pair


@pytest.mark.parametrize("given", cases(IN_TRANSACTIONS), ids=str)
def test_every_pair_in_a_transaction_pinned_before_the_other_commit(given: Case) -> None:
    check(IN_TRANSACTIONS, given)


def in_lost_races() -> list[Case]:
    """All pairs at serializable, and at snapshot those of which some are refused."""
    written = by_hand()
    return [
        each
        for each in cases(IN_LOST_RACES)
        if each.isolation == "serializable" or written[each.mine, each.theirs, "serializable"] == "mine fails"
    ]


@pytest.mark.parametrize("given", in_lost_races()[::4], ids=str)
def test_pairs_after_a_lost_race(given: Case) -> None:
    check(IN_LOST_RACES, given)


@pytest.mark.slow
@pytest.mark.parametrize("given", in_lost_races(), ids=str)
def test_every_pair_after_a_lost_race(given: Case) -> None:
    check(IN_LOST_RACES, given)


# Statements that would be refused are evaluated again


def redone_cases(setting: Setting) -> list[Case]:
    return [each for each in cases(setting) if each.verdict == "redone"]


def test_every_refused_statement_is_redone_and_nothing_else_is() -> None:
    written = by_hand()
    for given in cases(REDONE[0]):
        before = written[given.mine, given.theirs, given.isolation]
        is_redone = before == "mine fails" and OPERATIONS[given.mine].is_whole
        assert given.verdict == ("redone" if is_redone else before), str(given)


@pytest.mark.parametrize("given", redone_cases(REDONE[0])[::2], ids=str)
def test_pairs_that_are_redone(given: Case) -> None:
    check(REDONE[0], given)


@pytest.mark.parametrize("given", redone_cases(REDONE[1])[1::2], ids=str)
def test_pairs_that_are_redone_on_files_that_match_in_part(given: Case) -> None:
    check(REDONE[1], given)


@pytest.mark.slow
@pytest.mark.parametrize("setting", REDONE, ids=str)
def test_every_pair_that_is_redone(setting: Setting) -> None:
    for given in cases(setting):
        check(setting, given)


# How a row goes is the table's choice, and so is its layout: what meets in one file must come out the same in all.
ROW_LEVEL = ("delete_1", "delete_2", "update_1", "look_upsert_1", "overwrite_2", "compact")


@pytest.mark.parametrize("setting", OTHERS, ids=str)
@pytest.mark.parametrize("mine", ROW_LEVEL)
def test_rows_of_one_file_in_every_setting(setting: Setting, mine: str) -> None:
    for theirs in ROW_LEVEL:
        check(setting, case(mine, theirs, "serializable", setting.driver))


# Several winners


def against_several(seed: int, setting: Setting) -> Case:
    chance = random.Random(seed)
    names = [name for name, op in OPERATIONS.items() if setting.suits(op)]
    theirs = chance.choices(names, k=chance.choice((2, 2, 3)))
    if "add_text" in theirs:
        # They would not get past each other.
        theirs = [name for name in theirs if name != "add_int"]
    return case(chance.choice(names), "+".join(theirs), chance.choice(ISOLATIONS), setting.driver)


@pytest.mark.parametrize("seed", range(100))
def test_against_several_winners(seed: int) -> None:
    setting = SETTINGS[seed % len(SETTINGS)]
    check(setting, against_several(seed, setting))


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(1, 30))
def test_against_several_winners_at_length(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        setting = SETTINGS[hundred % len(SETTINGS)]
        given = against_several(seed, setting)
        try:
            check(setting, given)
        except AssertionError as error:
            error.add_note(f"{given} in {setting}, seed {seed}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("mine", OPERATIONS)
def test_every_pair_in_every_setting(setting: Setting, mine: str) -> None:
    """All of it, which takes minutes."""
    for given in cases(setting):
        if given.mine == mine:
            check(setting, given)
