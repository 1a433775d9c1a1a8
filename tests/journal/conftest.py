"""The journals that one suite is run on: three stores, each of them as the index beside a log, and one with NATS."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bench.nats import Node, with_log
from callstream.journal import Journal, open_journal

from .logs import Engine, paired
from .zombie import hanging

BACKENDS = ("memory", "sqlite", "postgres")
WITH_LOG = "+log"
WITH_NATS = "+nats"
NATS = pytest.param(f"postgres{WITH_NATS}", marks=[pytest.mark.postgres, pytest.mark.nats])
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)
PAIRED = [("memory", ()), ("sqlite", ()), ("postgres", pytest.mark.postgres)]


class Place:
    """One store, and the journals on it; each journal counts as a process of its own."""

    def __init__(self, backend: str, url: str) -> None:
        self.backend = backend.removesuffix(WITH_LOG).removesuffix(WITH_NATS)
        self.url = url
        self.engine = Engine() if backend.endswith(WITH_LOG) else None
        self._journals: list[Journal] = []

    def journal(self, **settings: Any) -> Journal:
        settings.setdefault("housekeeping", None)
        journal = open_journal(self.url, **settings) if self.engine is None else paired(self.url, self.engine, settings)
        self._journals.append(journal)
        return journal

    def zombie(self, **settings: Any) -> Journal:
        return hanging(self.journal(**{"lease_ttl": 0.1, **settings}))

    async def close(self) -> None:
        for journal in self._journals:
            await journal.aclose()


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def schema_url(url: str, schema: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


async def drop_schema(url: str, schema: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    finally:
        await connection.close()


async def drop_stream(node: Node, stream: str) -> None:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{node.port}")
    await client.request(f"$JS.API.STREAM.DELETE.{stream}", b"", timeout=10)
    await client.close()


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        POSTGRES,
        *(pytest.param(f"{name}{WITH_LOG}", marks=marks) for name, marks in PAIRED),
        NATS,
    ]
)
def place_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    match request.param.removesuffix(WITH_LOG).removesuffix(WITH_NATS):
        case "memory":
            yield request.param, f"memory:{uuid.uuid4().hex}"
        case "sqlite":
            yield request.param, sqlite_url(tmp_path / "journal.db")
        case _:
            url = request.getfixturevalue("postgres_url")
            schema = f"test_{uuid.uuid4().hex[:12]}"
            if request.param.endswith(WITH_NATS):
                node: Node = request.getfixturevalue("nats_server")
                log = f"log=nats://127.0.0.1:{node.port}"
                yield request.param, with_log(schema_url(url, schema), log, schema, relaxed=True)
                asyncio.run(drop_stream(node, schema))
            else:
                yield request.param, schema_url(url, schema)
            asyncio.run(drop_schema(url, schema))


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """An empty schema on the PostgreSQL server, dropped at the end."""
    schema = f"test_{uuid.uuid4().hex[:12]}"
    yield schema_url(postgres_url, schema)
    asyncio.run(drop_schema(postgres_url, schema))


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Journal]:
    journal = open_journal(url, housekeeping=None, **settings)
    try:
        yield journal
    finally:
        await journal.aclose()


@pytest_asyncio.fixture
async def place(place_url: tuple[str, str]) -> AsyncIterator[Place]:
    place = Place(*place_url)
    try:
        yield place
    finally:
        await place.close()


@pytest.fixture
def journal(place: Place) -> Journal:
    return place.journal()


@pytest.fixture
def eventually() -> Callable[..., Any]:
    return _eventually


async def _eventually(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Waits until an async condition holds. Not a measurement: the limit only ends a test that would hang."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  # what happens in a database sets no event
            await asyncio.sleep(0.01)
