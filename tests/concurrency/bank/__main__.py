"""The tests' folder is where tests import from; pytest puts it on the path, a plain ``python -m`` does not."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from concurrency.bank.cli import main

    sys.exit(main())
