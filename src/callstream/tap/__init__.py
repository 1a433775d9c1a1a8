"""The tap: live tool calls for any framework, through the SDK's own HTTP client."""

from __future__ import annotations

import importlib
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from callstream import runtime
from callstream.errors import UsageError
from callstream.tap.implicit import ImplicitRuns
from callstream.tap.pools import Pools
from callstream.tap.transport import Collapse, TapSettings, TapTransport

if TYPE_CHECKING:
    import httpx
    import httpx2

__all__ = ["Callstream", "TapSettings", "TapTransport", "has_tap"]

# What the SDKs set for clients of their own; httpx alone would give up after five seconds.
_TIMEOUT = 600.0
_CONNECT_TIMEOUT = 5.0
_MAX_CONNECTIONS = 1000
_MAX_KEEPALIVE = 100
_POOL_OPTIONS = ("verify", "cert", "http1", "http2", "limits", "proxy", "trust_env")


class Callstream(runtime.Callstream):
    """Live, durable tool calls.

    ``journal`` is a URL (``memory:``, ``sqlite:///calls.db``, ``postgresql://…``) or a journal. ``tools`` are functions
    made with ``@tool``; plain functions are made tools. Hooks of tools that cannot be decorated are registered by name
    with ``on_args_delta`` and its siblings. ``on_tool_progress`` is told what running tools report: the tool's name, the
    call's id and the data. ``redact`` changes events before they are journalled. ``settings`` hold for all tools and
    runs.

    Constructing it opens nothing; the journal opens itself at the first use. ``aclose`` or ``async with`` closes it.
    """

    @cached_property
    def _implicit(self) -> ImplicitRuns:
        return ImplicitRuns(self)

    @cached_property
    def _pools(self) -> set[Pools]:
        return set()

    def transport(
        self,
        inner: Any = None,
        *,
        wire: str | None = None,
        collapse: Collapse = "known",
        settings: TapSettings | None = None,
    ) -> TapTransport:
        """A transport for an async client of httpx or httpx2: ``AsyncClient(transport=cs.transport())``.

        ``inner`` is the transport to wrap; without one, connections are made as the library would, proxies of the
        environment included. ``wire`` states the wire instead of recognising it by path. ``collapse`` says which calls
        reach the SDK whole: ``"known"``, those of tools that this Callstream was given; ``"all"``; ``"none"``.
        """
        return TapTransport(self, self._implicit, inner, settings=_settings(settings, wire, collapse))

    def http_client(
        self,
        *,
        wire: str | None = None,
        collapse: Collapse = "known",
        settings: TapSettings | None = None,
        **kwargs: Any,
    ) -> httpx2.AsyncClient:
        """An async HTTP client with the tap in it, for the SDKs of anthropic, openai and google-genai.

        It is an ``httpx2.AsyncClient`` where httpx2 is installed, else an ``httpx.AsyncClient``, which has the same
        methods. Takes the usual arguments of either. ``wire``, ``collapse`` and ``settings`` are those of ``transport``.
        An SDK that accepts httpx only, though httpx2 is installed too, gets ``httpx_client()``.
        """
        client: httpx2.AsyncClient = self._client(_installed_library(), _settings(settings, wire, collapse), kwargs)
        return client

    def httpx_client(
        self,
        *,
        wire: str | None = None,
        collapse: Collapse = "known",
        settings: TapSettings | None = None,
        **kwargs: Any,
    ) -> httpx.AsyncClient:
        """``http_client()`` as an ``httpx.AsyncClient``, for SDKs that accept no other."""
        client: httpx.AsyncClient = self._client(_library("httpx"), _settings(settings, wire, collapse), kwargs)
        return client

    def httpx2_client(
        self,
        *,
        wire: str | None = None,
        collapse: Collapse = "known",
        settings: TapSettings | None = None,
        **kwargs: Any,
    ) -> httpx2.AsyncClient:
        """``http_client()`` as an ``httpx2.AsyncClient``, for SDKs that accept no other."""
        client: httpx2.AsyncClient = self._client(_library("httpx2"), _settings(settings, wire, collapse), kwargs)
        return client

    async def aclose(self) -> None:
        """Stops the runs of this event loop that go on, closes what its clients have left open, and the journal."""
        await self._implicit.aclose()
        try:
            await super().aclose()
        finally:
            for pools in list(self._pools):
                await pools.aclose()

    def _client(self, library: ModuleType, settings: TapSettings, kwargs: dict[str, Any]) -> Any:
        options = {option: kwargs.pop(option) for option in _POOL_OPTIONS if option in kwargs}
        options.setdefault(
            "limits", library.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_KEEPALIVE)
        )
        inner = kwargs.pop("transport", None)
        pools = Pools(options, in_use=self._pools)
        tap = TapTransport(self, self._implicit, inner, settings=settings, pools=pools)
        kwargs.setdefault("timeout", library.Timeout(_TIMEOUT, connect=_CONNECT_TIMEOUT))
        kwargs.setdefault("follow_redirects", True)
        client = library.AsyncClient(transport=tap, **kwargs)
        _clients.add(client)
        return client


_clients: WeakSet[Any] = WeakSet()


def has_tap(client: Any) -> bool:
    """Whether a client was made by ``http_client``, ``httpx_client`` or ``httpx2_client`` of a Callstream."""
    return client in _clients


def _settings(given: TapSettings | None, wire: str | None, collapse: Collapse) -> TapSettings:
    if given is None:
        return TapSettings(wire, collapse)
    if wire is not None or collapse != "known":
        raise UsageError("wire= and collapse= belong into settings= where it is given")
    return given


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(
            f"{name} is not installed. cs.http_client() uses whichever of httpx2 and httpx is there; "
            f"for an SDK that needs {name}: pip install {name}"
        ) from None


def _installed_library() -> ModuleType:
    for name in ("httpx2", "httpx"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UsageError("neither httpx2 nor httpx is installed. The SDK of a provider brings one: pip install anthropic")
