"""The explored models: within bounds with every rule on, and once for each rule with that rule off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from frazil_verification.model import compaction_state, group_state, swap_state, tables_state
from frazil_verification.model.compaction import Compaction
from frazil_verification.model.compaction_state import COMPACT, COPY_DELETE, DELETE, UPSERT
from frazil_verification.model.explorer import Model, Trace
from frazil_verification.model.group import Group
from frazil_verification.model.swap import Swap
from frazil_verification.model.tables import Tables
from frazil_verification.model.tables_state import Kind

Rule = swap_state.Rule | group_state.Rule | compaction_state.Rule | tables_state.Rule


@dataclass(frozen=True, slots=True)
class Run:
    """A model within bounds, every rule on."""

    what: str
    model: Model[Any]


@dataclass(frozen=True, slots=True)
class Flaw:
    """A model with a rule off: the explorer has to find a state that breaks the invariant."""

    rule: Rule
    of: str
    """The protocol rule that it belongs to."""
    invariant: str
    model: Model[Any]
    beside: Rule | None = None
    """A second rule that is also off: within these bounds, either of the two is enough."""

    @property
    def name(self) -> str:
        return self.rule.name


def _grouped(bounds: group_state.Bounds, off: frozenset[group_state.Rule] = frozenset()) -> Group:
    return Group(group_state.Setting(bounds, off))


_ONE_FILE = (DELETE, COPY_DELETE)
_WITH_KEYS = (DELETE, UPSERT, COPY_DELETE, COMPACT)

_NO_LOG = swap_state.Bounds(rollbacks=1, has_log=False)
_EXPIRED = swap_state.Bounds(expiries=1, has_log=False)
_OPERATORS = swap_state.Bounds(crashes=1, rollbacks=1, expiries=1)
_FOREIGN = swap_state.Bounds(duplicates=1, is_vague=True, has_log=False)
_REPEATED = swap_state.Bounds(attempts=1, crashes=1, reruns=1)
_FAULTS = group_state.Bounds(crashes=2, losses=1, expiries=1)
_REVIVED = group_state.Bounds(crashes=0, losses=2, expiries=1)
_RERUN = group_state.Bounds(writers=3, rerun=True)
_GENERATED_ID = group_state.Bounds(writers=3, crashes=0, losses=2, rerun=True, has_ids=False)
_POISON = group_state.Bounds(writers=3, crashes=0, losses=0, has_poison=True)
_TRANSFERS = tables_state.Bounds(attempts=2, aborts=1)
_ABORTED = tables_state.Bounds((Kind.BOTH, Kind.SECOND), aborts=1, crashes=1)
_SKEWS = tables_state.Bounds((Kind.SKEW, Kind.SKEW_BACK, Kind.BOTH), sends=1)
_LOOKED_UP = tables_state.Bounds((Kind.BOTH, Kind.SECOND, Kind.READER), sends=1, crashes=1, reruns=1)
_PATIENT = group_state.Bounds(crashes=0, losses=0, may_give_up=False)

SMALL = (
    Run("swap: 3 writers", Swap(swap_state.Bounds(writers=3, attempts=1))),
    Run("swap: 2 writers, a crash, a rollback, an expiry", Swap(_OPERATORS)),
    Run("swap: 2 writers, a rollback, no log of metadata files", Swap(_NO_LOG)),
    Run("swap: 2 writers, an expiry, no log of metadata files", Swap(_EXPIRED)),
    Run("swap: 2 writers, duplicate requests, ambiguous stale answers", Swap(_FOREIGN)),
    Run("swap: 2 writers, a crash, a call repeated with the same id", Swap(_REPEATED)),
    Run("group: 3 writers, a crash, a lost answer", _grouped(group_state.Bounds(writers=3))),
    Run("group: 2 writers, 2 crashes, a lost answer, a deadline", _grouped(_FAULTS)),
    Run(
        "group: 2 writers, 2 lost answers, returned tickets",
        _grouped(group_state.Bounds(losses=2, returns_tickets=True)),
    ),
    Run("group: 2 writers, 2 lost answers, a deadline", _grouped(_REVIVED)),
    Run("group: 2 writers, a crash, a call repeated with the same id", _grouped(_RERUN)),
    Run("group: 2 writers, 2 lost answers, a call repeated with its generated id", _grouped(_GENERATED_ID)),
    Run("group: 3 writers, a ticket that kills leaders", _grouped(_POISON)),
    Run("compaction: 2 commits of every kind", Compaction()),
    Run("compaction: 3 commits", Compaction(compaction_state.Bounds(3, _WITH_KEYS))),
    Run("tables: 2 transfers, 2 attempts each, a rollback by the database", Tables(_TRANSFERS)),
    Run("tables: a transfer beside one table's writer, a crash, a rollback by the database", Tables(_ABORTED)),
    Run("tables: two writers that read what the other writes, a transfer", Tables(_SKEWS)),
    Run("tables: a transfer, one table's writer, a reader, a call repeated with the same id", Tables(_LOOKED_UP)),
)

LARGE = (
    Run("swap: 3 writers, 2 attempts each, a crash", Swap(swap_state.Bounds(writers=3, crashes=1))),
    Run(
        "swap: 2 writers, duplicate requests, a rollback, a crash",
        Swap(swap_state.Bounds(duplicates=2, is_vague=True, has_log=False, rollbacks=1, crashes=1)),
    ),
    Run(
        "swap: 2 writers, duplicate requests, a call repeated with the same id",
        Swap(swap_state.Bounds(duplicates=1, crashes=1, reruns=1)),
    ),
    Run(
        "group: 3 writers, a crash, a lost answer, a deadline, returned tickets",
        _grouped(group_state.Bounds(writers=3, expiries=1, returns_tickets=True)),
    ),
    Run(
        "group: 3 writers, 2 crashes, 2 lost answers",
        _grouped(group_state.Bounds(writers=3, crashes=2, losses=2)),
    ),
    Run(
        "group: 2 writers, a call repeated with the same id, 2 lost answers, a deadline",
        _grouped(group_state.Bounds(writers=3, losses=2, expiries=1, rerun=True)),
    ),
    Run("compaction: 3 commits of every kind", Compaction(compaction_state.Bounds(3))),
    Run(
        "compaction: 3 commits of every kind, compactions may meet",
        Compaction(compaction_state.Bounds(3, rewrites_meet=True)),
    ),
    Run("compaction: 4 commits", Compaction(compaction_state.Bounds(4, _WITH_KEYS))),
    Run(
        "tables: two writers that read what the other writes, a transfer, lost answers, a crash",
        Tables(tables_state.Bounds((Kind.SKEW, Kind.SKEW_BACK, Kind.BOTH), crashes=1)),
    ),
)


def _swap(rule: swap_state.Rule, of: str, invariant: str, bounds: swap_state.Bounds) -> Flaw:
    return Flaw(rule, of, invariant, Swap(bounds, frozenset({rule})))


def _group(
    rule: group_state.Rule,
    of: str,
    invariant: str,
    bounds: group_state.Bounds | None = None,
    beside: group_state.Rule | None = None,
) -> Flaw:
    off = frozenset({rule} if beside is None else {rule, beside})
    return Flaw(rule, of, invariant, _grouped(bounds or group_state.Bounds(), off), beside)


def _rows(rule: compaction_state.Rule, of: str, invariant: str, bounds: compaction_state.Bounds | None = None) -> Flaw:
    return Flaw(rule, of, invariant, Compaction(bounds or compaction_state.Bounds(), frozenset({rule})))


def _tables(rule: tables_state.Rule, of: str, invariant: str, bounds: tables_state.Bounds) -> Flaw:
    return Flaw(rule, of, invariant, Tables(bounds, frozenset({rule})))


_S, _G, _C, _T = swap_state.Rule, group_state.Rule, compaction_state.Rule, tables_state.Rule
_THREE_ROWS = compaction_state.Bounds(3, _ONE_FILE)
_THREE_KEYS = compaction_state.Bounds(3, (UPSERT, COPY_DELETE, COMPACT))

FLAWS = (
    _swap(_S.EXPECTED_IS_COMPARED, "P5", "acknowledged_is_there_once", _NO_LOG),
    _swap(_S.UNKNOWN_IS_NOT_LOST, "P9", "failed_is_not_there", _NO_LOG),
    _swap(_S.RESENT_FIRST, "P9", "known_when_the_catalog_answers", _NO_LOG),
    _swap(_S.HEAD_HAS_MOVED, "P9", "failed_is_not_there", _FOREIGN),
    _swap(_S.LOG_IS_SEARCHED, "P9", "failed_is_not_there", _OPERATORS),
    _swap(_S.HISTORY_IS_WHOLE, "P9", "failed_is_not_there", _EXPIRED),
    _swap(_S.ANCESTOR_OR_NOT, "P9", "failed_is_not_there", _NO_LOG),
    _swap(_S.STALE_IS_SEARCHED, "P30", "failed_is_not_there", _FOREIGN),
    _swap(_S.ID_IS_LOOKED_UP, "P9", "lands_at_most_once", _REPEATED),
    _swap(_S.LOOKED_UP_BEFORE_GIVING_UP, "P9", "failed_is_not_there", _REPEATED),
    _swap(_S.UNKNOWN_KEEPS_FILES, "P9", "no_live_file_is_deleted", _NO_LOG),
    _group(_G.POINTER_IS_COMPARED, "P5", "acknowledged_is_there_once"),
    _group(_G.TICKETS_ARE_GUARDED, "P1", "ticket_leaves_waiting_once"),
    _group(_G.HEAD_FIRST, "P2", "lands_at_most_once", _PATIENT, beside=_G.TICKETS_ARE_GUARDED),
    _group(_G.HEAD_HAS_MOVED, "P9", "failed_is_not_there", _REVIVED),
    _group(_G.ONE_TRANSACTION, "P1", "failed_is_not_there"),
    _group(_G.DEADLINE_IS_GUARDED, "P3", "no_commit_after_the_deadline", _FAULTS),
    _group(_G.OWN_TICKET_IS_GUARDED, "P1", "failed_is_not_there"),
    _group(_G.IDS_ARE_UNIQUE, "P1", "lands_at_most_once", _RERUN),
    _group(_G.ID_MAY_BE_OWN, "P9", "no_live_file_is_deleted", _RERUN),
    _group(_G.LOCK_IS_A_HINT, "P2", "no_wait_for_a_dead_leader"),
    _group(_G.WITHDRAWING_IS_GUARDED, "P1", "ticket_leaves_waiting_once"),
    _group(_G.WITHDRAWN_BEFORE_DELETED, "P3", "failed_is_not_there"),
    _group(_G.CLEANUP_WITHDRAWS, "P3", "no_live_file_is_deleted"),
    _group(_G.GONE_IS_UNKNOWN, "P9", "failed_is_not_there", _FAULTS),
    _group(_G.PUT_IS_FENCED, "P9", "lands_at_most_once"),
    _group(_G.FENCE_IS_READ, "P9", "lands_at_most_once"),
    _group(_G.FIRST_CALL_IS_FENCED, "P9", "lands_at_most_once", _GENERATED_ID),
    _group(_G.MEMBERS_ARE_SEARCHED, "P9", "lands_at_most_once", _GENERATED_ID),
    _group(_G.ONLY_OWN_FILES, "P13", "no_live_file_is_deleted"),
    _group(_G.TRIES_ARE_COUNTED, "P4", "a_bad_ticket_stops_few", _POISON),
    _rows(_C.COPIES_ARE_NOT_YOUNGER, "P20", "no_row_comes_back"),
    _rows(_C.COPIES_ARE_NOT_OLDER, "P20", "no_row_is_lost"),
    _rows(_C.COPIES_FOLLOW_DELETES, "P19", "no_row_comes_back"),
    _rows(_C.DELETES_ARE_REBASED, "P26", "no_row_comes_back"),
    _rows(_C.LEFT_OUT_IS_A_CONFLICT, "P26", "no_row_comes_back"),
    _rows(_C.HIT_BY_KEY_IS_A_CONFLICT, "P19", "no_row_comes_back"),
    _rows(_C.NO_LINEAGE_IS_A_CONFLICT, "P26", "no_row_comes_back"),
    _rows(_C.LINEAGE_IS_REBASED, "P26", "no_row_comes_back", _THREE_ROWS),
    _rows(_C.NEEDED_DELETES_STAY, "P36", "no_row_comes_back", _THREE_KEYS),
    _tables(_T.EVERY_POINTER_IS_COMPARED, "P40", "acknowledged_is_there_once", _ABORTED),
    _tables(_T.ALL_IN_ONE_TRANSACTION, "P40", "all_tables_or_none", _TRANSFERS),
    _tables(_T.GUARDS_ARE_COMPARED, "P40", "serializable", _SKEWS),
    _tables(_T.GUARDS_ARE_HELD, "P40", "serializable", _SKEWS),
    _tables(_T.READS_ARE_CHECKED, "P40", "serializable", _SKEWS),
    _tables(_T.LOCKED_IN_ORDER, "P40", "no_deadlock", _TRANSFERS),
    _tables(_T.STALE_IS_DOUBTED, "P40", "failed_is_not_there", _ABORTED),
    _tables(_T.RECORDS_ARE_SEARCHED, "P40", "failed_is_not_there", _ABORTED),
    _tables(_T.MOVED_FIRST, "P40", "failed_is_not_there", _ABORTED),
    _tables(_T.ONE_INSTANT, "P28", "readers_see_one_instant", _LOOKED_UP),
    _tables(_T.LOOKED_UP_TOGETHER, "P40", "answers_name_every_table", _LOOKED_UP),
)


def flaws_table(trace_of: Callable[[Flaw], Trace | None]) -> str:
    """Each rule with its invariant and the length of the shortest path to break it, as a table for the docs."""
    lines = ["| Model | Rule | Of | Without it breaks | Steps |", "|---|---|---|---|---|"]
    for flaw in FLAWS:
        trace = trace_of(flaw)
        assert trace is not None, f"{flaw.name} is off, and nothing breaks"
        model = type(flaw.model).__name__.lower()
        also = "" if flaw.beside is None else f" (with `{flaw.beside.name}` also off)"
        lines.append(
            f"| {model} | `{flaw.name}`: {flaw.rule}{also} | {flaw.of} | `{trace.invariant}` | {len(trace.steps)} |"
        )
    return "\n".join(lines)
