"""Runs pytest, and what failed beside other tests once more, alone.

Tests that start servers, browsers and databases beside each other can starve on a small machine. What fails alone too has
failed; what passes then is printed by name. ::

    python -m tests.suite -n 3 -m slow tests
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

SOME_FAILED = 1  # and nothing else went wrong
ALONE = ("-n", "0", "-rA", "--last-failed", "--last-failed-no-failures", "none")


def main(arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    code = subprocess.call(command)
    if code != SOME_FAILED:
        return code
    sys.stdout.write("==> once more, alone: what failed beside other tests\n")
    sys.stdout.flush()
    return subprocess.call([*command, *ALONE, *(["--cov-append"] if "--cov" in arguments else [])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
