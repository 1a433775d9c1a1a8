"""Models with the tap in them, one by one or in a copy of a whole tree of agents. The originals stay as they are.

``tapped`` copies a model and gives the copy a client whose transport is the tap. Credentials and address are those that
the model's own class would use. A model whose class accepts no client, or whose client cannot be copied with another
transport, is returned as it is: the plugin then reads its partial events.

In a tree, sub-agents, the nodes of workflows and the agents of AgentTools are copied too. Agents that a node hides (the
node of a parallel worker, the agents that a function calls) are not copied: their models are read from their partial
events, unless the application tapped them.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import logging
import os
import re
import sys
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.context import Context
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.google_llm import Gemini
from google.adk.models.registry import LLMRegistry
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.workflow import BaseNode, FunctionNode, Workflow
from google.genai import types
from pydantic_core import PydanticSerializationError

from callstream.adk.tools import AGUIToolset, with_progress
from callstream.callstream import Callstream
from callstream.errors import UsageError
from callstream.runtime import current_run
from callstream.runtime.continuing import Keeping
from callstream.tap import TapSettings, has_tap

logger = logging.getLogger("callstream")

# -- google-adk's LiteLlm with the tap in it: litellm takes a client with each request ---------------------------------
# For providers that use OpenAI's SDK, that is a client of this SDK, with the key and the address that litellm itself would
# use. Everything else, and whatever may send a request elsewhere (fallbacks, aliases, lists of models, the application's own
# session), is left to litellm: such a model is read from its partial events. So is one for which litellm turns a chat
# completion into a request to OpenAI's Responses, because it does not pass the client on there.


_PROVIDERS: Final = frozenset({"openai", "custom_openai", "litellm_proxy"})
"""litellm's providers that it calls with OpenAI's SDK, by the rules that ``route_of`` follows."""

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
"""Settings of litellm that do the same."""

_TLS: Final = ("SSL_VERIFY", "SSL_SECURITY_LEVEL", "SSL_ECDH_CURVE", "SSL_CERTIFICATE")
"""Environment variables that litellm reads for its own connections."""


class _LiteLlmRoute(NamedTuple):
    """Where litellm would send a request."""

    key: str
    base_url: str


class _TappedClient:
    """The client of a LiteLlm, around the original: litellm works as always, but over connections with the tap in them."""

    def __init__(self, inner: Any, callstream: Callstream) -> None:
        self._inner = inner
        self._http_client: Any = callstream.httpx_client(settings=_HOSTED)
        self._clients: dict[tuple[object, ...], Any] = {}

    async def acompletion(self, model: Any, messages: Any, tools: Any, **kwargs: Any) -> Any:
        client = self._client_for(model, kwargs)
        if client is not None:
            kwargs["client"] = client
        return await self._inner.acompletion(model=model, messages=messages, tools=tools, **kwargs)

    def completion(self, *args: Any, **kwargs: Any) -> Any:
        """Without the tap: google-adk does not use it."""
        return self._inner.completion(*args, **kwargs)

    def _client_for(self, model: str, params: Mapping[str, Any]) -> Any:
        litellm = importlib.import_module("litellm")
        route = route_of(litellm, model, params)
        if route is None:
            return None
        whose = (route.key, route.base_url, params.get("organization"))
        if whose not in self._clients:
            from openai import AsyncOpenAI

            self._clients[whose] = AsyncOpenAI(
                api_key=route.key, base_url=route.base_url, http_client=self._http_client
            )
        return self._clients[whose]


def route_of(litellm: Any, model: str, params: Mapping[str, Any]) -> _LiteLlmRoute | None:
    """Where a request goes; None if that is not certain, or if it does not go through OpenAI's SDK."""
    if any(params.get(name) is not None for name in _ELSEWHERE):
        return None
    if any(getattr(litellm, name, None) for name in _ELSEWHERE_FOR_ALL):
        return None
    if litellm.ssl_verify is not True or any(map(os.environ.get, _TLS)):
        return None
    if model in (getattr(litellm, "model_alias_map", None) or {}):
        return None
    environment = os.environ.get
    try:
        _, provider, key, base_url = litellm.get_llm_provider(
            model=model,
            custom_llm_provider=params.get("custom_llm_provider"),
            api_base=params.get("base_url") or params.get("api_base"),
            api_key=params.get("api_key"),
        )
    except Exception:  # noqa: BLE001  # a name that litellm does not know: litellm reports it itself
        return None
    key = key or params.get("api_key") or litellm.api_key or litellm.openai_key or environment("OPENAI_API_KEY")
    base_url = base_url or litellm.api_base or environment("OPENAI_BASE_URL") or environment("OPENAI_API_BASE")
    if provider not in _PROVIDERS or not key:
        return None
    return _LiteLlmRoute(key, base_url or "https://api.openai.com/v1")


def is_watched(model: Any) -> bool:
    """Whether the application has litellm callbacks that get each piece of an answer that this model reads."""
    litellm = sys.modules.get("litellm") if is_litellm(model) else None
    return any(getattr(litellm, name, None) for name in ("callbacks", "success_callback"))


def why_not_tapped(agent: Any) -> str | None:
    """Why an agent's LiteLlm is read from its partial events although there is a tap, in words; None if there is none."""
    model = getattr(agent, "canonical_model", None)
    session = getattr(sys.modules.get("litellm"), "aclient_session", None)
    if not is_litellm(model):
        return None
    if isinstance(getattr(model, "llm_client", None), _TappedClient):
        return "litellm calls this model in a way that accepts no client, such as OpenAI's Responses"
    if session is not None and has_tap(session):
        return "litellm.aclient_session has a tap, but litellm does not use it for this provider"
    return None


def is_litellm(model: Any) -> bool:
    return any(base.__name__ == "LiteLlm" for base in type(model).__mro__)


_M = TypeVar("_M", bound=BaseLlm)
_made: weakref.WeakValueDictionary[int, BaseLlm] = weakref.WeakValueDictionary()
_HOSTED = TapSettings(hosted=True)
_PLACE = re.compile(r"projects/([^/]+)/locations/([^/]+)/")


def tapped(model: str | BaseLlm, callstream: Callstream) -> BaseLlm:
    """The model with the tap in it: a new instance of the same class. A log line says where it is read.

    Credentials that a provider's client takes from the environment are read when this is called. If they are missing, that
    is an error only when the model is used, as it is without the tap.
    """
    return tap_model(model, callstream)


def tap_model(model: str | BaseLlm, callstream: Callstream, agent_name: str | None = None) -> BaseLlm:
    """``tapped`` for the model of an agent; the log line names the agent."""
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


def _has_tapped_client(llm: BaseLlm) -> bool:
    """Whether a Gemini has a Callstream's client. Other models are copied with a new one."""
    options = (getattr(llm, "client_kwargs", None) or {}).get("http_options")
    client = options.get("httpx_async_client") if isinstance(options, dict) else options and options.httpx_async_client
    return client is not None and has_tap(client)


def _gemini(llm: BaseLlm, callstream: Callstream) -> BaseLlm | None:
    model = cast(Gemini, llm)
    builds_its_own = inspect.getattr_static(type(model), "api_client") is not inspect.getattr_static(
        Gemini, "api_client"
    )
    if model.client is not None or builds_its_own:
        return None
    kwargs = dict(model.client_kwargs or {})
    passed = kwargs.get("http_options")
    options = types.HttpOptions.model_validate(passed) if isinstance(passed, dict) else passed or types.HttpOptions()
    if options.httpx_async_client is not None:
        return None
    arguments = dict(options.async_client_args or {})
    arguments.pop("ssl", None)  # is for live mode's connections; httpx calls it verify
    client = callstream.httpx_client(settings=_HOSTED, **arguments)
    kwargs["http_options"] = options.model_copy(update={"httpx_async_client": client})
    return _copy_model(model, client_kwargs=kwargs)


def _anthropic(llm: BaseLlm, callstream: Callstream) -> BaseLlm | None:
    from anthropic import AsyncAnthropic

    client = llm.client  # type: ignore[attr-defined]
    http_client = callstream.httpx2_client(settings=_HOSTED)
    made = client.copy(http_client=http_client) if client is not None else AsyncAnthropic(http_client=http_client)
    return _copy_model(llm, client=made)


def _claude(llm: BaseLlm, callstream: Callstream) -> BaseLlm | None:
    from anthropic import AsyncAnthropicVertex

    client = llm.client  # type: ignore[attr-defined]
    if client is not None:
        return _copy_model(llm, client=client.copy(http_client=callstream.httpx2_client(settings=_HOSTED)))
    place = _PLACE.search(llm.model)
    project, region = place.groups() if place else (None, None)
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT")
    region = region or os.environ.get("GOOGLE_CLOUD_LOCATION")
    if not project or not region:
        return None  # the class says what is missing when it is used
    made = AsyncAnthropicVertex(
        project_id=project, region=region, http_client=callstream.httpx2_client(settings=_HOSTED)
    )
    return _copy_model(llm, client=made)


def _openai(llm: BaseLlm, callstream: Callstream) -> BaseLlm | None:
    from openai import AsyncOpenAI, OpenAIError

    model: Any = llm
    http_client = callstream.httpx_client(settings=_HOSTED)
    if model.client is not None:
        return _copy_model(llm, client=model.client.copy(http_client=http_client))
    options: dict[str, Any] = {"http_client": http_client}
    key, base_url = model.api_key, model.base_url
    if "azure_endpoint" in type(model).model_fields:
        key = key or os.environ.get("AZURE_OPENAI_API_KEY")
        base_url = f"{model.azure_endpoint.rstrip('/')}/openai/v1/" if model.azure_endpoint else base_url
    if key is not None:
        options["api_key"] = _await_key(key) if callable(key) else key
    if base_url is not None:
        options["base_url"] = base_url
    try:
        client = AsyncOpenAI(**options)
    except OpenAIError:  # there is no key
        client = AsyncOpenAI(**options, api_key=_await_key(_openai_key))
    return _copy_model(llm, client=client)


def _litellm(llm: BaseLlm, callstream: Callstream) -> BaseLlm | None:
    inner = getattr(llm, "llm_client", None)
    if type(inner).__module__ != "google.adk.models.lite_llm":
        return None  # one of the application's own
    try:
        _, provider, _, _ = importlib.import_module("litellm").get_llm_provider(model=llm.model)
    except Exception:  # noqa: BLE001  # litellm is not installed, or does not know the model: using it reports that
        return None
    return _copy_model(llm, llm_client=_TappedClient(inner, callstream)) if provider in _PROVIDERS else None


def _openai_key() -> str:
    key = os.environ.get("AZURE_OPENAI_API_KEY") or os.environ.get("OPENAI_API_KEY")
    if not key:
        raise UsageError(
            "a model of OpenAI's needs a key: set OPENAI_API_KEY, or give the model its api_key or a client"
        )
    return key


def _await_key(key: Callable[[], Any]) -> Callable[[], Awaitable[str]]:
    async def fetch() -> str:
        found = key()
        return cast(str, await found if inspect.isawaitable(found) else found)

    return fetch


def _copy_model(model: _M, **changes: Any) -> _M:
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
    "LiteLlm": _litellm,
}
"""By the name of google-adk's class, the more specific ones first; some need packages that may not be installed."""


# -- a tree of agents --


def client_toolsets(root: BaseNode) -> Iterator[AGUIToolset]:
    """The places for client tools in a tree of agents."""
    for agent in _llm_agents(root):
        for tool in agent.tools:
            if isinstance(tool, AGUIToolset):
                yield tool
            elif isinstance(tool, AgentTool):
                yield from client_toolsets(tool.agent)


def server_tools(root: BaseNode) -> frozenset[str]:
    """The names of tools that run here and return at once: no client can answer their calls."""
    return frozenset(
        name
        for agent in _llm_agents(root)
        for tool in agent.tools
        if not (isinstance(tool, BaseTool) and tool.is_long_running) and (name := _name_of(tool)) is not None
    )


def structured_agents(root: BaseNode) -> frozenset[str]:
    """The names of agents whose text is JSON by an ``output_schema``."""
    return frozenset(agent.name for agent in _llm_agents(root) if agent.output_schema is not None)


def _llm_agents(root: BaseNode) -> Iterator[LlmAgent]:
    """The agents of a tree that have a model, those in the nodes of workflows included."""
    if isinstance(root, LlmAgent):
        yield root
    for node in _below(root):
        yield from _llm_agents(node)


def _below(node: BaseNode) -> Sequence[BaseNode]:
    if isinstance(node, BaseAgent):
        return node.sub_agents
    return node.graph.nodes if isinstance(node, Workflow) and node.graph is not None else ()


def tap_tree(node: BaseNode, callstream: Callstream) -> BaseNode:
    """A copy with the tap in it; nodes that cannot be copied are reused. An unknown model name raises google-adk's error."""
    if isinstance(node, BaseAgent):
        return _copy_agent(node, callstream, inherits=False)
    if isinstance(node, Workflow) and node.graph is not None:
        graph = node.graph
        # A node may have several edges, and has to stay one node.
        copies = {id(each): tap_tree(each, callstream) for each in graph.nodes}
        edges = [
            edge.model_copy(
                update={
                    "from_node": copies.get(id(edge.from_node), edge.from_node),
                    "to_node": copies.get(id(edge.to_node), edge.to_node),
                }
            )
            for edge in graph.edges
        ]
        nodes = [copies[id(each)] for each in graph.nodes]
        return node.model_copy(update={"graph": graph.model_copy(update={"nodes": nodes, "edges": edges})})
    if isinstance(node, FunctionNode):
        return KeptNode.around(node)
    if "tool" in type(node).model_fields:
        tool = getattr(node, "tool")  # noqa: B009  a node that is a tool; its class has no public name
        return node.model_copy(update={"tool": _copy_tool(tool, callstream, frozenset())})
    return node


def _copy_agent(agent: BaseAgent, callstream: Callstream, *, inherits: bool) -> BaseAgent:
    update: dict[str, Any] = {}
    if isinstance(agent, LlmAgent):
        # An agent without a model uses that of the nearest agent above that has one.
        if agent.model or not inherits:
            update["model"] = tap_model(agent.model or agent.canonical_model, callstream, agent.name)
            inherits = True
        taken = frozenset(name for tool in agent.tools if (name := _name_of(tool)) is not None)
        update["tools"] = [_copy_tool(tool, callstream, taken) for tool in agent.tools]
    update["sub_agents"] = [_copy_agent(child, callstream, inherits=inherits) for child in agent.sub_agents]
    return agent.clone(update=update)


def _copy_tool(tool: Any, callstream: Callstream, taken: frozenset[str]) -> Any:
    if isinstance(tool, AGUIToolset):
        return tool.beside(taken)
    if type(tool) is AgentTool:
        made = copy.copy(tool)
        made.agent = _copy_agent(tool.agent, callstream, inherits=False)
        return made
    return with_progress(tool)


def _name_of(tool: Any) -> str | None:
    if isinstance(tool, BaseTool):
        return tool.name
    return getattr(tool, "__name__", None) if callable(tool) else None


# -- function nodes --

_MADE_UP = {"id", "timestamp", "invocation_id"}
_CHECKED = {"input_schema", "output_schema"}
"""Fields that only the inner node checks."""


class KeptNode(BaseNode):
    """A function node of a Workflow, in a run that can continue in another process.

    google-adk calls no plugin before a function node, so this wraps each of them in the copy of the tree. It keeps the
    function's output and returns it when the run is continued: the function does not run again. A function that was still
    running is run again only if google-adk itself may do so, because it has a ``retry_config`` or ``rerun_on_resume``; else
    the run ends.
    """

    inner: BaseNode

    @classmethod
    def around(cls, node: BaseNode) -> KeptNode:
        return cls(inner=node, **{name: getattr(node, name) for name in BaseNode.model_fields.keys() - _CHECKED})

    async def _run_impl(self, *, ctx: Context, node_input: Any) -> AsyncGenerator[Any, None]:
        run = current_run()
        keeping = None if run is None else run.keeping
        nth, kept = (0, None) if keeping is None else keeping.next_step(ctx.node_path)
        if kept is not None:
            events = _again(kept)
        elif keeping is not None:
            events = self._run_kept(keeping, nth, ctx, node_input)
        else:
            events = self.inner.run(ctx=ctx, node_input=node_input)
        async for event in events:
            yield event

    async def _run_kept(self, keeping: Keeping, nth: int, ctx: Context, node_input: Any) -> AsyncGenerator[Event, None]:
        may_repeat = self.rerun_on_resume or self.retry_config is not None
        await keeping.begin_step(ctx.node_path, nth, "safe" if may_repeat else "unsafe")
        kept = _KeptOutput()
        output: Event | None = None
        try:
            async for event in self.inner.run(ctx=ctx, node_input=node_input):
                kept.add(event)
                if output is not None:
                    yield output
                output = event if event.output is not None else None
                if output is None:
                    yield event
        except BaseException:
            keeping.repeat_step(ctx.node_path)
            raise
        kept.add_rest(ctx, output)
        if kept.mistake is None:
            await keeping.end_step(ctx.node_path, nth, json.dumps(kept.events).encode())
        else:
            await keeping.give_up(f"the output of node {self.name} is not JSON: {kept.mistake}")
        if output is not None:  # only now: the nodes after this one begin once its output is kept
            yield output


class _KeptOutput:
    """The output of a function, as JSON, copied before google-adk writes into it."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.mistake: PydanticSerializationError | None = None
        self._has_output = self._has_route = False

    def add(self, event: Event) -> None:
        self._has_output |= event.output is not None or bool(event.node_info.message_as_output)
        self._has_route |= event.actions.route is not None
        try:
            self.events.append(event.model_dump(mode="json", exclude=_MADE_UP, exclude_none=True))
        except PydanticSerializationError as error:
            self.mistake = error

    def add_rest(self, ctx: Context, held: Event | None) -> None:
        """Adds what the function left in its context. ``held``: its output, which has some of that already."""
        taken = EventActions() if held is None else held.actions
        changes = ctx.actions.state_delta
        left = EventActions(
            state_delta={key: changes[key] for key in changes if key not in taken.state_delta},
            artifact_delta=dict(ctx.actions.artifact_delta),
            route=None if self._has_route else ctx.route,
        )
        output = None if self._has_output else ctx.output
        if output is not None or left != EventActions():
            self.add(Event(output=output, actions=left))


async def _again(kept: bytes) -> AsyncGenerator[Event, None]:
    for event in json.loads(kept):
        yield Event.model_validate(event)


# -- where models are read --


ModelPath: TypeAlias = Literal["wire", "partial events", "unknown"]


class ModelOnPath(msgspec.Struct, frozen=True):
    """One agent's model, and where it is read. ``detail`` says why if that is not known."""

    agent: str
    model: str
    kind: str
    path: ModelPath
    detail: str | None = None


def paths_in(root: object) -> list[ModelOnPath]:
    """Where the models of a tree of agents are read, agent by agent. No model is called."""
    return list(_paths(root, Callstream(), inherits=False, is_copied=True))


def _paths(node: Any, callstream: Callstream, *, inherits: bool, is_copied: bool) -> Iterator[ModelOnPath]:
    """By the rules of ``tap_tree``."""
    if isinstance(node, LlmAgent):
        if node.model or not inherits:
            yield _path(node, callstream, is_copied=is_copied)
            inherits = True
        for tool in node.tools:
            if isinstance(tool, AgentTool):
                yield from _paths(
                    tool.agent, callstream, inherits=False, is_copied=is_copied and type(tool) is AgentTool
                )
    for below in _below(node):
        yield from _paths(below, callstream, inherits=inherits, is_copied=is_copied)


def _path(agent: LlmAgent, callstream: Callstream, *, is_copied: bool) -> ModelOnPath:
    model = agent.model or agent.canonical_model
    named = model.model if isinstance(model, BaseLlm) else model
    try:
        llm = LLMRegistry.new_llm(model) if isinstance(model, str) else model
        at_the_wire = is_tapped(llm) or (is_copied and tapped(llm, callstream) is not llm)
    except Exception as error:  # noqa: BLE001  # without a key, a provider's client may raise any kind of error
        return ModelOnPath(agent.name, named, type(model).__name__, "unknown", f"{type(error).__name__}: {error}")
    return ModelOnPath(agent.name, named, type(llm).__name__, "wire" if at_the_wire else "partial events")
