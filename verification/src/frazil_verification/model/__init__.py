"""Models of the protocol, explored state by state: the swap of one table and of several, group commit with
crashes, compaction against deletes.

``python -m frazil_verification.model`` explores them all. They import nothing of the commit path; their steps are named
after the steps of its code.
"""

from frazil_verification.model.explorer import Exploration, Model, Trace, explore
from frazil_verification.model.runs import FLAWS, LARGE, SMALL, Flaw, Run, flaws_table

__all__ = ["FLAWS", "LARGE", "SMALL", "Exploration", "Flaw", "Model", "Run", "Trace", "explore", "flaws_table"]
