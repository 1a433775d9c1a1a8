"""Reasoning that led to nothing, because the calls that it led to were left out.

Reasoning leaves as it comes, and what becomes of the calls after it is known later. Providers refuse a history in which
reasoning leads to nothing, so what is found to be lone is remembered by its names, and taken out of later requests
(``Provider.without_lone_reasoning``).
"""

from __future__ import annotations

from collections import OrderedDict

_MOST = 10_000


class LoneReasoning:
    """The names of lone reasoning, the latest of them: signatures, ids, whatever tells reasoning from other in requests."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._names)

    def has(self, *names: object) -> bool:
        """Whether one of these, of which a request may have any, is the name of lone reasoning."""
        return any(isinstance(name, str) and name in self._names for name in names)

    def add(self, name: str) -> None:
        self._names[name] = None
        if len(self._names) > _MOST:
            self._names.popitem(last=False)

    def discard(self, name: str) -> None:
        """Servers that do not sign use a name again."""
        self._names.pop(name, None)


class Thoughts:
    """The reasoning of one body that has left and has not led to anything so far.

    It is lone if calls followed it directly which were all left out, and nothing else came before the next reasoning or
    the end. As long as anything that it led to is forwarded, it is not.
    """

    def __init__(self, lone: LoneReasoning) -> None:
        self._lone = lone
        self._names: list[str] = []
        self._is_cut = False  # a call that followed was left out

    def think(self, names: list[str]) -> None:
        """More reasoning has left."""
        if self._is_cut:
            self.end()
        self._names += names

    def lead(self) -> None:
        """Something that reasoning leads to has left."""
        if self._names:
            for name in self._names:
                self._lone.discard(name)
            self._names = []
        self._is_cut = False

    def miss(self) -> None:
        """A call was left out."""
        self._is_cut = True

    def end(self) -> None:
        """Nothing follows that the reasoning may have led to."""
        for name in self._names if self._is_cut else ():
            self._lone.add(name)
        self._names = []
        self._is_cut = False
