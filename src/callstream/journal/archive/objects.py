"""Where packs are stored: objects with names, in a local folder or in a bucket (``s3``)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from callstream.errors import JournalError
from callstream.journal.store import StoreUnavailable

_T = TypeVar("_T")


class ArchiveUnavailable(StoreUnavailable):
    """The archive cannot be reached at the moment, while the index can."""


class ObjectMissing(JournalError):
    """There is no such object."""


class Objects(Protocol):
    """Objects that are written once. Awaited in any event loop.

    Anything may raise ArchiveUnavailable if it should be tried again, JournalError if not.
    """

    where: str

    async def put(self, name: str, data: bytes) -> None:
        """The object is durable when this returns. No reader ever gets a part of it."""

    async def get(self, name: str) -> bytes:
        """Raises ObjectMissing."""
        ...

    async def get_spans(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Parts of an object, each given by its first byte and its length. Raises ObjectMissing."""
        ...

    async def delete(self, name: str) -> None:
        """Also deletes what an interrupted ``put`` may have left. The object need not exist."""


class Folder:
    """See ``Objects``: a file for each, in 256 folders by the beginnings of their names."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.where = f"the folder {path!r}"

    async def put(self, name: str, data: bytes) -> None:
        await self._in_thread(self._put, name, data)

    async def get(self, name: str) -> bytes:
        return await self._in_thread(lambda: self._file(name).read_bytes())

    async def get_spans(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        return await self._in_thread(self._get_spans, name, spans)

    async def delete(self, name: str) -> None:
        await self._in_thread(self._delete, name)

    async def _in_thread(self, work: Callable[..., _T], *args: Any) -> _T:
        try:
            return await asyncio.to_thread(work, *args)
        except FileNotFoundError as error:
            raise ObjectMissing(f"{self.where} has no such file: {error.filename}") from error
        except OSError as error:
            raise JournalError(f"{self.where} could not be used: {error}") from error

    def _file(self, name: str) -> Path:
        return self._path / name[:2] / f"{name}.pack"

    def _put(self, name: str, data: bytes) -> None:
        file = self._file(name)
        missing = [folder for folder in (file.parent, *file.parent.parents) if not folder.exists()]
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        with part.open("wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(file)
        for folder in (file.parent, *(made.parent for made in missing)):
            _sync(folder)

    def _get_spans(self, name: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        found = []
        with self._file(name).open("rb") as opened:
            for start, size in spans:
                opened.seek(start)
                found.append(opened.read(size))
        return found

    def _delete(self, name: str) -> None:
        file = self._file(name)
        for each in (file, file.with_suffix(".part")):
            each.unlink(missing_ok=True)
        if file.parent.exists():
            _sync(file.parent)


def _sync(folder: Path) -> None:
    """Makes sure that the names in a folder are on the disk."""
    if os.name == "nt":
        return  # where a folder cannot be opened, and names are written with their files
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
