"""Clients of httpx and httpx2 with the tap in them, for the providers' SDKs."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any
from weakref import WeakSet

from callstream.errors import UsageError
from callstream.runtime import RunEngine
from callstream.runtime.ownloop import OwnLoop
from callstream.tap.boto import BotoTap
from callstream.tap.exchange import ImplicitRuns, Tapping, TapSettings
from callstream.tap.library import Pools
from callstream.tap.transport import Asking, TapTransport
from callstream.wire.requests import LoneReasoning

# What the SDKs set for their own clients; httpx alone would give up after five seconds.
_TIMEOUT = 600.0
_CONNECT_TIMEOUT = 5.0
_MAX_CONNECTIONS = 1000
_MAX_KEEPALIVE = 100
_PARAMETERS = (
    "wire",
    "collapse",
    "stream_arguments",
    "first_byte",
    "idle",
    "ask_again",
    "joins_text",
    "text_filter",
)  # of the tap
_SENDS = ("handle_async_request", "handle_request")  # of a transport
_POOL_OPTIONS = ("verify", "cert", "http1", "http2", "limits", "proxy", "trust_env")


class Tap:
    """What a Callstream's clients share: the runs of responses that belong to no run, and the connection pools."""

    def __init__(self, engine: RunEngine, own_loop: OwnLoop) -> None:
        self._engine = engine
        self._own_loop = own_loop
        self._implicit = ImplicitRuns(engine)
        self._asking = Asking()
        self._lone = LoneReasoning()
        self._pools: set[Pools] = set()

    def transport(
        self,
        inner: Any,
        settings: TapSettings | None,
        *,
        pools: Pools | None = None,
        limits: Any = None,
        **parameters: Any,
    ) -> TapTransport:
        settings = _settings(settings, parameters)
        if inner is not None and not any(callable(getattr(inner, name, None)) for name in _SENDS):
            raise UsageError(f"expected a transport of httpx or httpx2, or none, got {inner!r:.100}")
        options = {} if limits is None else {"limits": limits}
        # The transport may be given to a client that cannot be closed.
        pools = pools or Pools(options, in_use=self._pools)
        tapping = Tapping(self._engine, self._implicit, settings, self._lone)
        return TapTransport(tapping, self._own_loop, inner, pools=pools, asking=self._asking)

    def client(self, library_name: str | None, kind: str, kwargs: dict[str, Any]) -> Any:
        """A client of the library, with the SDKs' usual limits unless ``kwargs`` say otherwise.

        ``kind`` is the name of its class. ``kwargs`` are its arguments, including those of the tap's transport.
        """
        library = installed_library() if library_name is None else _library(library_name)
        options = {option: kwargs.pop(option) for option in _POOL_OPTIONS if option in kwargs}
        options.setdefault(
            "limits", library.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_KEEPALIVE)
        )
        pools = Pools(options, in_use=self._pools)
        parameters = {name: kwargs.pop(name) for name in _PARAMETERS if name in kwargs}
        settings = _settings(kwargs.pop("settings", None), parameters)
        tap = self.transport(kwargs.pop("transport", None), settings, pools=pools)
        if mounts := kwargs.get("mounts"):  # they take precedence over the client's own transport
            kwargs["mounts"] = {
                pattern: None if inner is None else self.transport(inner, settings) for pattern, inner in mounts.items()
            }
        kwargs.setdefault("timeout", library.Timeout(_TIMEOUT, connect=_CONNECT_TIMEOUT))
        kwargs.setdefault("follow_redirects", True)
        client = getattr(library, kind)(transport=tap, **kwargs)
        _clients.add(client)
        return client

    def boto(self, target: Any, settings: TapSettings) -> None:
        BotoTap(Tapping(self._engine, self._implicit, settings, self._lone), self._own_loop).register(target)

    async def end_runs(self) -> None:
        await self._implicit.aclose()

    async def close_pools(self) -> None:
        """Closes the connections of this event loop, and those that belong to no loop."""
        for pools in list(self._pools):
            await pools.aclose()
            pools.close()


_clients: WeakSet[Any] = WeakSet()


def has_tap(client: Any) -> bool:
    """Whether a client was made by a Callstream's ``http_client`` or one of its siblings."""
    return client in _clients


def _settings(settings: Any, parameters: dict[str, Any]) -> TapSettings:
    """The settings that were passed, or else those made of the parameters of a client or transport."""
    made = TapSettings(**parameters)
    if settings is None:
        return made
    if not isinstance(settings, TapSettings):
        kind = f"{type(settings).__module__}.{type(settings).__name__}"
        raise UsageError(f"expected settings to be callstream.tap.TapSettings, got {kind}")
    if made != TapSettings():
        names = ", ".join(f"{name}=" for name in parameters)
        raise UsageError(f"{names} belong in settings= when it is given")
    return settings


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(
            f"{name} is not installed. cs.http_client() uses whichever of httpx2 and httpx is installed; "
            f"for an SDK that needs {name}: pip install {name}"
        ) from None


def installed_library() -> ModuleType:
    """httpx2, or else httpx."""
    for name in ("httpx2", "httpx"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UsageError("neither httpx2 nor httpx is installed. Most SDKs bring one, boto3 does not: pip install httpx")
