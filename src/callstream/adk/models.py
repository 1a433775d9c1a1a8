"""Models with the tap in them.

``tapped`` copies a model and gives the copy a client whose transport is the tap. What decides about credentials and
address is what the model's own class would use. A model whose class takes no client, or whose client cannot be copied
with another transport, is returned as it is: the plugin then reads its partial events.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from google.adk.models.base_llm import BaseLlm
from google.adk.models.google_llm import Gemini
from google.adk.models.registry import LLMRegistry
from google.genai import types

from callstream.errors import UsageError
from callstream.runtime import Callstream
from callstream.tap import has_tap

logger = logging.getLogger("callstream")

_M = TypeVar("_M", bound=BaseLlm)
_made: weakref.WeakValueDictionary[int, BaseLlm] = weakref.WeakValueDictionary()
_PLACE = re.compile(r"projects/([^/]+)/locations/([^/]+)/")


def tapped(model: str | BaseLlm, callstream: Callstream) -> BaseLlm:
    """The model with the tap in it: a new instance of the same class. One log line says which path it is on.

    Credentials that a provider's client takes from the environment are taken when this is called; where there are none
    yet, they are missed when the model is used, as they are without the tap.
    """
    return tap_model(model, callstream)


def tap_model(model: str | BaseLlm, callstream: Callstream, agent_name: str | None = None) -> BaseLlm:
    """``tapped`` for the model of an agent, which the log line names."""
    if not isinstance(model, str | BaseLlm):
        raise UsageError(f"expected a model of google-adk or its name, got {model!r}")
    if not isinstance(callstream, Callstream):
        raise UsageError(f"expected a Callstream, got {type(callstream).__name__}")
    llm = LLMRegistry.new_llm(model) if isinstance(model, str) else model
    named = f"model {llm.model} ({type(llm).__name__})"
    named = named if agent_name is None else f"agent {agent_name}: {named}"
    if _has_tapped_client(llm):
        logger.info("%s is already tapped and read at the wire", named)
        return llm
    for family, tap in _FAMILIES.items():
        if any(base.__name__ == family and base.__module__.startswith("google.adk.") for base in type(llm).__mro__):
            made = tap(llm, callstream)
            if made is not None:
                _made[id(made)] = made
                logger.info("%s is read at the wire", named)
                return made
            break
    logger.info("%s is read from its partial events", named)
    return llm


def is_tapped(model: str | BaseLlm) -> bool:
    """Whether it is a model that has a tap already."""
    return not isinstance(model, str) and (_made.get(id(model)) is model or _has_tapped_client(model))


def passes_by_tap(agent: Any) -> bool:
    """Whether an agent has a LiteLlm and litellm a tapped client, which it uses for some providers only."""
    litellm = sys.modules.get("litellm")
    session = getattr(litellm, "aclient_session", None)
    model = getattr(agent, "canonical_model", None) if session is not None else None
    return type(model).__name__ == "LiteLlm" and has_tap(session)


def _has_tapped_client(llm: BaseLlm) -> bool:
    """Whether a Gemini has a client of a Callstream's. The others are copied with a new one."""
    options = (getattr(llm, "client_kwargs", None) or {}).get("http_options")
    client = options.get("httpx_async_client") if isinstance(options, dict) else options and options.httpx_async_client
    return client is not None and has_tap(client)


def _gemini(llm: BaseLlm, callstream: Callstream) -> BaseLlm | None:
    model = cast(Gemini, llm)
    builds_its_own = inspect.getattr_static(type(model), "api_client") is not inspect.getattr_static(
        Gemini, "api_client"
    )
    if model.client is not None or model.use_interactions_api or builds_its_own:
        return None
    kwargs = dict(model.client_kwargs or {})
    given = kwargs.get("http_options")
    options = types.HttpOptions.model_validate(given) if isinstance(given, dict) else given or types.HttpOptions()
    if options.httpx_async_client is not None:
        return None
    arguments = dict(options.async_client_args or {})
    arguments.pop("ssl", None)  # is for live mode's connections; httpx calls it verify
    client = callstream.httpx_client(**arguments)
    kwargs["http_options"] = options.model_copy(update={"httpx_async_client": client})
    return _copied(model, client_kwargs=kwargs)


def _anthropic(llm: BaseLlm, callstream: Callstream) -> BaseLlm | None:
    from anthropic import AsyncAnthropic

    client = llm.client  # type: ignore[attr-defined]
    http_client = callstream.httpx2_client()
    made = client.copy(http_client=http_client) if client is not None else AsyncAnthropic(http_client=http_client)
    return _copied(llm, client=made)


def _claude(llm: BaseLlm, callstream: Callstream) -> BaseLlm | None:
    from anthropic import AsyncAnthropicVertex

    client = llm.client  # type: ignore[attr-defined]
    if client is not None:
        return _copied(llm, client=client.copy(http_client=callstream.httpx2_client()))
    place = _PLACE.search(llm.model)
    project, region = place.groups() if place else (None, None)
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT")
    region = region or os.environ.get("GOOGLE_CLOUD_LOCATION")
    if not project or not region:
        return None  # the class says what is missing when it is used
    made = AsyncAnthropicVertex(project_id=project, region=region, http_client=callstream.httpx2_client())
    return _copied(llm, client=made)


def _openai(llm: BaseLlm, callstream: Callstream) -> BaseLlm | None:
    from openai import AsyncOpenAI, OpenAIError

    model: Any = llm
    http_client = callstream.httpx_client()
    if model.client is not None:
        return _copied(llm, client=model.client.copy(http_client=http_client))
    given: dict[str, Any] = {"http_client": http_client}
    key, base_url = model.api_key, model.base_url
    if "azure_endpoint" in type(model).model_fields:
        key = key or os.environ.get("AZURE_OPENAI_API_KEY")
        base_url = f"{model.azure_endpoint.rstrip('/')}/openai/v1/" if model.azure_endpoint else base_url
    if key is not None:
        given["api_key"] = _awaited(key) if callable(key) else key
    if base_url is not None:
        given["base_url"] = base_url
    try:
        client = AsyncOpenAI(**given)
    except OpenAIError:  # there is no key
        client = AsyncOpenAI(**given, api_key=_awaited(_openai_key))
    return _copied(llm, client=client)


def _openai_key() -> str:
    key = os.environ.get("AZURE_OPENAI_API_KEY") or os.environ.get("OPENAI_API_KEY")
    if not key:
        raise UsageError(
            "a model of OpenAI's needs a key: set OPENAI_API_KEY, or give the model its api_key or a client"
        )
    return key


def _awaited(key: Callable[[], Any]) -> Callable[[], Awaitable[str]]:
    async def fetch() -> str:
        found = key()
        return cast(str, await found if inspect.isawaitable(found) else found)

    return fetch


def _copied(model: _M, **changes: Any) -> _M:
    """A copy of the model, without the clients that the original has made."""
    made = model.model_copy(update=changes)
    for name in set(vars(made)) - set(type(made).model_fields):
        del vars(made)[name]
    return made


_FAMILIES: dict[str, Callable[[BaseLlm, Callstream], BaseLlm | None]] = {
    "Claude": _claude,
    "AnthropicLlm": _anthropic,
    "OpenAILlm": _openai,
    "OpenAIResponsesLlm": _openai,
    "Gemini": _gemini,
}
"""By the name of google-adk's class, the more special ones first; some need packages that may not be there."""
