"""What a reader remembers of runs, so that a live follower asks one question a page and a notice finds its run."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Generic, Protocol, TypeVar

MAX_HEADS = 10_000


class _Keyed(Protocol):
    @property
    def key(self) -> int: ...


_Head = TypeVar("_Head", bound=_Keyed)


class Heads(Generic[_Head]):
    """Heads of runs by id. When there are too many, those go that nobody follows."""

    def __init__(self) -> None:
        self._heads: dict[str, _Head] = {}
        self._run_ids: dict[int, str] = {}
        self.followed: Callable[[], Set[str]] = frozenset
        """The runs that are followed: a notice finds them by their heads, which must stay."""

    def __len__(self) -> int:
        return len(self._heads)

    def get(self, run_id: str) -> _Head | None:
        return self._heads.get(run_id)

    def run_of(self, key: int) -> str | None:
        """The run of that number, if it was read here."""
        return self._run_ids.get(key)

    def remember(self, run_id: str, head: _Head) -> _Head:
        self._heads.pop(run_id, None)
        self._heads[run_id] = head
        self._run_ids[head.key] = run_id
        if len(self._heads) > MAX_HEADS:
            followed = self.followed()
            for other in [run_id for run_id in self._heads if run_id not in followed][: MAX_HEADS // 2]:
                self.forget(other)
        return head

    def forget(self, run_id: str) -> None:
        head = self._heads.pop(run_id, None)
        if head is not None:
            self._run_ids.pop(head.key, None)
