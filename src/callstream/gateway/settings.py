"""A gateway's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from callstream.errors import UsageError
from callstream.wire import provider_at

GATHER_SECONDS: Final = 0.04
"""How long the journal of ``callstream gateway`` gathers deltas of several streams before it writes them. A gateway has more
deltas than a server of agents, little else to do, and programs as readers: CPU time matters more than a few milliseconds."""

# -- upstreams: a fixed list, chosen by the first part of the path, never a URL from a client --------------------------


PUBLIC: Final[Mapping[str, str]] = {
    "anthropic": "https://api.anthropic.com/v1",
    "openai": "https://api.openai.com/v1",
    "gemini": "https://generativelanguage.googleapis.com",
}
_PATHS: Final[Mapping[str, re.Pattern[str]]] = {
    "anthropic": re.compile(r"(?:v1/+)*messages/*"),
    "openai": re.compile(r"(?:v1/+)*(?:chat/completions|responses(?:/[^/]+)?)/*"),
    "gemini": re.compile(
        r"(?:v1(?:alpha|beta)?/+)*(?:(?:models|tunedModels|dynamic)/.+:\w+|interactions(?:/[^/]+)?)/*"
    ),
}
"""The model calls of the public APIs, as whole paths. Anything before such a path is an upstream's name, and an unknown name
may mean a provider to which alone the key and the prompts should go."""
_BILLED_TO_THE_END: Final = ("gemini", "googleapis.com", "amazonaws.com", "groq.com", "mistral.ai", "perplexity.ai")
"""Parts of the hosts of providers whose models go on writing, at the caller's cost, after the connection is closed."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")
_VERSIONS: Final = re.compile(r"^(?:v1/)+")


def leaves_its_place(path: str) -> bool:
    """Whether a path would lead out of the upstream's base path, however it is encoded."""
    plain = path
    while (decoded := unquote(plain)) != plain:
        plain = decoded
    return any(part in (".", "..") for part in re.split(r"[/\\]", plain))


class Upstream(msgspec.Struct, frozen=True):
    """``url`` is the base URL of the provider's SDK, including the version if the provider's paths begin with one."""

    name: str
    url: str

    @property
    def bills_to_the_end(self) -> bool:
        return any(part in self.url for part in _BILLED_TO_THE_END)

    def target(self, path: str, query: str) -> str:
        """The URL for a client's path. Some clients write the version themselves, some twice, some not at all."""
        if self.url.endswith("/v1"):
            path = _VERSIONS.sub("", path)
        return f"{self.url}/{path}" + (f"?{query}" if query else "")


class Upstreams:
    """Upstreams by name. ``stated`` adds to the public ones, or replaces them."""

    def __init__(self, stated: Mapping[str, str] | None = None) -> None:
        found = {**PUBLIC, **(stated or {})}
        self._by_name = {name: Upstream(name, _checked(name, url)) for name, url in found.items()}

    def find(self, path: str, method: str) -> tuple[Upstream, str] | None:
        """The upstream of a path, and the rest of the path. A path without a name goes to the public API that it belongs to.

        None if there is no such upstream.
        """
        path = path.lstrip("/")
        name, _, rest = path.partition("/")
        if name in self._by_name:
            return self._by_name[name], rest
        is_call = provider_at(f"/{path}", method) is not None
        known = next((known for known, its in _PATHS.items() if is_call and its.fullmatch(path)), None)
        return None if known is None else (self._by_name[known], path)

    def refusal(self, path: str) -> str:
        """Why a path has no upstream."""
        name = path.lstrip("/").partition("/")[0]
        names = ", ".join(sorted(self._by_name))
        return (
            f"{name!r} is not one of this gateway's upstreams: {names}. A path begins with the name of one; "
            "the gateway's option --upstream NAME=URL adds one."
        )


def _checked(name: str, url: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"expected an upstream's name of lower-case letters, digits, - and _, got {name!r}")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment or parts.username:
        raise UsageError(f"expected an upstream such as {name}=https://api.example.com/v1, got {url!r}")
    return url.rstrip("/")


_MIB = 1024 * 1024


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds, sizes bytes."""

    linger: float | None = None
    """How long the gateway goes on reading an answer after its client has left. None: 60 if the client is known to come back
    or the provider bills to the end anyway, else 0; to the end for a client that sends a ``Callstream-`` header."""
    window: float = 300.0
    """How long after its end an undelivered answer can still be fetched by sending the same request."""
    answer_seconds: float = 600.0
    """How long an answer may take to begin."""
    stall_seconds: float = 120.0
    """How long a client may pause in sending its request or reading its answer before its connection is closed."""
    approval_seconds: float = 290.0
    """How long a call is held until a person approves it. Claude Code waits for less than five minutes."""
    keep_alive_seconds: float = 5.0
    """How often a client gets a sign of life while a call is held."""
    shutdown_seconds: float = 20.0
    """How long answers under way may take to finish when the gateway is stopped."""
    max_body_bytes: int = 64 * _MIB
    """The body of a request; 413 beyond that."""
    max_answer_bytes: int = 64 * _MIB
    """One answer. A longer one is broken off."""
    max_kept_bytes: int = 256 * _MIB
    """All answers kept for clients that may come back; the oldest are dropped first."""
    max_answers: int = 2000
    """Answers under way at once; 503 beyond that."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if value is not None and (
                value < 0 or (value == 0 and field not in ("linger", "window", "shutdown_seconds"))
            ):
                raise UsageError(f"{field} must be more than 0, got {value}")
