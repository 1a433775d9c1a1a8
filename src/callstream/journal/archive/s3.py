"""Objects in a bucket, by the S3 API that Amazon, Google, Cloudflare, MinIO and others have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import (
    BaseError,
    GenericError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from callstream.errors import JournalError, UsageError
from callstream.journal.archive.objects import ArchiveUnavailable, ObjectMissing

_OPTIONS = ("endpoint", "region")
_MISSING = (NotFoundError, FileNotFoundError)  # obstore raises Python's own


class Bucket:
    """See ``Objects``. Credentials come from the environment, as for Amazon tools: ``AWS_ACCESS_KEY_ID``, …, or a role."""

    def __init__(self, bucket: str, prefix: str, options: Mapping[str, str]) -> None:
        if unknown := sorted(options.keys() - set(_OPTIONS)):
            raise UsageError(f"an archive in a bucket knows the options endpoint and region, got {', '.join(unknown)}")
        self.where = f"the bucket {bucket!r}"
        self._prefix = f"{prefix}/" if prefix else ""  # not obstore's own, which 0.9 leaves out where it deletes
        config: Any = dict(options)
        client: Any = {"timeout": "60s", "connect_timeout": "5s"}
        if options.get("endpoint", "").startswith("http:"):
            client["allow_http"] = True
        try:
            self._store = S3Store(
                bucket,
                client_options=client,
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=10)},
                **config,
            )
        except BaseError as error:
            raise UsageError(f"{self.where} cannot be used: {_line(error)}") from error

    async def put(self, name: str, data: bytes) -> None:
        with self._failure():
            await obstore.put_async(self._store, self._key(name), data, use_multipart=False)

    async def get(self, name: str) -> bytes:
        with self._failure():
            found = await obstore.get_async(self._store, self._key(name))
            return bytes(await found.bytes_async())

    async def get_spans(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        with self._failure():
            starts, lengths = [start for start, _ in spans], [size for _, size in spans]
            found = await obstore.get_ranges_async(self._store, self._key(name), starts=starts, lengths=lengths)
            return [bytes(part) for part in found]

    async def delete(self, name: str) -> None:
        with self._failure():
            try:
                await obstore.delete_async(self._store, self._key(name))
            except _MISSING:
                pass

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name[:2]}/{name}.pack"

    @contextmanager
    def _failure(self) -> Iterator[None]:
        try:
            yield
        except _MISSING as error:
            raise ObjectMissing(f"{self.where} has no such object: {_line(error)}") from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise JournalError(f"{self.where} refuses this process: {_line(error)}") from error
        except GenericError as error:
            raise ArchiveUnavailable(f"{self.where} cannot be reached: {_line(error)}") from error
        except BaseError as error:
            raise JournalError(f"{self.where} could not be used: {_line(error)}") from error


def _line(error: Exception) -> str:
    """The first line of its text, without the pages that follow."""
    return str(error).strip().partition("\n")[0]
