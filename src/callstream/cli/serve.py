"""``callstream serve``: an agent over AG-UI, with its journal and the inspector; and ``work``: its runs without a server."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from callstream.cli.options import (
    LOOPBACK,
    Commands,
    add_address,
    add_env_file,
    add_housekeeping,
    add_journal,
    add_log_format,
    boolean,
    from_environment,
    hide_password,
    housekeeping_of,
    log_format,
    origin,
    place_of,
    positive,
    refuse_secret,
    seconds,
    served_journal,
)
from callstream.cli.output import CommandError, Printer, misused
from callstream.cli.target import HELP, Target, load_target
from callstream.errors import JournalError, MissingExtra, UsageError

if TYPE_CHECKING:
    from callstream.callstream import Callstream

logger = logging.getLogger("callstream.server")

_SESSIONS = "CALLSTREAM_SESSIONS"
_OF_CREATE_APP = (
    *("journal", "sessions", "auth", "on_disconnect", "cors_origin", "forget_after", "stream_arguments"),
    *("trust_mcp_hints", "archive", "archive_after"),
)


def add_to(commands: Commands) -> None:
    parser = commands.add(
        "serve",
        serve,
        summary="serve an agent over AG-UI, with its journal and the inspector",
        description="""Serves an agent as it is: a google-adk App, agent or workflow, an ADKAgent, or any object with
            run(input). Runs belong to the server: a client that disconnects can rejoin its run. If no journal is named,
            ./callstream.db is created and used. Most options can also be set in the environment
            (CALLSTREAM_CORS_ORIGINS, CALLSTREAM_SESSIONS, CALLSTREAM_FORGET_AFTER, …), and so can the server's limits
            (CALLSTREAM_MAX_RUNS, …).""",
        examples="""
            callstream serve agent.py:root_agent
            callstream serve shop.agents:app --port 9000 --on-disconnect stop
            callstream serve my_agent/                                  # a google-adk agent folder
            callstream serve shop:app --host 0.0.0.0 --auth shop.login:who
            callstream serve shop:app --cors-origin https://shop.example.com
            callstream serve shop:app --log-format json --forget-after 30d
            callstream serve shop:app --workers 4                       # four processes, one address""",
    )
    _add_application(parser)
    add_address(parser)
    parser.add_argument(
        "--auth", metavar="MODULE:CALLABLE", help="function that returns the name of a request's user, or None"
    )
    parser.add_argument(
        "--on-disconnect",
        choices=("continue", "stop"),
        help="what happens to a run when its last client disconnects (default: continue)",
    )
    parser.add_argument(
        "--cors-origin",
        action="append",
        type=origin,
        metavar="ORIGIN",
        help="origin whose pages may use this server, such as https://app.example.com; may be repeated",
    )
    add_housekeeping(parser)
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="processes that serve the address together, on one journal in a file or a database (default: 1)",
    )
    parser.add_argument(
        "--worker", nargs=2, type=int, help=argparse.SUPPRESS
    )  # for processes that the supervisor starts
    parser.add_argument("--verbose", action="store_true", help="log every request")
    _add_work(commands)


def _add_application(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name an application and say where its runs are kept."""
    parser.add_argument("target", metavar="MODULE:APP", help=HELP)
    add_journal(parser)
    parser.add_argument(
        "--sessions",
        metavar="URL",
        help="where google-adk keeps its sessions: memory:, sqlite:///FILE, postgresql://… (default: beside the journal)",
    )
    parser.add_argument(
        "--stream-arguments",
        action=argparse.BooleanOptionalAction,
        help="ask providers to stream arguments where they do so only on request (default: ask)",
    )
    parser.add_argument(
        "--trust-mcp-hints",
        action=argparse.BooleanOptionalAction,
        help="run tools of MCP servers that are declared read-only or idempotent again if their process died while they ran "
        "(default: do not)",
    )
    add_env_file(parser)
    add_log_format(parser)


async def serve(options: argparse.Namespace, out: Printer) -> int:
    out = set_up_logs(options, out)
    if options.worker is None:
        workers = options.workers or from_environment("CALLSTREAM_WORKERS", positive) or 1
        if workers > 1:
            return await _serve_with_workers(workers, options, out)
    elif options.worker[1] > 1:
        out = _NoNotes(plain=options.plain)  # the first worker has printed them for all
    async with _made_app(options, out) as app:
        return await serve_made(app, options, out)


@asynccontextmanager
async def _made_app(options: argparse.Namespace, out: Printer) -> AsyncIterator[Any]:
    """The application of a command: the target itself if ``create_app`` made it, else one that serves the target."""
    quiet_adk()
    target = load_target(options.target, env_file=options.env_file)
    if _is_made_by_create_app(target.found):
        _refuse(options, _OF_CREATE_APP, f"{target.text} was made by create_app, which decides this")
        out.note(f"journal: the one of {target.text}")
        yield target.found
        return
    _refuse_web_app(target)
    callstream = _callstream(options, target, out)
    sessions = await _sessions(options, target, out)
    agent = _agent(target, callstream, session_service=sessions, **_of_adk(options, target))
    shares_journal = callstream is None or callstream.journal.is_persistent  # if not, ``serve_made`` reports it
    if (
        getattr(options, "worker", None) is not None
        and shares_journal
        and getattr(agent, "sessions_are_in_memory", False)
    ):
        raise misused(
            f"with --workers, all processes share google-adk's sessions, and those of {target.text} are in memory: give "
            "it a session_service, or name a place with --sessions"
        )
    callstream = getattr(agent, "callstream", None) or callstream  # an ADKAgent keeps its own, with its hooks
    name = str(getattr(target.found, "name", "") or target.name)
    settings: dict[str, Any] = {
        "on_disconnect": getattr(options, "on_disconnect", None),
        "cors_origins": tuple(getattr(options, "cors_origin", None) or ()) or None,
    }
    try:
        yield app_of(agent, options, out, callstream=callstream, name=name, **settings)
    finally:
        if hasattr(sessions, "close"):
            await sessions.close()


async def _serve_with_workers(workers: int, options: argparse.Namespace, out: Printer) -> int:
    if sys.platform == "win32":
        raise misused("--workers is not available on Windows; start several servers behind a load balancer")
    from callstream.server.serving import Supervisor

    def announce() -> None:
        _announce(listening, options, out, {})

    def command(*worker: int) -> list[str]:
        name, *rest = options.arguments
        return [sys.executable, "-m", "callstream", name, "--worker", *map(str, worker), *rest]

    with _listening(options.host, options.port) as listening:
        return await Supervisor(command, workers, listening).run(announce)


class _NoNotes(Printer):
    def note(self, text: str) -> None:
        pass


class _LoggedNotes(Printer):
    """Writes notes as log records, for when every line of standard error has to be JSON."""

    def note(self, text: str) -> None:
        logger.info("%s", text.removeprefix("callstream: "))


def set_up_logs(options: argparse.Namespace, out: Printer) -> Printer:
    """Configures the root logger and returns where notes go."""
    level = logging.INFO if getattr(options, "verbose", False) else logging.WARNING
    options.log_format = options.log_format or from_environment("CALLSTREAM_LOG_FORMAT", log_format)
    logging.getLogger("callstream").setLevel(logging.INFO)
    if options.log_format != "json":
        logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
        return out
    from callstream.server.logs import JsonFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)
    return _LoggedNotes(plain=options.plain)


def app_of(
    agent: Any,
    options: argparse.Namespace,
    out: Printer,
    *,
    callstream: Callstream | None = None,
    name: str | None = None,
    label: str | None = None,
    **settings: Any,
) -> Any:
    """An application that serves the agent; ``settings`` are the server's."""
    from callstream.server import ServerSettings, create_app

    settings = {name: value for name, value in settings.items() if value is not None}
    auth = load_target(options.auth).found if getattr(options, "auth", None) else None
    if auth is not None and not callable(auth):
        raise misused(f"--auth: {options.auth} is not callable")
    if auth is None and getattr(options, "host", LOOPBACK[0]) not in LOOPBACK:
        out.note(
            f"callstream: without --auth, anyone who can reach {options.host} can use this agent and read every run"
        )
    return create_app(
        agent, callstream=callstream, auth=auth, settings=ServerSettings.from_env(**settings), name=name, label=label
    )


async def serve_made(
    app: Any, options: argparse.Namespace, out: Printer, links: Mapping[str, str] | None = None
) -> int:
    """Serves until SIGINT or SIGTERM. Prints the address once it is bound, and then ``links``: paths and descriptions of
    further addresses.
    """
    from callstream.server.serving import serve as serve_with_uvicorn

    worker = getattr(options, "worker", None)
    journal = app.state.callstream.journal
    if worker is not None and not journal.is_persistent:
        raise misused(
            "with --workers, all processes share one journal, and other processes cannot see one in memory: use "
            "sqlite:///FILE or postgresql://…, or one worker"
        )
    uvicorn: dict[str, Any] = {"log_level": "info" if getattr(options, "verbose", False) else "warning"}
    with _listening(options.host, options.port) if worker is None else _shared(worker[0]) as used, _on_sigterm(_end):
        await journal.open()  # so that its errors are reported before any address is
        if worker is None:
            _announce(used, options, out, links or {})
            uvicorn["sockets"] = [used]
        else:
            uvicorn |= {"sockets": [], "control": used}
        if getattr(options, "log_format", None) == "json":
            uvicorn["log_config"] = None  # its loggers then use the root logger's handler
        await serve_with_uvicorn(app, **uvicorn)
        await asyncio.sleep(0)  # a Ctrl-C that uvicorn hands back is delivered here
    return 0


def _announce(listening: socket.socket, options: argparse.Namespace, out: Printer, links: Mapping[str, str]) -> None:
    bound = listening.getsockname()[1]
    host = "127.0.0.1" if options.host == "0.0.0.0" else f"[{options.host}]" if ":" in options.host else options.host
    out.write(f"http://{host}:{bound}/\n")
    for path, what in links.items():
        out.note(f"{what}: http://{host}:{bound}/{path}")
    out.note("press Ctrl-C to stop")


def _callstream(options: argparse.Namespace, target: Target, out: Printer) -> Callstream | None:
    """The application's own Callstream, or one with the journal that was named."""
    from callstream.callstream import Callstream

    own = _own_callstream(target)
    if own is not None:
        _refuse(
            options,
            ("journal", "archive", "archive_after", "forget_after"),
            f"{target.text} has its own Callstream and journal",
        )
        out.note(f"journal: the one of {target.text}")
        return own
    return Callstream(served_journal(options, out, housekeeping=housekeeping_of(options)))


def _own_callstream(target: Target) -> Callstream | None:
    """The application's own Callstream: google-adk's in a plugin, any other's as ``callstream`` or in its module."""
    from callstream.callstream import Callstream

    found = target.found
    adk = _adk_of(found)
    if adk is not None:
        theirs: Callstream | None = adk.own_callstream(found)
        return theirs
    own = getattr(found, "callstream", None)
    if isinstance(own, Callstream):
        return own
    module = sys.modules.get(getattr(found, "__module__", None) or type(found).__module__)
    there = [value for value in vars(module).values() if isinstance(value, Callstream)] if module is not None else []
    if len({id(each) for each in there}) > 1:
        raise misused(
            f"{target.text} is in a module with several Callstreams; set its own: {target.name}.callstream = …"
        )
    return there[0] if there else None


def _refuse(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raises for the first of these options that is set."""
    for name in names:
        if getattr(options, name, None) is not None:
            raise misused(f"{why}; --{name.replace('_', '-')} cannot be combined with it")


def _is_made_by_create_app(found: Any) -> bool:
    return callable(found) and hasattr(getattr(found, "state", None), "driver")


def _refuse_web_app(target: Target) -> None:
    """Raises for an app of FastAPI or Starlette: it is callable, but not an agent."""
    kind = type(target.found)
    if not {"FastAPI", "Starlette"} & {each.__name__ for each in kind.__mro__}:
        return
    names = [name for name, value in vars(target.module).items() if _adk_of(value) is not None]
    place = target.text.removesuffix(f":{target.name}")
    raise misused(
        f"{target.text} is a {kind.__name__} app, which uvicorn runs; to serve the agent itself, name it: "
        f"{' or '.join(f'{place}:{name}' for name in names or ['my_agent'])}"
    )


async def _sessions(options: argparse.Namespace, target: Target, out: Printer) -> Any:
    """google-adk's session service; None if the application has its own, or does not use google-adk."""
    url = _named_sessions(options)
    adk = _adk_of(target.found)
    if adk is None or adk.has_sessions(target.found):
        why = "is not a google-adk application" if adk is None else "has its own session_service"
        _refuse(options, ("sessions",), f"{target.text} {why}")
        return None
    is_default = url is None
    if url is None:
        if _own_callstream(target) is not None:
            return None  # its journal may be anywhere, so there is no place beside it
        url = adk.sessions_beside(place_of(options, may_be_new=True).url)
    patience = from_environment("CALLSTREAM_RETRY_SECONDS", seconds) or adk.RETRY_SECONDS
    try:
        sessions = adk.open_sessions(url, retry_seconds=patience)
    except MissingExtra as missing:
        if not is_default:
            raise
        logger.warning("%s", missing)
        return None
    out.note(f"sessions: {hide_password(url)}")
    try:
        await adk.prepare_sessions(sessions, url)
    except JournalError:
        raise
    except Exception as error:  # SQLAlchemy and the driver may raise any kind of error
        raise CommandError(f"the sessions cannot be opened: {type(error).__name__}: {error}") from error
    return sessions


def _named_sessions(options: argparse.Namespace) -> str | None:
    given = getattr(options, "sessions", None)
    return (given and refuse_secret(given, _SESSIONS)) or from_environment(_SESSIONS, str)


def obstacles_of(options: argparse.Namespace, target: Target) -> list[str] | None:
    """Why no other process could go on with runs of the target if ``serve`` served it; empty if one could, None if that
    is not known. Nothing is opened.
    """
    if _is_made_by_create_app(target.found):
        return list(target.found.state.obstacles())
    if (adk := _adk_of(target.found)) is None:
        return None
    from callstream.runtime.run import journal_obstacles

    is_on = from_environment("CALLSTREAM_CONTINUE_RUNS", boolean)
    found = ["CALLSTREAM_CONTINUE_RUNS is off"] if is_on is False else []
    own, url = _own_callstream(target), _named_sessions(options)
    if own is not None:
        found += journal_obstacles(own.journal)
    else:
        journal = place_of(options, may_be_new=True).url
        found += ["the journal is in memory"] if journal.startswith("memory:") else []
        url = url or adk.sessions_beside(journal)
    in_memory = url is None or url.startswith("memory:")
    if adk.has_sessions(target.found):
        in_memory = target.found.sessions_are_in_memory
    return [*found, "google-adk's sessions are in memory"] if in_memory else found


def _of_adk(options: argparse.Namespace, target: Target) -> dict[str, bool]:
    """The options for google-adk applications, from the command line or the environment."""
    adk = _adk_of(target.found)
    names = ("stream_arguments", "trust_mcp_hints")
    if adk is None or not adk.takes_options(target.found):
        _refuse(options, names, f"{target.text} has clients of its own")
    found = {name: getattr(options, name) for name in names}
    found |= {
        name: from_environment(f"CALLSTREAM_{name.upper()}", boolean) for name, value in found.items() if value is None
    }
    return {name: value for name, value in found.items() if value is not None}


def _agent(target: Target, callstream: Callstream | None, **options: Any) -> Any:
    adk = _adk_of(target.found)
    if adk is not None:
        stated = {name: value for name, value in options.items() if value is not None}
        return adk.adk_agent(target.found, callstream, **stated)
    if callable(getattr(target.found, "run", None)) or callable(target.found):
        _check_agent(target)
        return target.found
    hint = "" if _adk() is not None else " (google-adk is not installed: pip install 'callstream[adk]')"
    raise misused(
        f"{target.text} is of type {type(target.found).__name__}; expected a google-adk App or agent, an ADKAgent, or an "
        f"object with run(input){hint}"
    )


def _check_agent(target: Target) -> None:
    from callstream.server.agent import Host, function_of

    try:
        if not isinstance(target.found, Host):
            function_of(target.found)
    except UsageError as error:
        raise misused(f"{target.text} cannot be used: {error}") from error


def _adk_of(found: Any) -> ModuleType | None:
    """Callstream's module for google-adk, if this is an application of google-adk; else None."""
    adk = _adk()
    return adk if adk is not None and adk.is_adk(found) else None


def _adk() -> ModuleType | None:
    try:
        from callstream.adk import serving
    except ImportError:
        return None
    return serving


def quiet_adk() -> None:
    """Silences google-adk's warnings about experimental features that it uses itself: they do not help users here."""
    warnings.filterwarnings("ignore", message=r"\[EXPERIMENTAL\]")


def _listening(host: str, number: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, number), family=family, backlog=2048)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error
        raise CommandError(f"cannot listen on {host}, port {number}: {why}; --port 0 picks a free one") from error


def _shared(descriptor: int) -> socket.socket:
    """A worker's socket that is shared with its supervisor, but not with programs that the application starts."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


@contextmanager
def _on_sigterm(act: Callable[[], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end() -> NoReturn:
    """Ends the program with exit code 0, after cleaning up: uvicorn raises a signal again when it is done."""
    raise SystemExit(0)


# -- runs without a server ---------------------------------------------------------------------------------------------


def _add_work(commands: Commands) -> None:
    parser = commands.add(
        "work",
        work,
        summary="continue runs whose process has died, without a server",
        description="""Takes over runs of an application whose process has died or has handed them over, and continues
            them, until it is stopped. It does not listen on any port: clients follow such a run through any server on the
            same journal. On SIGTERM it takes no more runs, gives those that it works on CALLSTREAM_SHUTDOWN_SECONDS to
            finish, and hands over the rest. The application is named as for callstream serve.""",
        examples="""
            callstream work agent.py:root_agent --journal postgresql://db/shop
            callstream work shop.web:app                 # an app of create_app, with the journal that it names""",
    )
    _add_application(parser)


async def work(options: argparse.Namespace, out: Printer) -> int:
    out = set_up_logs(options, out)
    async with _made_app(options, out) as app:
        if not app.state.continues():
            raise CommandError(
                f"runs of {options.target} cannot go on in another process: {'; '.join(app.state.obstacles())}"
            )
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()

        def stop() -> None:
            """The first signal stops; after the second one, active runs get no more time."""
            loop.call_soon_threadsafe(app.state.driver.hurry if stopped.is_set() else stopped.set)

        with _on_sigterm(stop):
            async with app.router.lifespan_context(app):
                out.note("going on with runs whose process has died; press Ctrl-C to stop")
                await stopped.wait()
    return 0
