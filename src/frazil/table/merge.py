"""The builder of a merge: clauses in order, then execute()."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from frazil.dml.merge import Clause, Merge
from frazil.model import Commit

Run = Callable[[Merge, bool], Commit]
Explain = Callable[[Merge], str]


@dataclass(frozen=True, slots=True, eq=False)
class MergeBuilder:
    """A merge that is being built. Every method returns a new builder; execute() runs it.

    Clauses are tried in the order they were added; the first whose condition holds for a row is applied to it.
    """

    _merge: Merge
    _run: Run
    _explain: Explain
    _evolves: bool = False

    def when_matched_update(self, set: Mapping[str, object], condition: object = None) -> MergeBuilder:  # noqa: A002
        """Change columns of a matched row."""
        return self._with(Clause("matched", "update", set, condition))

    def when_matched_update_all(self, condition: object = None, except_cols: Sequence[str] | None = ()) -> MergeBuilder:
        """Set every column of a matched row to the source's column of the same name."""
        return self._with(Clause("matched", "update", None, condition, frozenset(except_cols or ())))

    def when_matched_delete(self, condition: object = None) -> MergeBuilder:
        """Delete a matched row."""
        return self._with(Clause("matched", "delete", None, condition))

    def when_not_matched_insert(self, values: Mapping[str, object], condition: object = None) -> MergeBuilder:
        """Insert a row for an unmatched source row; columns that are not named are null."""
        return self._with(Clause("not matched", "insert", values, condition))

    def when_not_matched_insert_all(
        self, condition: object = None, except_cols: Sequence[str] | None = ()
    ) -> MergeBuilder:
        """Insert an unmatched source row as it is."""
        return self._with(Clause("not matched", "insert", None, condition, frozenset(except_cols or ())))

    def when_not_matched_by_source_update(
        self,
        set: Mapping[str, object],  # noqa: A002
        condition: object = None,
    ) -> MergeBuilder:
        """Change columns of a row that no source row matches."""
        return self._with(Clause("not matched by source", "update", set, condition))

    def when_not_matched_by_source_delete(self, condition: object = None) -> MergeBuilder:
        """Delete a row that no source row matches."""
        return self._with(Clause("not matched by source", "delete", None, condition))

    def with_schema_evolution(self) -> MergeBuilder:
        """Add columns that only the source has to the table."""
        return replace(self, _evolves=True)

    def explain(self) -> str:
        """What the merge would read and do, without doing it."""
        self._merge.check()
        return self._explain(self._merge)

    def execute(self) -> Commit:
        """Run the merge. Raises ConflictError when another writer changed rows that it read."""
        self._merge.check()
        return self._run(self._merge, self._evolves)

    def _with(self, clause: Clause) -> MergeBuilder:
        return replace(self, _merge=replace(self._merge, clauses=(*self._merge.clauses, clause)))
