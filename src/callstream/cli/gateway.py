"""``callstream gateway``: model calls of any program, live and durable, by base URL."""

from __future__ import annotations

import argparse
import logging
import os

from callstream import Callstream
from callstream.cli.options import (
    LOOPBACK,
    Commands,
    add_address,
    add_housekeeping,
    add_journal,
    add_log_format,
    housekeeping_of,
    seconds_or_none,
    served_journal,
)
from callstream.cli.output import Printer, misused
from callstream.cli.serve import serve_made, set_up_logs
from callstream.cli.target import load_target
from callstream.guards import Guard, Rules
from callstream.guards.cedar import CedarPolicies

_KEY = "CALLSTREAM_GATEWAY_KEY"


def add_to(commands: Commands) -> None:
    parser = commands.add(
        "gateway",
        gateway,
        summary="pass model calls of any program on, live and durable, by base URL",
        description="""Stands between programs and their model providers. The same wire goes in and out, byte for byte; calls
            are journaled field by field while they are written, and the inspector shows them. A client whose connection
            broke gets the whole answer by sending the same request again. Keys of providers are passed on and never
            stored.""",
        examples="""
            callstream gateway --journal sqlite:///calls.db   # then ANTHROPIC_BASE_URL=http://127.0.0.1:8100/anthropic
            callstream gateway --upstream vllm=http://127.0.0.1:8001/v1   # and http://127.0.0.1:8100/vllm is vLLM
            callstream gateway --host 0.0.0.0 --auth   # with a key in CALLSTREAM_GATEWAY_KEY""",
    )
    add_journal(parser)
    add_address(parser, default_port=8100)
    parser.add_argument(
        "--upstream",
        action="append",
        metavar="NAME=URL",
        help="a further provider, or another address for anthropic, openai or gemini; may be repeated",
    )
    parser.add_argument(
        "--linger",
        type=seconds_or_none,
        metavar="SECONDS",
        help="how long to go on reading an answer after its client has left (default: 60 for clients that come back and "
        "for providers that bill to the end, else 0)",
    )
    parser.add_argument(
        "--auth",
        action="store_true",
        help=f"ask clients for the key in {_KEY}, in the header Callstream-Key; needed for hosts other than loopback",
    )
    parser.add_argument(
        "--guard",
        action="append",
        metavar="RULES",
        help="judge calls while they are written: a file of rules (.yaml, .json) or of Cedar policies (.cedar), "
        "or module:function; may be repeated",
    )
    parser.add_argument("--open", action="store_true", help="listen on other hosts without --auth")
    add_housekeeping(parser)
    add_log_format(parser)
    parser.add_argument("--verbose", action="store_true", help="log every request")


async def gateway(options: argparse.Namespace, out: Printer) -> int:
    from callstream.gateway import GatewaySettings, create_gateway
    from callstream.gateway.settings import GATHER_SECONDS, PUBLIC

    out = set_up_logs(options, out)
    _keep_out_of_logs()
    key = os.environ.get(_KEY) or None
    if options.auth and key is None:
        raise misused(f"--auth asks clients for the key in {_KEY}, which is not set")
    if not options.auth and not options.open and options.host not in LOOPBACK:
        raise misused(
            f"anyone who can reach {options.host} could use this gateway and read every run; give --auth, or --open if "
            "something in front of it authenticates clients"
        )
    settings = GatewaySettings(linger=options.linger)
    # Answers that clients may come back for are deleted when their run is compacted.
    housekeeping = housekeeping_of(options, compact_after=settings.window)
    journal = served_journal(options, out, gather_seconds=GATHER_SECONDS, housekeeping=housekeeping)
    callstream = Callstream(journal, guards=[_guard(text) for text in options.guard or ()])
    upstreams = dict(map(_named, options.upstream or ()))
    app = create_gateway(callstream, upstreams=upstreams, key=key if options.auth else None, settings=settings)
    paths = {name: name for name in (*PUBLIC, *upstreams)} | {"openai": "openai/v1"}
    bases = {path: f"base URL for {name}" for name, path in paths.items()}
    return await serve_made(app, options, out, bases)


def _keep_out_of_logs() -> None:
    """Keeps out keys, which some clients send in the URL's query, and refused WebSockets, which are not errors."""
    for name in ("httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)  # they log the addresses of all requests
    logging.getLogger("uvicorn.access").addFilter(_cut_query)
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: "without completing handshake" not in record.getMessage()
    )


def _cut_query(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(arg.partition("?")[0] if isinstance(arg, str) else arg for arg in record.args)
    return True


def _guard(text: str) -> Guard:
    if text.endswith((".yaml", ".yml", ".json")):
        return Rules.load(text)
    if text.endswith(".cedar"):
        return CedarPolicies.load(text)
    if ":" not in text:
        raise misused(f"expected --guard module:function, or a file (.yaml, .json, .cedar), got {text!r}")
    found = load_target(text).found
    if not callable(found):
        raise misused(
            f"expected --guard module:function, or a file of rules or policies, got {text!r}, which cannot be called"
        )
    guard: Guard = found
    return guard


def _named(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals:
        raise misused(f"expected --upstream NAME=URL, such as vllm=http://127.0.0.1:8001/v1, got {text!r}")
    return name, url
