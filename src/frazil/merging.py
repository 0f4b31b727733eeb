"""The merge builder: clauses in order, then execute()."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from frazil.dml.merge import Clause, Merge
from frazil.model import Commit

Run = Callable[[Merge, bool], Commit]
Explain = Callable[[Merge], str]


@dataclass(frozen=True, slots=True, eq=False)
class MergeBuilder:
    """A merge in the making. Every method returns another builder; execute() runs it.

    Clauses are looked at in the order they were added; the first whose condition holds decides what becomes of a row.
    """

    _merge: Merge
    _run: Run
    _explain: Explain
    _evolves: bool = False

    def when_matched_update(self, set: Mapping[str, object], condition: object = None) -> MergeBuilder:  # noqa: A002
        """Change columns of a row that a source row meets."""
        return self._with(Clause("matched", "update", set, condition))

    def when_matched_update_all(self, condition: object = None, except_cols: Sequence[str] = ()) -> MergeBuilder:
        """Set every column to the source's of the same name."""
        return self._with(Clause("matched", "update", None, condition, frozenset(except_cols)))

    def when_matched_delete(self, condition: object = None) -> MergeBuilder:
        """Take out a row that a source row meets."""
        return self._with(Clause("matched", "delete", None, condition))

    def when_not_matched_insert(self, values: Mapping[str, object], condition: object = None) -> MergeBuilder:
        """Add a row for a source row that meets none; columns that are not named are null."""
        return self._with(Clause("not matched", "insert", values, condition))

    def when_not_matched_insert_all(self, condition: object = None, except_cols: Sequence[str] = ()) -> MergeBuilder:
        """Add a source row that meets none, as it is."""
        return self._with(Clause("not matched", "insert", None, condition, frozenset(except_cols)))

    def when_not_matched_by_source_update(
        self,
        set: Mapping[str, object],  # noqa: A002
        condition: object = None,
    ) -> MergeBuilder:
        """Change columns of a row that no source row meets."""
        return self._with(Clause("not matched by source", "update", set, condition))

    def when_not_matched_by_source_delete(self, condition: object = None) -> MergeBuilder:
        """Take out a row that no source row meets."""
        return self._with(Clause("not matched by source", "delete", None, condition))

    def with_schema_evolution(self) -> MergeBuilder:
        """Columns that only the source has are added to the table."""
        return replace(self, _evolves=True)

    def explain(self) -> str:
        """What would be read and done, without doing it."""
        self._merge.check()
        return self._explain(self._merge)

    def execute(self) -> Commit:
        """Run it. Raises ConflictError when another writer changed rows that it looked at."""
        self._merge.check()
        return self._run(self._merge, self._evolves)

    def _with(self, clause: Clause) -> MergeBuilder:
        return replace(self, _merge=replace(self._merge, clauses=(*self._merge.clauses, clause)))
