"""What the index has to know of packs: which there are, and where the runs lie that are in one.

A pack is known here before it is written, so nothing lies in the archive that the index has never heard of::

    writing -> kept -> dirty -> gone -> nothing
          \\____________________/

``writing``: its object may be there, or a part of it. ``kept``: runs lie in it. ``dirty``: something in it was forgotten, so
it has to be written anew, without that. ``gone``: nothing refers to it, its object has to be deleted. Only ``writing``
becomes ``kept``, in the transaction that takes the runs out of the tables; so a process that was stopped for long cannot
make use of an object that another one has given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from callstream.calls import CallState
from callstream.journal.pack import Place

GOING_ON = frozenset({CallState.RUNNING_EARLY, CallState.EXECUTING, CallState.AWAITING})
"""A run with such a call stays: somebody will want to read it soon."""
PackState: TypeAlias = Literal["writing", "kept", "dirty", "gone"]


class Due(NamedTuple):
    """A run that may leave the index. ``ended_ago``: seconds, by the store's clock."""

    key: int
    run_id: str
    thread_id: str
    principal: str | None
    ended_ago: float


class PackFigures(NamedTuple):
    packs: int
    runs: int
    bytes: int


class Packs(Protocol):
    """One store's knowledge of packs. Awaited where the store is; what only reads, where its reader is.

    Anything may raise StoreAway if it should be tried again, JournalError if not.
    """

    async def due(self, age: float, limit: int) -> Sequence[Due]:
        """The first so many runs that ended longer ago than that, are compacted, and lie in no pack.

        None of their calls is ``GOING_ON``. What another run still says of one changes its row, which stays.
        """
        ...

    async def begin(self, name: str) -> None:
        """Makes a pack known that will be written now."""

    async def keep(self, name: str, places: Sequence[Place], size: int, instead_of: str | None) -> bool:
        """Has those runs lie in that pack from now on, and nowhere else.

        ``instead_of``: the pack in which they lay, which is gone then. Without it they lay in the tables: their records and
        what their calls hold is erased there. False, and nothing is done, if one of them is not there any more, or the pack
        is not being written any more.
        """
        ...

    async def give_up(self, name: str) -> None:
        """A pack in which no run lies is gone."""

    async def give_up_stale(self, age: float) -> None:
        """So are those that have been written for longer than that: their processes have died, or will be refused."""

    async def drop(self, name: str) -> None:
        """Nothing is known any more of a pack that is gone."""

    async def listed(self, state: PackState) -> Sequence[str]: ...

    async def newest(self) -> str | None:
        """The last of the packs that runs lie in."""
        ...

    async def in_pack(self, name: str) -> Sequence[Place]:
        """The runs that lie in it, in the order in which they lie there."""
        ...

    async def places(self, run_ids: Sequence[str]) -> Sequence[Place]:
        """Those of the runs that lie in packs."""
        ...

    async def figures(self) -> PackFigures: ...
