"""Ended runs in object storage, and reading them there."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from callstream.errors import MissingExtra, UsageError
from callstream.journal.archive.archive import Archive, ArchivedReader
from callstream.journal.archive.objects import Folder, Objects

__all__ = ["Archive", "ArchivedReader", "open_objects"]


def open_objects(address: str | None) -> Objects | None:
    """The folder (``file:///path``) or bucket (``s3://bucket/prefix``) of that address."""
    if address is None:
        return None
    if not isinstance(address, str):
        raise UsageError(f"expected an archive's address such as s3://bucket/prefix, got {address!r}")
    parts = urlsplit(address)
    if parts.scheme == "file" and not parts.netloc and not parts.query and parts.path.strip("/"):
        return Folder(unquote(parts.path))
    if parts.scheme == "s3" and parts.netloc and "@" not in parts.netloc:
        try:
            from callstream.journal.archive.s3 import Bucket
        except ModuleNotFoundError as error:
            raise MissingExtra("an archive in a bucket needs obstore", "archive", error) from error
        return Bucket(parts.netloc, parts.path.strip("/"), dict(parse_qsl(parts.query, keep_blank_values=True)))
    # The rest of it may hold a key.
    got = f"an address that begins with {parts.scheme!r}" if parts.scheme else "one without a scheme"
    raise UsageError(f"expected file:///folder or s3://bucket/prefix, got {got}")
