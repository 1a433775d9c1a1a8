from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callstream import Callstream
from callstream.wire import WIRES
from tests.journal.conftest import drop_schema, schema_url, sqlite_url

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Journals do not know of wires: PostgreSQL is tried with one of them quickly, and with all in ``make slow``."""
    for item in items:
        if item.path.is_relative_to(HERE) and hasattr(item, "callspec"):
            params = item.callspec.params
            if params.get("journal_url") == "postgres" and params.get("wire", WIRES[0]) != WIRES[0]:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The three journals, so that all that runs promise is shown on each."""
    match request.param:
        case "memory":
            yield "memory:"
        case "sqlite":
            yield sqlite_url(tmp_path / "calls.db")
        case _:
            server = request.getfixturevalue("postgres_url")
            schema = f"s{uuid.uuid4().hex}"
            yield schema_url(server, schema)
            await drop_schema(server, schema)


@pytest.fixture
async def cs(journal_url: str) -> AsyncIterator[Callstream]:
    async with Callstream(journal_url) as callstream:
        yield callstream
