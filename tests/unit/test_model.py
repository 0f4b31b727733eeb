"""The models of the protocol hold, reach the relevant situations, and break without any one of their rules."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from frazil_verification.model import FLAWS, SMALL, Exploration, Flaw, Run, explore, flaws_table
from frazil_verification.model.__main__ import main
from frazil_verification.model.compaction_state import Rule as CompactionRule
from frazil_verification.model.group import Group
from frazil_verification.model.group_state import Bounds as GroupBounds
from frazil_verification.model.group_state import Rule as GroupRule
from frazil_verification.model.group_state import Setting
from frazil_verification.model.swap import Swap
from frazil_verification.model.swap_state import Bounds as SwapBounds
from frazil_verification.model.swap_state import Rule as SwapRule
from frazil_verification.model.tables_state import Rule as TablesRule

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model.md"
FEWEST_STATES = 3_000
REACHED = {
    "swap": {
        "all writers commit",
        "landed without its writer's knowledge",
        "unknown, landed",
        "unknown, not landed",
        "resolved after a lost answer",
        "committed at the second attempt",
        "a repeated call finds its commit",
        "rolled back and acknowledged",
        "gave up",
        "gave up while a request is still in flight",
    },
    "group": {
        "all writers commit",
        "a group of 2 commits",
        "a group of 3 commits",
        "a committed ticket",
        "a returned ticket",
        "a withdrawn ticket",
        "a forgotten ticket",
        "a stalled leader is about to lose",
        "a leader holds a ticket that was withdrawn",
        "landed without its leader's knowledge",
        "a dead writer's ticket was committed in time",
        "a dead leader holds the commit lock",
        "a live writer's ticket has expired",
    },
    "compaction": {
        "rows are copied twice in a row",
        "a delete by position is on a copy",
        "a delete by key reaches a copy",
        "a commit is refused",
        "2 commits from the same table",
        "3 commits from the same table",
    },
    "tables": {
        "all transactions commit",
        "landed without its writer's knowledge",
        "unknown, landed",
        "unknown, not landed",
        "lost its races",
        "refused, as what was read has changed",
        "two swaps are in the database",
        "a reader sees a commit",
    },
}


@cache
def explored(run: Run) -> Exploration:
    return explore(run.model)


@cache
def broken_by(flaw: Flaw) -> Exploration:
    return explore(flaw.model)


@pytest.mark.parametrize("run", SMALL, ids=lambda run: run.what)
def test_a_model_holds_in_every_state_and_is_not_small(run: Run) -> None:
    found = explored(run)
    assert found.trace is None, str(found.trace)
    assert found.is_complete
    assert found.states >= FEWEST_STATES


@pytest.mark.parametrize("model", sorted(REACHED))
def test_a_model_reaches_the_relevant_situations(model: str) -> None:
    reached: Counter[str] = Counter()
    for run in SMALL:
        if run.what.startswith(f"{model}:"):
            reached.update(explored(run).marks)
    assert REACHED[model] - reached.keys() == set()


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_without_a_rule_its_invariant_breaks(flaw: Flaw) -> None:
    found = broken_by(flaw)
    assert found.trace is not None
    assert found.trace.invariant == flaw.invariant


def test_every_rule_is_switched_off_once() -> None:
    assert Counter(flaw.rule for flaw in FLAWS) == Counter([*SwapRule, *GroupRule, *CompactionRule, *TablesRule])


def test_p2_reading_the_head_first_and_guarding_the_tickets_are_each_enough_without_withdrawals() -> None:
    bounds = GroupBounds(crashes=0, losses=0, may_give_up=False)
    for rule in (GroupRule.HEAD_FIRST, GroupRule.TICKETS_ARE_GUARDED):
        assert explore(Group(Setting(bounds, frozenset({rule})))).trace is None


def test_p9_without_a_log_of_metadata_files_a_rollback_and_an_expiry_together_hide_a_commit() -> None:
    """Snapshot ids alone do not show it. The code also compares sequence numbers, which this model does not have."""
    found = explore(Swap(SwapBounds(rollbacks=1, expiries=1, has_log=False)))
    assert found.trace is not None
    assert found.trace.invariant == "failed_is_not_there"
    assert [words for words in found.trace.steps if "operator" in words] == [
        "an operator rolls A's snapshot back",
        "an operator expires all snapshots but the newest",
    ]


def test_a_trace_is_a_path_of_the_model() -> None:
    """States represent others that differ in names; a trace must not rename processes."""
    for flaw in FLAWS:
        trace = broken_by(flaw).trace
        assert trace is not None
        states = list(flaw.model.initial())
        for words in trace.steps:
            states = [after for state in states for said, after in flaw.model.steps(state) if said == words]
            assert states, f"{flaw.name}: {words}"
        assert any(trace.invariant in set(flaw.model.broken(state)) for state in states)


# The explorer


@dataclass(frozen=True)
class Plain:
    """A model without symmetry: every state is its own canonical form."""

    model: Any

    def initial(self) -> Iterable[Any]:
        return self.model.initial()  # type: ignore[no-any-return]

    def steps(self, state: Any) -> Iterator[tuple[str, Any]]:
        return self.model.steps(state)  # type: ignore[no-any-return]

    def broken(self, state: Any) -> Iterable[str]:
        return self.model.broken(state)  # type: ignore[no-any-return]

    def marks(self, state: Any) -> Iterable[str]:
        return self.model.marks(state)  # type: ignore[no-any-return]

    def canonical(self, state: Any) -> Hashable:
        return state  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", [Swap(SwapBounds(crashes=1)), Group(), Group(Setting(GroupBounds(losses=2)))])
def test_sorting_alike_processes_hides_no_state(model: Any) -> None:
    sorted_, plain = explore(model), explore(Plain(model))
    assert sorted_.states < plain.states
    assert (sorted_.trace, sorted_.marks.keys(), sorted_.depth) == (None, plain.marks.keys(), plain.depth)
    kinds = {model.canonical(state) for state in reachable(model)}
    assert len(kinds) == sorted_.states


def reachable(model: Any) -> set[Any]:
    """Every state, found independently: depth first, without sorting."""
    found = set(model.initial())
    stack = list(found)
    while stack:
        for _, after in model.steps(stack.pop()):
            if after not in found:
                found.add(after)
                stack.append(after)
    return found


@dataclass(frozen=True)
class Numbers:
    """Add one or double, below a hundred."""

    forbidden: int

    def initial(self) -> Iterable[int]:
        return (1,)

    def steps(self, state: int) -> Iterator[tuple[str, int]]:
        for words, after in (("add one", state + 1), ("double", state * 2)):
            if after < 100:
                yield words, after

    def broken(self, state: int) -> Iterable[str]:
        return ("forbidden",) if state == self.forbidden else ()

    def marks(self, state: int) -> Iterable[str]:
        return ("even",) if state % 2 == 0 else ()

    def canonical(self, state: int) -> Hashable:
        return state


def test_the_explorer_visits_everything_once() -> None:
    found = explore(Numbers(forbidden=100))
    assert (found.states, found.is_complete, found.trace) == (99, True, None)
    assert found.transitions == 98 + 49
    assert found.marks == {"even": 49}


def test_the_explorer_finds_a_shortest_path() -> None:
    found = explore(Numbers(forbidden=10))
    assert found.trace is not None
    assert found.trace.steps == ("add one", "double", "add one", "double")
    assert str(found.trace).splitlines()[0] == "forbidden is broken after 4 steps:"
    assert not found.is_complete


def test_the_explorer_says_when_it_stopped_early() -> None:
    assert not explore(Numbers(forbidden=100), most_states=20).is_complete


# The page and the command


def test_the_generated_table_of_the_page_is_current() -> None:
    before, mark, rest = PAGE.read_text().partition("<!-- generated: make docs -->\n")
    _, end, after = rest.partition("\n<!-- end -->")
    assert mark
    assert end
    whole = f"{before}{mark}{flaws_table(lambda flaw: broken_by(flaw).trace)}{end}{after}"
    if os.environ.get("FRAZIL_WRITE_DOCS"):
        PAGE.write_text(whole)
    assert PAGE.read_text() == whole, "run `make docs`"


def test_every_invariant_is_explained_on_the_page() -> None:
    text = PAGE.read_text()
    assert [each.invariant for each in FLAWS if f"- `{each.invariant}`" not in text] == []
    assert "- `no_row_is_there_twice`" in text


def test_the_command_shows_the_path_to_a_broken_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--off", "TICKETS_ARE_GUARDED"]) == 0
    said = capsys.readouterr().out
    assert "ticket_leaves_waiting_once is broken after 7 steps" in said
    assert "7. A's swap lands with B" in said
