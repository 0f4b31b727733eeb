"""Models of the protocol, explored state by state: the swap, group commit with crashes, compaction against deletes.

``python -m frazil_verification.model`` explores them all. They import no code of the commit; each step has the name of
what the code does there.
"""

from frazil_verification.model.explorer import Exploration, Model, Trace, explore
from frazil_verification.model.runs import FLAWS, LARGE, SMALL, Flaw, Run, flaws_table

__all__ = ["FLAWS", "LARGE", "SMALL", "Exploration", "Flaw", "Model", "Run", "Trace", "explore", "flaws_table"]
