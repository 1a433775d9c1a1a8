"""google-adk's LiteLlm with the tap in it: litellm takes a client with each request.

For providers of OpenAI's SDK that is a client of this SDK, with the key and the address that litellm itself would use.
Everything else, and whatever may send a request elsewhere (fallbacks, aliases, lists of models, a session of the
application's own), is left to litellm: such a model is read from its partial events. So is one that litellm asks through
OpenAI's Responses though it was to be a chat completion, because it hands no client on to there.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from google.adk.models.base_llm import BaseLlm

from callstream.callstream import Callstream
from callstream.tap import TapSettings, has_tap

_PROVIDERS: Final = frozenset({"openai", "custom_openai", "litellm_proxy"})
"""Those of litellm's that are asked with OpenAI's SDK, by the rules that ``Route`` follows."""

_ELSEWHERE: Final = (
    "client",
    "shared_session",
    "fallbacks",
    "context_window_fallback_dict",
    "model_list",
    "deployment_id",
    "azure",
    "mock_response",
    "mock_tool_calls",
    "mock_timeout",
    "ssl_verify",
)
"""Parameters of a request that name another client or another place."""

_ELSEWHERE_FOR_ALL: Final = ("aclient_session", "model_fallbacks", "secret_manager_client", "network_mock")
"""The same of litellm's settings."""

_TLS: Final = ("SSL_VERIFY", "SSL_SECURITY_LEVEL", "SSL_ECDH_CURVE", "SSL_CERTIFICATE")
"""What litellm reads from the environment for its own connections."""


class Route:
    """Where litellm would send a request: the provider's name for the model, key and address."""

    def __init__(self, litellm: Any, model: str, given: Mapping[str, Any]) -> None:
        base_url = given.get("base_url") or given.get("api_base")
        found = litellm.get_llm_provider(
            model=model,
            custom_llm_provider=given.get("custom_llm_provider"),
            api_base=base_url,
            api_key=given.get("api_key"),
        )
        self.model, self.provider, key, base_url = found
        environment = os.environ.get
        self.key = key or given.get("api_key") or litellm.api_key or litellm.openai_key or environment("OPENAI_API_KEY")
        self.base_url = (
            base_url
            or litellm.api_base
            or environment("OPENAI_BASE_URL")
            or environment("OPENAI_API_BASE")
            or "https://api.openai.com/v1"
        )


class TappedClient:
    """The client of a LiteLlm, around its own: litellm does what it always does, over connections with the tap in them."""

    def __init__(self, inner: Any, callstream: Callstream, settings: TapSettings) -> None:
        self._inner = inner
        self._http_client: Any = callstream.httpx_client(settings=settings)
        self._clients: dict[tuple[object, ...], Any] = {}

    async def acompletion(self, model: Any, messages: Any, tools: Any, **kwargs: Any) -> Any:
        client = self._client_for(model, kwargs)
        if client is not None:
            kwargs["client"] = client
        return await self._inner.acompletion(model=model, messages=messages, tools=tools, **kwargs)

    def completion(self, *args: Any, **kwargs: Any) -> Any:
        """Without the tap: google-adk does not use it."""
        return self._inner.completion(*args, **kwargs)

    def _client_for(self, model: str, given: Mapping[str, Any]) -> Any:
        litellm = importlib.import_module("litellm")
        route = route_of(litellm, model, given)
        if route is None:
            return None
        whose = (route.key, route.base_url, given.get("organization"))
        if whose not in self._clients:
            from openai import AsyncOpenAI

            self._clients[whose] = AsyncOpenAI(
                api_key=route.key, base_url=route.base_url, http_client=self._http_client
            )
        return self._clients[whose]


def client_for(llm: BaseLlm, callstream: Callstream, settings: TapSettings) -> TappedClient | None:
    """A client for a LiteLlm, None where litellm would not use it."""
    inner = getattr(llm, "llm_client", None)
    if type(inner).__module__ != "google.adk.models.lite_llm":
        return None  # one of the application's own
    try:
        litellm = importlib.import_module("litellm")
        is_used = Route(litellm, llm.model, {}).provider in _PROVIDERS
    except Exception:  # noqa: BLE001  # it is not installed, or does not know the model: it says so itself when it is used
        return None
    return TappedClient(inner, callstream, settings) if is_used else None


def route_of(litellm: Any, model: str, given: Mapping[str, Any]) -> Route | None:
    """Where a request goes, None where that is not known for sure or not for OpenAI's SDK."""
    if any(given.get(name) is not None for name in _ELSEWHERE):
        return None
    if any(getattr(litellm, name, None) for name in _ELSEWHERE_FOR_ALL):
        return None
    if litellm.ssl_verify is not True or any(map(os.environ.get, _TLS)):
        return None
    if model in (getattr(litellm, "model_alias_map", None) or {}):
        return None
    try:
        route = Route(litellm, model, given)
    except Exception:  # noqa: BLE001  # a name that litellm does not know: it says so itself
        return None
    return route if route.provider in _PROVIDERS and route.key else None


def is_watched(model: Any) -> bool:
    """Whether the application has litellm tell it of each piece of an answer that this model reads."""
    litellm = sys.modules.get("litellm") if is_litellm(model) else None
    return any(getattr(litellm, name, None) for name in ("callbacks", "success_callback"))


def why_not_tapped(agent: Any) -> str | None:
    """Why an agent's LiteLlm is read from its partial events though there is a tap, in words; None if there is none."""
    model = getattr(agent, "canonical_model", None)
    session = getattr(sys.modules.get("litellm"), "aclient_session", None)
    if not is_litellm(model):
        return None
    if isinstance(getattr(model, "llm_client", None), TappedClient):
        return "litellm asks for this model in a way that takes no client, such as OpenAI's Responses"
    if session is not None and has_tap(session):
        return "litellm.aclient_session has a tap, but litellm does not use it for this provider"
    return None


def is_litellm(model: Any) -> bool:
    return any(base.__name__ == "LiteLlm" for base in type(model).__mro__)
