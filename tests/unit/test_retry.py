from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import frazil
from frazil import errors
from frazil.commit.checks import REPEATABLE, Check
from frazil.commit.results import conflict_error
from frazil.commit.retry import Retry, from_properties
from frazil.model import Conflict, Ident


@given(n=st.integers(0, 200), chance=st.floats(0, 1, exclude_max=True))
def test_a_wait_is_the_capped_exponential_times_a_half_to_one_and_a_half(n: int, chance: float) -> None:
    retry = Retry(base_ms=50, cap_ms=2000)
    step = min(50 * 2**n, 2000) / 1000
    assert 0.5 * step <= retry.wait_s(n, chance) < 1.5 * step + 1e-9


def test_profiles_are_as_documented() -> None:
    assert (Retry().tries, Retry().base_ms, Retry().cap_ms, Retry().total_s) == (16, 50, 2000, None)
    assert (Retry.streaming().tries, Retry.streaming().cap_ms) == (8, 50)
    assert (Retry.backfill().tries, Retry.backfill().cap_ms, Retry.backfill().total_s) == (32, 60_000, None)
    assert Retry.none().tries == 1
    longest = sum(Retry.backfill().wait_s(n, 0.999) for n in range(32))
    assert longest < 3600, "a patient writer waits for minutes, not for years"


def test_table_properties_are_honoured_in_icebergs_words() -> None:
    retry = from_properties(
        {
            "commit.retry.num-retries": "4",
            "commit.retry.min-wait-ms": "100",
            "commit.retry.max-wait-ms": "60000",
            "commit.retry.total-timeout-ms": "1800000",
        }
    )
    assert (retry.tries, retry.base_ms, retry.cap_ms, retry.total_s) == (5, 100, 60_000, 1800)
    assert from_properties({}) == Retry()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(errors.InvalidInput, match="num-retries"):
        from_properties({"commit.retry.num-retries": "many"})
    for bad in ({"tries": 0}, {"base_ms": -1}, {"total_s": 0}):
        with pytest.raises(errors.InvalidInput):
            Retry(**bad)


ALL = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.FrazilError)]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_answers_the_three_questions_and_survives_pickling(kind: type[errors.FrazilError]) -> None:
    error = kind("It broke", evidence="here", advice="Mend it")
    assert str(error) == "It broke. here. Mend it."
    assert kind.who_must_act in ("caller", "operator", "nobody")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.advice, back.retryable) == (kind, str(error), "Mend it", kind.retryable)


def test_fields_of_their_own_survive_pickling() -> None:
    conflict = Conflict("check", "detail", 7, "append")
    back = pickle.loads(pickle.dumps(errors.ConflictError("No", conflicts=(conflict,))))
    assert back.conflicts == (conflict,)
    assert pickle.loads(pickle.dumps(errors.CommitUnknown("?", commit_id="x"))).commit_id == "x"


def test_only_an_unknown_or_half_outcome_forbids_deleting_staged_files() -> None:
    unsafe = {kind for kind in ALL if not kind.safe_to_delete_staged}
    assert unsafe == {errors.CommitUnknown, errors.PartlyCommitted}


def test_a_conflict_is_retryable_if_the_same_call_may_succeed_now() -> None:
    assert REPEATABLE.keys() == set(Check)

    def of(*checks: Check) -> errors.ConflictError:
        return conflict_error("delete", Ident(("ns",), "t"), tuple(Conflict(each, "detail") for each in checks))

    assert of(Check.NO_ADDED_ROWS).retryable
    assert of(Check.ROW_OWNER, Check.NO_NEW_DELETES, Check.BASE_IS_ANCESTOR).retryable
    assert not of(Check.SCHEMA_COMPATIBLE).retryable
    assert not of(Check.ROW_OWNER, Check.SCHEMA_COMPATIBLE).retryable
    assert not pickle.loads(pickle.dumps(of(Check.SAME_TABLE))).retryable
    assert errors.RetriesExhausted("x").retryable
    assert not errors.InvalidInput("x").retryable


def test_a_delete_that_lost_to_added_rows_succeeds_when_it_is_repeated() -> None:
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    table = lake.create_table("ns.t", "id bigint")
    table.append([{"id": 7}])
    tx = lake.transaction()
    tx.table("ns.t").delete("id = 7")
    table.append([{"id": 7}])
    with pytest.raises(errors.ConflictError) as caught:
        tx.commit()
    assert caught.value.retryable
    table.delete("id = 7")
    assert table.scan().count() == 0
