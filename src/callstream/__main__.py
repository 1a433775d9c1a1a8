"""``python -m callstream``: the same as the command ``callstream``."""

from __future__ import annotations

import sys

from callstream.cli import main

if __name__ == "__main__":
    sys.exit(main())
