"""A server's settings, as arguments and as environment variables.

Every field of ``ServerSettings`` is also the variable ``CALLSTREAM_<NAME>``, in capitals. A limit of 0 or ``none`` in the
environment is None: no limit. A variable that is empty counts as not set. ``docs/howto/server.md`` prints the table.
Secrets are not settings: see ``callstream.journal.journal``.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, Self, get_args, get_origin

import msgspec

from callstream.errors import UsageError

logger = logging.getLogger("callstream.server")

PREFIX: Final = "CALLSTREAM_"
_MIB: Final = 1024 * 1024


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds, sizes bytes. None, where a field allows it, means no limit."""

    # -- runs --
    when_busy: Literal["wait", "refuse"] = "wait"
    """What happens to a run whose thread has another active run. ``wait``: it waits up to ``busy_wait``, then it is
    refused with 409. ``refuse``: it is refused at once."""
    busy_wait: float = 30.0
    """How long a run may wait for its thread; after that 409."""
    on_disconnect: Literal["continue", "stop"] = "continue"
    """``continue``: runs continue when their clients disconnect. ``stop``: a run is stopped ``disconnect_grace`` after its
    last client has disconnected. A process does not see the clients of other processes, so with several of them all requests
    of a thread have to reach the same one."""
    disconnect_grace: float = 10.0
    """How long a run without clients continues with ``on_disconnect="stop"``."""
    older_clients: bool = False
    """Whether clients that declare no protocol version are treated as older than AG-UI 1.0, and do not get outcomes that
    such clients reject. CopilotKit's runtime is one of them."""
    run_seconds: float | None = 1800.0
    """How long a run may take before it fails."""
    max_runs: int | None = 1000
    """Concurrent runs in this process; 503 beyond that."""
    max_runs_per_principal: int | None = 20
    """Concurrent runs of one principal in this process; 429 beyond that. Without ``auth`` there are no principals and no
    such limit."""
    max_args_bytes: int | None = 16 * _MIB
    """Argument text of one call, in UTF-8. A run that exceeds it fails, and the tool does not run."""
    max_run_bytes: int | None = 128 * _MIB
    """All text that a model writes in one run: answers, reasoning and arguments. A run that exceeds it fails."""
    shutdown_seconds: float = 20.0
    """How long active runs may continue when the server has to stop."""
    continue_runs: bool = True
    """Whether a run whose process dies continues in another one, or in this one after a restart, provided that journal and
    sessions are on disk. Runs that do not end within ``shutdown_seconds`` are handed over. See
    [Continuing](continuing.md)."""
    on_divergence: Literal["fail", "ask"] = "fail"
    """What happens if, in a run that is continued, the agent sends its model a different request than before. ``fail``: the
    run fails, and its error says where the requests differ. ``ask``: the model is asked, and the run continues with its
    answer; what was shown of the answers that this replaces is void, and their cost is paid again."""
    max_attempts: int = 3
    """How many processes may work on a run, including the first. A run that keeps killing its process fails after that
    many."""

    # -- requests --
    max_body_bytes: int | None = 16 * _MIB
    """The body of a request; 413 beyond that."""
    body_seconds: float | None = 30.0
    """How long a client may take to send its body; after that 408."""
    max_messages: int | None = 5000
    """Messages in the input of a run; 413 beyond that."""
    max_tools: int | None = 500
    """Tools in the input of a run; 413 beyond that."""
    max_items: int | None = 1000
    """Entries of every other list in the input of a run: a message's parts, its tool calls, ``context``, ``resume``. All
    messages together may have ten times as many. 413 beyond that."""
    max_values: int | None = 200_000
    """JSON values in a request, counting all lists and objects; 413 beyond that."""
    max_depth: int = 64
    """How deeply JSON may be nested in a request; 422 beyond that."""

    # -- streams --
    max_streams: int | None = 5000
    """Concurrent streams in this process, of runs and of clients that follow them; 503 beyond that."""
    max_streams_per_principal: int | None = 100
    """Concurrent streams of one principal in this process; 429 beyond that. Without ``auth`` there are no principals and no
    such limit."""
    heartbeat_seconds: float = 15.0
    """After this time without an event, a comment is sent so that proxies do not consider the stream dead."""
    stall_seconds: float = 60.0
    """How long a client may accept no data before it is disconnected. It can reconnect."""

    journal_seconds: float = 5.0
    """How long the journal may refuse writes before connections that stream active runs are closed and requests are
    answered with 503. The runs themselves continue and can be rejoined; a run with something to write fails after it has
    waited for the journal's own ``retry_seconds`` (5 s)."""

    # -- the page and the API --
    inspector: bool = True
    """Whether ``GET /`` serves the inspector."""
    api: bool = True
    """Whether ``/api`` is served. The inspector needs it."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use this server; in the environment, separated by commas."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that a server on loopback without ``auth`` accepts in addition to loopback's own; ``*`` is any name."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            try:
                msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                fault = _fault(error, field.type)
                raise UsageError(f"invalid value for {field.name}: {fault}; got {value!r}") from None
            _check_range(field.name, field, value)
        msgspec.structs.force_setattr(self, "cors_origins", _origins("cors_origins", self.cors_origins))

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """Settings from the environment; ``settings`` take precedence. Logs a warning for names that look misspelled."""
        found = os.environ if environment is None else environment
        known = [PREFIX + name.upper() for name in (*cls.__struct_fields__, *_OTHERS)]
        for name in sorted(found.keys() - set(known)):
            if name.startswith(PREFIX) and (meant := get_close_matches(name, known, 1, 0.9)):
                logger.warning("unknown environment variable %s; did you mean %s?", name, meant[0])
        values: dict[str, Any] = {}
        for field in msgspec.structs.fields(cls):
            variable = PREFIX + field.name.upper()
            text = found.get(variable, "")
            if text.strip() and field.name not in settings:  # an empty variable counts as not set
                values[field.name] = _value(variable, text, field.type)
                _check_range(variable, field, values[field.name])
        if "cors_origins" in values:
            _origins(f"the environment variable {PREFIX}CORS_ORIGINS", values["cors_origins"])
        return cls(**values, **settings)


_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+|null|\*")
"""What browsers send; ``null`` comes from files, and ``*`` means any origin."""
_OTHERS: Final = (
    "archive",
    "archive_after",
    "forget_after",
    "gateway_key",
    "journal",
    "journal_file",
    "lease_ttl",
    "log_format",
    "retry_seconds",
    "server",
    "sessions",
    "stream_arguments",
    "token",
    "trust_mcp_hints",
    "workers",
)
"""Variables that are not settings of a server: commands and journals read them."""
_TIMES: Final = ("busy_wait", "disconnect_grace", "shutdown_seconds")
_COUNTED: Final = tuple(
    name
    for name in ServerSettings.__struct_fields__
    if name.startswith("max_") or (name.endswith("_seconds") and name not in _TIMES)
)


def _value(name: str, text: str, wanted: Any) -> Any:
    text = text.strip()
    if wanted == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if wanted is bool:
        text = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}.get(
            text.lower(), text.lower()
        )
    if text.lower() in ("none", "0") and wanted in (int | None, float | None):
        return None
    try:
        return msgspec.convert(text, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"invalid value for the environment variable {name}={text!r}: {_fault(error, wanted)}"
        ) from None


_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number"}
_NO_LIMIT: Final = " (or None for no limit)"


def _fault(error: msgspec.ValidationError, wanted: Any) -> str:
    """What was expected, in words: msgspec names only types, and no choices."""
    if get_origin(wanted) is Literal:
        return f"expected {' or '.join(map(repr, get_args(wanted)))}"
    kinds = [_KINDS[each] for each in (wanted, *get_args(wanted)) if each in _KINDS]
    return f"expected {kinds[0]}{_NO_LIMIT if _may_be_none(wanted) else ''}" if kinds else str(error)


def _may_be_none(wanted: Any) -> bool:
    return type(None) in get_args(wanted)


def _origins(named: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """The origins as browsers send them: in lower case and without a trailing slash. ``named``: as in ``_check_range``."""
    origins = tuple(origin.strip().rstrip("/").lower() for origin in given)
    for origin in origins:
        if _ORIGIN.fullmatch(origin) is None:
            raise UsageError(
                f"invalid value for {named}: expected an origin such as https://app.example.com, got {origin!r}"
            )
    return origins


def _check_range(named: str, field: msgspec.structs.FieldInfo, value: Any) -> None:
    """``named``: the setting, or its variable."""
    or_none = _NO_LIMIT if _may_be_none(field.type) else ""
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{named} must be a finite number{or_none}, got {value}")
    if field.name in _TIMES and value < 0:
        raise UsageError(f"{named} must not be negative, got {value}")
    if field.name in _COUNTED and value is not None and value <= 0:
        raise UsageError(f"{named} must be more than 0{or_none}, got {value}")
