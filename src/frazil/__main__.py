"""``python -m frazil`` is the command ``frazil``."""

from frazil.cli import main

main()
