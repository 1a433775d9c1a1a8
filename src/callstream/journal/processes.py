"""Which process a writer's name means, and whether it is there.

A lease says that a process was there a moment ago. Of a process of this machine more can be known: when it has gone nobody
needs to wait for its lease, and while it works its runs are its own, whatever the clock says. A name holds the machine's
start, the namespace of its process ids, the id and the start of the process, so no other is taken for it. Where the system
does not tell (Linux does), nothing is known and the lease decides.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_MARK = "@"
_STATE, _STARTED = 0, 19
"""Places in ``/proc/<pid>/stat`` after the name, which may hold anything but a closing parenthesis at its end."""
_STOPPED = frozenset("TtZX")


def named(writer: str) -> str:
    """The name with the process in it that this is."""
    stat = _stat(os.getpid())
    return writer if stat is None else f"{writer}{_MARK}{_machine()}.{os.getpid()}.{stat[_STARTED]}"


def is_gone(writer: str) -> bool:
    """Whether a writer's process was one of this machine, and is not there any more."""
    pid, started = _process(writer)
    if pid is None:
        return False
    stat = _stat(pid)
    return stat is None or stat[_STARTED] != started or stat[_STATE] in "ZX"


def lives(writer: str) -> bool:
    """Whether a writer's process is one of this machine, is there, and has not been stopped."""
    pid, started = _process(writer)
    stat = None if pid is None else _stat(pid)
    return stat is not None and stat[_STARTED] == started and stat[_STATE] not in _STOPPED


def _process(writer: str) -> tuple[int | None, str]:
    """The id and the start of the process, if it is one that can be seen from here."""
    machine, _, rest = writer.rpartition(_MARK)[2].partition(".")
    pid, _, started = rest.partition(".")
    return (int(pid), started) if machine and machine == _machine() and pid.isdecimal() else (None, "")


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None


@cache
def _machine() -> str:
    """The start of the machine and the namespace, together a name for where process ids mean the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot[:8]}-{''.join(filter(str.isdecimal, os.readlink('/proc/self/ns/pid')))}"
    except OSError:
        return ""
