"""``callstream record`` and ``replay``: a provider's answers, recorded once and replayed without the provider."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from callstream.cli.options import Commands, address, hide_password, port, positive, refuse_secret
from callstream.cli.output import FAILED, INTERRUPTED, CommandError, Printer, count_of, misused
from callstream.errors import UsageError
from callstream.wire import WIRES

if TYPE_CHECKING:
    from callstream.testing.recording import ReplayedProvider


def add_to(commands: Commands) -> None:
    record_parser = commands.add(
        "record",
        record,
        summary="record a provider's answers",
        description="""Sits between a program and its provider: forwards every request and writes the exchange into a
            folder, the body byte for byte. With a command after --, it runs that command with the provider's address
            replaced and returns its exit code; without one, it prints the address and serves until Ctrl-C. Requests
            go to --upstream, or where the environment sends the command's SDK, or to the wire's own provider. A
            command that names its server in code, with base_url=, sends it no requests, which is an error. Keys, tokens
            and cookies are not stored; request bodies are.""",
        examples="""
            callstream record answers --wire anthropic -- python agent.py
            callstream record answers --wire openai_chat --upstream https://llm.example.com --port 9000""",
    )
    record_parser.add_argument("folder", metavar="FOLDER", help="where to store them; existing recordings are kept")
    record_parser.add_argument(
        "--wire", required=True, choices=WIRES, metavar="WIRE", help=f"one of {', '.join(WIRES)}"
    )
    record_parser.add_argument(
        "--upstream",
        metavar="URL",
        help="the provider's address (default: with a command, that in OPENAI_BASE_URL or the like; else the wire's own "
        "provider)",
    )
    replay_parser = commands.add(
        "replay",
        replay,
        summary="replay recorded answers, as a local provider",
        description="""Serves recorded answers over real HTTP on this machine: a request gets the first answer to its
            path that was not used yet. With a command after --, it runs that command with the provider's address
            replaced and a dummy key. It fails if the command asks for something that was not recorded.""",
        examples="""
            callstream replay answers -- python agent.py
            callstream replay answers --repeat --port 9000
            callstream replay body.sse --wire gemini --size 16""",
    )
    replay_parser.add_argument(
        "folder", metavar="PLACE", help="a folder of recordings, one of them, or a response body"
    )
    replay_parser.add_argument("--wire", choices=WIRES, metavar="WIRE", help="the wire, if the place does not say")
    replay_parser.add_argument(
        "--size", type=positive, metavar="N", help="send bodies in pieces of N bytes, not as recorded"
    )
    replay_parser.add_argument("--repeat", action="store_true", help="start over when all answers are used")
    record_parser.usage = "callstream record FOLDER --wire WIRE [--upstream URL] [--port N] [-- COMMAND ...]"
    replay_parser.usage = "callstream replay PLACE [--wire WIRE] [--size N] [--repeat] [--port N] [-- COMMAND ...]"
    for parser in (record_parser, replay_parser):
        parser.add_argument("--port", type=port, default=0, metavar="N", help="the local port (default: a free one)")


async def record(options: argparse.Namespace, out: Printer) -> int:
    from callstream.testing.recording import recording_proxy

    upstream, path = _upstream(options)
    proxy = recording_proxy(options.folder, upstream, port=options.port)
    with proxy:
        out.note(f"recording {upstream} into {options.folder}")
        code = await _against(proxy.origin + path, options.wire, options.program, {}, out)
    if options.program and not proxy.requests:
        again = f"callstream record {options.folder} --wire {options.wire} --upstream URL --port N"
        raise _passed_by("recorded", options.wire, again, code)
    out.note(f"{count_of(proxy.exchanges, 'exchange')} recorded in {Path(options.folder)}")
    return code


def _upstream(options: argparse.Namespace) -> tuple[str, str]:
    """The server that the program means, and the path of its address that SDKs are given."""
    from callstream.testing.encoders import ENCODERS

    encoder = ENCODERS[options.wire]
    if options.upstream:
        return refuse_secret(options.upstream, "the key that your SDK sends"), encoder.base_path
    named = {name: os.environ[name].strip() for name in encoder.variables if os.environ.get(name, "").strip()}
    if not named or not options.program:  # a program that is started elsewhere has variables of its own
        return encoder.upstream, encoder.base_path
    variables = " and ".join(named)
    if len(set(named.values())) > 1:
        raise misused(f"{variables} name different servers: give --upstream")
    [url] = set(named.values())
    parts = address(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise misused(
            f"expected an address such as https://llm.example.com in {variables}, got {hide_password(url)!r}; "
            "--upstream takes precedence"
        )
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")


def _passed_by(done: str, wire: str, again: str, code: int) -> CommandError:
    """The error for a program that has sent no requests here. Its own exit code stays, unless that is 0."""
    from callstream.testing.encoders import ENCODERS

    variables = " and ".join(ENCODERS[wire].variables)
    return CommandError(
        f"nothing was {done}: the program sent no request to the address in {variables}. An address in its code, such as "
        f"base_url=, takes precedence over that: remove it, or run `{again}` and put the address that this prints there",
        code or FAILED,
    )


async def replay(options: argparse.Namespace, out: Printer) -> int:
    from callstream.testing.encoders import ENCODERS
    from callstream.testing.recording import replay as replayed

    provider: ReplayedProvider = replayed(
        options.folder, wire=options.wire, size=options.size, repeat=options.repeat, port=options.port
    )
    try:
        with provider:
            credentials = dict(ENCODERS[provider.wire].credentials)
            out.note(f"replaying {options.folder}, wire {provider.wire}")
            code = await _against(provider.base_url, provider.wire, options.program, credentials, out)
    except UsageError as error:  # the program sent a request that was not recorded
        raise CommandError(str(error)) from error
    if options.program and not provider.requests:
        raise _passed_by("replayed", provider.wire, f"callstream replay {options.folder} --port N", code)
    out.note(f"{count_of(len(provider.requests), 'request')} answered")
    return code


async def _against(
    base_url: str, wire: str, program: Sequence[str], extra: Mapping[str, str | None], out: Printer
) -> int:
    from callstream.testing.encoders import ENCODERS

    variables = ENCODERS[wire].variables
    if program:
        environment = {**os.environ, **extra, **dict.fromkeys(variables, base_url)}
        return await _run(program, {name: value for name, value in environment.items() if value is not None})
    out.write(f"{base_url}\n")
    settings = " ".join(f"{variable}={base_url}" for variable in variables)
    out.note(f"set {settings} for your program; press Ctrl-C to stop")
    return await ended()


async def _run(program: Sequence[str], environment: Mapping[str, str]) -> int:
    try:
        process = await asyncio.create_subprocess_exec(*program, env=environment)
    except FileNotFoundError:
        raise misused(f"command {program[0]!r} not found") from None
    except PermissionError as error:
        raise CommandError(f"{program[0]} cannot be run: {error}") from error
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return 128 - code if code < 0 else code


async def ended() -> int:
    """Waits for SIGINT or SIGTERM, and returns the exit code for it."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not stop.done():
            stop.set_result(code)

    loop.add_signal_handler(signal.SIGINT, end, INTERRUPTED)
    loop.add_signal_handler(signal.SIGTERM, end, 0)
    return await stop
