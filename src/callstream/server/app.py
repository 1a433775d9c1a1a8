"""The app: an agent in, a Starlette application out."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from callstream.agui import View
from callstream.callstream import Callstream
from callstream.errors import JournalError, UsageError
from callstream.runtime import Driver
from callstream.runtime.driver import Heir
from callstream.server.agent import Agent, AgentFunction, Host, Successor, host_of
from callstream.server.api import Api
from callstream.server.chat import ChatRoutes
from callstream.server.health import JOURNAL_UNAVAILABLE, HealthRoutes, JournalHealth, is_in_log
from callstream.server.logs import LogObserver, describe_request
from callstream.server.requests import Access, Auth, Guard, Problem, json_response, problem_response, shutting_down
from callstream.server.routes import CopilotKitRoutes, RunRoutes, driver_for
from callstream.server.settings import ServerSettings

logger = logging.getLogger("callstream.server")

PAGE: Final = Path(__file__).parent / "page"
_READER: Final = "jsonreader.js"
"""A module of the npm package that the page imports too: beside the page's files in a wheel, in ``js/`` in a checkout."""
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


def create_app(
    agent: Host | Agent | AgentFunction,
    *,
    callstream: Callstream | None = None,
    auth: Auth | None = None,
    settings: ServerSettings | None = None,
    view: View | None = None,
    name: str | None = None,
    label: str | None = None,
    continues: bool = False,
) -> Starlette:
    """Serves an agent: ``POST /agui`` and all that belongs to it; the inspector is at ``/``.

    ``agent`` is an ``ADKAgent``, or anything with ``run(input)``; the latter needs the ``callstream`` whose tap and
    journal it uses. ``auth`` turns a request into a principal: threads belong to the principal that began them, and do
    not exist for anyone else. Without it, anyone who can reach the server may do everything, so let it listen on
    loopback only. ``settings`` default to those of the environment. ``view`` says what clients are shown. ``name`` and
    ``label`` are shown on the inspector's page. ``continues``: if a process dies, the runs of an agent that does not do
    its own journaling continue in another process that serves an agent of the same ``name``. Runs of an ``ADKAgent`` always
    do, unless the settings say otherwise.

    The app closes the Callstream when it ends.
    """
    name = name or _name_of(agent)
    host = host_of(agent, callstream, name, continues=continues)
    kind = type(settings)
    if settings is not None and not isinstance(settings, ServerSettings):
        raise UsageError(f"expected settings to be a ServerSettings, got {kind.__module__}.{kind.__name__}")
    settings = settings or ServerSettings.from_env()
    host.callstream.observe(LogObserver())
    driver = driver_for(host, settings, logs_failures=False)  # LogObserver does
    health = JournalHealth(host.callstream.journal, settings.journal_seconds)
    access = Access(auth, host)
    runs = RunRoutes(host, driver, health, access, settings, view)
    routes: list[Any] = [*runs.routes(), *ChatRoutes(runs).routes(), *CopilotKitRoutes(runs, name).routes()]
    if settings.api:
        routes += Api(host.callstream.journal, access, {"name": name, "label": label}, health).routes()
    routes += HealthRoutes(driver, health).routes()
    if settings.inspector:
        routes += [Route("/", _page), Mount("/page", _PageFiles(directory=PAGE))]

    ends = AsyncExitStack()
    for end in (host.callstream.aclose, partial(_close, agent), health.aclose, driver.aclose):
        ends.push_async_callback(end)  # the last comes first

    async def close_all() -> None:
        """An unavailable journal must not keep the server from shutting down: the next sweep ends its runs."""
        try:
            await ends.aclose()
        except JournalError as error:
            logger.error("ends of runs could not be written, they are left to the next sweep: %s", error)

    closing: asyncio.Task[None] | None = None

    async def close() -> None:
        """All callers wait for the same closing, and cancelling one of them does not cancel it."""
        nonlocal closing
        closing = closing or asyncio.create_task(close_all())
        await asyncio.shield(closing)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await host.callstream.journal.open()
        if (successor := _successor(host, settings)) is not None:
            successor.continues = True
            successor.on_divergence = settings.on_divergence
            successor.max_attempts = settings.max_attempts
            heir = Heir(host.callstream.journal, driver, successor.apps, successor.go_on)
            heir.start()
            ends.push_async_callback(heir.stop)
        try:
            yield
        finally:
            await close()

    middleware = [
        Middleware(Guard, origins=settings.cors_origins, hosts=settings.allowed_hosts, open_to_all=auth is None)
    ]
    if settings.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-run-id", "retry-after"],
            )
        )
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={
            Problem: _answer_problem,
            HTTPException: _answer_http,
            UsageError: partial(_answer_usage, driver),
            JournalError: partial(_answer_journal, driver),
        },
    )
    app.router.redirect_slashes = False  # a redirect would go to whatever host the request names
    app.state.callstream = host.callstream
    app.state.driver = driver
    app.state.close = close
    app.state.ends = ends
    app.state.continues = lambda: _successor(host, settings) is not None
    app.state.obstacles = lambda: _obstacles(host, settings)
    return app


def _successor(host: Host, settings: ServerSettings) -> Successor | None:
    """The host, if it continues the runs of processes that have died."""
    return host if settings.continue_runs and isinstance(host, Successor) and host.can_continue else None


def _obstacles(host: Host, settings: ServerSettings) -> list[str]:
    """Why the host does not continue the runs of processes that have died; empty if it does."""
    if _successor(host, settings) is not None:
        return []
    switched_off = [] if settings.continue_runs else ["continue_runs (CALLSTREAM_CONTINUE_RUNS) is off"]
    return [*switched_off, *getattr(host, "obstacles", [])]


_REVALIDATED: Final = {"cache-control": "no-cache"}


class _PageFiles(StaticFiles):
    """Revalidated on every request (304 if unchanged), so that one page never mixes modules of two versions."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        path_and_stat = super().lookup_path(path)
        checkout = PAGE.parents[3] / "js" / _READER
        if path == _READER and path_and_stat[1] is None and checkout.is_file():
            return str(checkout), checkout.stat()
        return path_and_stat

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_REVALIDATED)
        return response


async def _page(request: Request) -> Response:
    return FileResponse(PAGE / "index.html", headers=_REVALIDATED)


def _answer_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    return problem_response(problem)


def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if (
        error.status_code == HTTPStatus.NOT_FOUND and "endpoint" not in request.scope
    ):  # not to be confused with a thread or a run that does not exist
        return json_response({"error": {"code": "unknown_path", "message": "Unknown path."}}, error.status_code)
    phrase = _PHRASES.get(error.status_code, "Refused")
    code = phrase.lower().replace(" ", "_").replace("'", "")
    return json_response({"error": {"code": code, "message": f"{phrase}."}}, error.status_code, error.headers)


def _answer_usage(driver: Driver, request: Request, error: Exception) -> Response:
    """Answers a request that the journal or the runtime rejected. The error's text names internals, so it is only logged."""
    if driver.is_draining:
        return problem_response(shutting_down())
    logger.warning("%s: %s", describe_request(request.scope), error)
    return problem_response(
        Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "wrong_input", "The request cannot be carried out.")
    )


def _answer_journal(driver: Driver, request: Request, error: Exception) -> Response:
    if driver.is_draining:
        return problem_response(shutting_down())
    assert isinstance(error, JournalError)
    if not is_in_log(error):
        logger.error("%s: the journal failed: %s", describe_request(request.scope), error)
    return problem_response(JOURNAL_UNAVAILABLE)


def _name_of(agent: Any) -> str:
    return str(getattr(agent, "name", None) or getattr(agent, "__name__", None) or type(agent).__name__)


async def _close(agent: Any) -> None:
    close: Callable[[], Awaitable[None] | None] | None = getattr(agent, "close", None)
    closing = None if close is None else close()
    if inspect.isawaitable(closing):
        await closing
