"""Models of the protocol, explored state by state: the swap, group commit with crashes, compaction against deletes.

``python -m frazil.verify.model`` explores them all. They know nothing of the code; each step is named after what the
code does there.
"""

from frazil.verify.model.explorer import Exploration, Model, Trace, explore
from frazil.verify.model.runs import FLAWS, LARGE, SMALL, Flaw, Run, flaws_table

__all__ = ["FLAWS", "LARGE", "SMALL", "Exploration", "Flaw", "Model", "Run", "Trace", "explore", "flaws_table"]
