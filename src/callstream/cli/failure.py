"""How a command ends when it cannot do what it was asked: one sentence and an exit code."""

from __future__ import annotations

from typing import Final

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
"""What shells report for a program that Ctrl-C ended."""
PIPE_CLOSED: Final = 141
"""What shells report for a program whose reader went away."""


class CommandError(Exception):
    """The command cannot continue. The sentence is for the person at the terminal."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.code = code


def misused(sentence: str) -> CommandError:
    """The command was given something that cannot be."""
    return CommandError(sentence, MISUSED)
