"""The simulator: equal seeds give equal runs, every fault strikes, no rule is broken, and mutants are noticed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from frazil.cli._app import app
from frazil.errors import InvalidInput
from frazil_verification.simulator import (
    ACTORS,
    SCENES,
    Case,
    CatalogKind,
    Fault,
    Report,
    Result,
    campaign,
    shrink,
    simulate,
)
from frazil_verification.simulator.across import judge
from frazil_verification.simulator.lake import CHECKING
from frazil_verification.simulator.world import World
from mutants.mutant import installed
from simulation.mutants import QUICK, called, first_that_notices, recorded

SEEDS = Path(__file__).parent / "seeds"
BANKS = ("bank", "bank in a storm")
"""The scenes with several tables."""
QUIET: frozenset[Fault] = frozenset()


@pytest.fixture(scope="module")
def report() -> Report:
    """A hundred short runs with all faults."""
    return campaign(Case(seed=0, steps=20), seeds=100)


def test_no_rule_is_broken(report: Report) -> None:
    assert [str(each.violations[0]) for each in report.failures] == []
    assert report.seeds == 100
    assert report.commits > 1200


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_strikes(report: Report, fault: Fault) -> None:
    assert report.faults[fault.value] > 0


@pytest.mark.parametrize("phase", ["head read", "prepared", "swapped", "queued"])
def test_processes_die_at_every_phase(report: Report, phase: str) -> None:
    assert report.faults[f"crash when {phase}"] > 0


def test_leaders_stall_with_the_commit_lock(report: Report) -> None:
    assert report.faults["combiner stall"] > 0


@pytest.mark.parametrize(
    "verb",
    ["append", "overwrite", "delete", "update", "upsert", "compact", "cherry_pick", "fast_forward", "add_column"],
)
def test_every_verb_lands(report: Report, verb: str) -> None:
    assert report.outcomes[f"{verb} committed"] > 0


@pytest.mark.parametrize("verb", ["overwrite", "delete", "update", "upsert"])
def test_statements_are_redone(report: Report, verb: str) -> None:
    assert report.outcomes[f"{verb} redone"] > 0


def test_a_share_of_statements_is_to_abort_and_is_not_redone() -> None:
    world = World(Case(0, 100, QUIET, actors=("deleter", "appender")))
    with contextlib.closing(world.database):
        world.run()
    deletes = [each for each in world.records.writes if each.step.verb == "delete"]
    aborting = [each for each in deletes if each.step.on_conflict == "abort"]
    assert 0.1 < len(aborting) / len(deletes) < 0.5
    assert any(each.is_redone for each in deletes)
    assert any(attempt.checks for each in aborting for attempt in each.attempts)
    assert not any(attempt.redone for each in aborting for attempt in each.attempts)


@pytest.mark.parametrize(
    ("case", "seeds"),
    [
        (Case(seed=40, steps=30), 2),
        # Slow files are named in the history: it shows in which order statements that are redone read files.
        (Case(27, 20, frozenset({Fault.SLOW_STORAGE}), ("upserter", "deleter", "overwriter"), severity=30.0), 2),
    ],
    ids=["usual", "slow storage"],
)
def test_the_same_seed_is_the_same_history_in_every_process(case: Case, seeds: int) -> None:
    digests = {_digest_in_a_process(case, seeds, hash_seed) for hash_seed in ("1", "2")}
    digests.add(campaign(case, seeds).digest)
    assert len(digests) == 1


def test_another_seed_is_another_history() -> None:
    assert simulate(Case(1, 20)).digest != simulate(Case(2, 20)).digest


def test_jobs_do_not_change_the_histories() -> None:
    alone, together = (campaign(Case(0, 10), seeds=12, jobs=jobs) for jobs in (1, 2))
    assert alone.digest == together.digest
    assert alone.faults == together.faults


def test_a_catalog_that_is_not_atomic_is_caught_without_any_other_fault() -> None:
    failed = _broken_by_a_catalog_that_is_not_atomic(QUIET)
    assert "each version is made from the one before it" in {each.rule for each in failed.violations}


@pytest.mark.parametrize("scene", [each for each in SCENES if each not in ("usual", *BANKS)])
def test_no_rule_is_broken_in_other_scenes(scene: str) -> None:
    report = campaign(replace(SCENES[scene], steps=30), seeds=12)
    assert [str(each.violations[0]) for each in report.failures] == []
    assert report.commits > 60


@pytest.fixture(scope="module")
def bank() -> Report:
    """Transactions over several tables, in few short runs: each run fills three tables first."""
    return campaign(replace(SCENES["bank in a storm"], steps=30, severity=2.0), seeds=10)


def test_no_rule_is_broken_over_several_tables(bank: Report) -> None:
    assert [str(each.violations[0]) for each in bank.failures] == []


@pytest.mark.parametrize("kind", ["transfer", "bookkeeper", "skewer", "mover"])
def test_every_kind_of_transaction_lands(bank: Report, kind: str) -> None:
    assert bank.outcomes[f"{kind} committed"] > 0


def test_processes_die_between_the_metadata_files_of_the_tables(bank: Report) -> None:
    assert bank.faults["crash when table prepared"] > 0
    assert bank.outcomes["transfer unknown"] > 0


def test_several_tables_are_read_at_one_instant(bank: Report) -> None:
    assert bank.reads > 0


def test_a_reader_of_two_instants_is_caught() -> None:
    """Of one table, the last audit gets what the first one saw."""
    world = World(replace(SCENES["bank"], actors=("transfer", "auditor"), faults=QUIET, steps=40))
    with contextlib.closing(world.database):
        world.run()
        assert judge(world).violations == []
        audits, first = world.records.audits, world.records.audits[0]
        audits[-1] = replace(audits[-1], seen={**audits[-1].seen, CHECKING: first.seen[CHECKING]})
        rules = {each.rule for each in judge(world).violations}
    assert {"readers see one instant of all tables", "money is neither made nor lost"} <= rules


def test_a_catalog_that_commits_one_table_after_the_other_is_caught_without_any_fault() -> None:
    case = replace(SCENES["bank"], steps=30, faults=QUIET, catalog=CatalogKind.NOT_ATOMIC)
    rules = {violation.rule for seed in (0, 2) for violation in simulate(replace(case, seed=seed)).violations}
    assert {"a transaction lands in all tables at once", "money is neither made nor lost"} <= rules


@pytest.mark.parametrize("given", [["transfer,appender"], ["bank", "--catalog", "rest"]])
def test_actors_of_several_tables_do_not_mix_with_others_and_need_a_database(given: list[str]) -> None:
    done = CliRunner().invoke(app, ["simulate", "--actors", *given])
    assert isinstance(done.exception, InvalidInput)


def test_the_command_runs_the_bank() -> None:
    done = CliRunner().invoke(app, ["simulate", "--steps", "5", "--actors", "bank", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["digest"] == campaign(replace(SCENES["bank"], steps=5), seeds=1).digest


def test_on_third_party_catalogs_no_writer_queues() -> None:
    ours, theirs = (campaign(replace(SCENES[scene], steps=20), seeds=5) for scene in ("usual", "rest"))
    assert ours.faults["crash when queued"] + ours.faults["stall when queued"] > 0
    assert theirs.faults["crash when queued"] + theirs.faults["stall when queued"] == 0


def test_a_storm_has_more_faults() -> None:
    usual, storm = (campaign(replace(SCENES[scene], steps=20), seeds=5) for scene in ("usual", "storm"))
    assert storm.faults.total() > 2 * usual.faults.total()


def test_a_failing_case_is_shrunk_to_one_that_breaks_the_same_rule() -> None:
    failed = _broken_by_a_catalog_that_is_not_atomic(frozenset(Fault))
    small = shrink(failed, most_runs=40)
    assert small.violations[0].rule == failed.violations[0].rule
    assert small.case.kept is not None
    assert len(small.case.kept) < 15
    again = simulate(Case.from_json(json.loads(json.dumps(small.case.to_json()))))
    assert again.digest == small.digest


@pytest.mark.parametrize("name", QUICK)
def test_a_removed_guard_is_noticed(name: str) -> None:
    assert first_that_notices(called(name), seeds=40, first=recorded()[name]["seed"]) is not None


@pytest.mark.parametrize("path", sorted(SEEDS.glob("*.json")), ids=lambda path: path.stem)
def test_a_kept_case_breaks_its_rule_without_its_guard_and_none_with_it(path: Path) -> None:
    """It also fails if a change of the simulator makes the case another run: ``--keep`` finds a new one."""
    kept = json.loads(path.read_text())
    case = Case.from_json(kept["case"])
    assert [str(each) for each in simulate(case).violations] == []
    with installed(called(kept["mutant"])):
        assert kept["rule"] in {each.rule for each in simulate(case).violations}


def test_actors_can_be_left_out() -> None:
    outcomes = simulate(Case(3, 30, QUIET, actors=("appender",))).outcomes
    assert set(outcomes) <= {
        "append committed",
        "append failed",
        "delete committed",
        "delete unchanged",
        "delete failed",
        "delete redone",
    }


def test_steps_can_be_left_out() -> None:
    whole = simulate(Case(5, 30, QUIET))
    assert simulate(replace(whole.case, kept=(1, 2, 3))).commits < whole.commits


def test_the_command_prints_a_report_for_programs() -> None:
    done = CliRunner().invoke(app, ["simulate", "--seed", "7", "--steps", "15", "--seeds", "2", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert report["seeds"] == 2
    assert report["violations"] == []
    assert report["digest"] == campaign(Case(7, 15), seeds=2).digest


def test_the_command_prints_a_report_for_people() -> None:
    done = CliRunner().invoke(app, ["simulate", "--seed", "7", "--steps", "10", "--faults", "crash,lost answer"])
    assert done.exit_code == 0, done.output
    assert "No rule was broken" in done.output


def test_the_command_refuses_what_it_does_not_know() -> None:
    assert CliRunner().invoke(app, ["simulate", "--faults", "rain"]).exception is not None
    assert CliRunner().invoke(app, ["simulate", "--actors", "nobody"]).exception is not None
    assert CliRunner().invoke(app, ["simulate", "--catalog", "paper"]).exception is not None


def test_the_command_takes_a_catalog_and_a_severity() -> None:
    asked = ["simulate", "--seed", "3", "--steps", "10", "--catalog", "rest", "--severity", "3", "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    case = Case(3, 10, catalog=CatalogKind.REST, severity=3.0)
    assert json.loads(done.output)["digest"] == campaign(case, seeds=1).digest


def test_the_command_keeps_and_replays_a_failing_case(tmp_path: Path) -> None:
    kept = tmp_path / "case.json"
    kept.write_text(json.dumps({"case": _broken_by_a_catalog_that_is_not_atomic(QUIET, steps=12).case.to_json()}))
    done = CliRunner().invoke(app, ["simulate", "--replay", str(kept), "--keep", str(tmp_path), "--json"])
    assert done.exit_code == 1
    (small,) = json.loads(done.output)["kept"]
    assert CliRunner().invoke(app, ["simulate", "--replay", small]).exit_code == 1


def test_actors_have_names_that_the_command_line_takes() -> None:
    assert all(name == name.strip() and "," not in name for name in ACTORS)


def _broken_by_a_catalog_that_is_not_atomic(faults: frozenset[Fault], steps: int = 30) -> Result:
    runs = (simulate(Case(seed, steps, faults, catalog=CatalogKind.NOT_ATOMIC)) for seed in range(60))
    return next(each for each in runs if each.violations)


def _digest_in_a_process(case: Case, seeds: int, hash_seed: str) -> str:
    """Python orders sets of texts by its hash seed."""
    options = {
        "seed": case.seed,
        "seeds": seeds,
        "steps": case.steps,
        "faults": "all" if case.faults == frozenset(Fault) else ",".join(case.faults),
        "actors": ",".join(case.actors),
        "severity": case.severity,
    }
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "frazil", "simulate", "--json", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return str(json.loads(done.stdout)["digest"])
