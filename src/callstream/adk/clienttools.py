"""Tools that a client brings with a run and executes itself.

``AGUIToolset`` among an agent's tools marks where they go. A call of one streams like any other, ends the agent's turn,
and awaits the client's answer, which comes with another run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
from ag_ui.core import Tool as ClientToolSpec
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset, ToolPredicate
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from callstream.adk.hostquestions import HOST_QUESTIONS
from callstream.calls import Call
from callstream.tools.schema import GEMINI_KEYS


class ClientInput(msgspec.Struct, frozen=True):
    """What a run has beside messages: the client's tools, and its instructions for the agent of that name."""

    tools: tuple[ClientToolSpec, ...] = ()
    instructions: str | None = None
    agent_name: str | None = None
    given_up: tuple[Call, ...] = ()
    """Calls that a process left behind in the thread when it died."""


current_input: ContextVar[ClientInput | None] = ContextVar("callstream_client_input", default=None)
"""Set in the task of the run, so runs that go on beside each other have each their own."""


class ClientTool(BaseTool):
    """A tool whose answer comes from the client, with another run."""

    def __init__(self, spec: ClientToolSpec) -> None:
        super().__init__(name=spec.name, description=spec.description, is_long_running=True)
        self._schema = gemini_schema(spec.parameters)

    def _get_declaration(self) -> types.FunctionDeclaration:
        parameters = types.Schema.model_validate(self._schema) if self._schema.get("properties") else None
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters=parameters)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> None:
        """Nothing: google-adk then leaves the call without a response."""


class AGUIToolset(BaseToolset):
    """The place of the client's tools among an agent's. Outside of an ``ADKAgent`` it is empty.

    ``tool_filter`` is a list of the client's own names, or a predicate; ``tool_name_prefix`` goes before the names.
    """

    def __init__(
        self, *, tool_filter: ToolPredicate | list[str] | None = None, tool_name_prefix: str | None = None
    ) -> None:
        super().__init__(tool_filter=tool_filter, tool_name_prefix=tool_name_prefix)
        self._taken: frozenset[str] = frozenset()
        # An answer goes on with the invocation of its call, and its run may bring other tools than that one had.
        self._use_invocation_cache = False

    def beside(self, names: frozenset[str]) -> AGUIToolset:
        """A toolset that leaves out the client's tools of these names: a request must not declare a name twice."""
        made = AGUIToolset(tool_filter=self.tool_filter, tool_name_prefix=self.tool_name_prefix)
        made._taken = names
        return made

    def named(self, tool_name: str) -> str:
        """The name by which the model knows a tool of the client."""
        return f"{self.tool_name_prefix}_{tool_name}" if self.tool_name_prefix else tool_name

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        given = current_input.get()
        made = [ClientTool(spec) for spec in (given.tools if given is not None else ())]
        taken = self._taken | HOST_QUESTIONS
        return [tool for tool in made if self.named(tool.name) not in taken and self._wants(tool, readonly_context)]

    def _wants(self, tool: BaseTool, context: ReadonlyContext | None) -> bool:
        if self.tool_filter is None:
            return True
        if isinstance(self.tool_filter, Sequence):
            return tool.name in self.tool_filter
        return bool(self.tool_filter(tool, context))


_KEPT = GEMINI_KEYS | {"format", "default", "propertyOrdering"}
_MAX_NESTED = 3
_MAX_REFERENCES = 256
_UNFOLDED = 64 * 1024
"""Characters of JSON that references may add to a schema, beside twice its own."""


class _Definitions:
    """What a schema's references mean.

    Definitions that refer to each other unfold to many times their size, and those that refer to themselves for ever. So
    one is put into itself no more than ``_MAX_NESTED`` deep, and no schema gets more than ``_MAX_REFERENCES`` in all, nor
    grows by more than ``_UNFOLDED`` and twice its size; any other reference is some object.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        known = schema.get("$defs") or schema.get("definitions") or {}
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}
        self._sizes: dict[str, int] = {}
        self._left = _MAX_REFERENCES
        self._room = _UNFOLDED + 2 * _size(schema) if self._known else 0

    def resolve(self, name: str, within: tuple[str, ...]) -> dict[str, Any] | None:
        """What the name means inside of the definitions ``within``; None for some object."""
        target = self._known.get(name)
        if not isinstance(target, dict) or not self._left or within.count(name) >= _MAX_NESTED:
            return None
        if name not in self._sizes:
            self._sizes[name] = _size(target)
        if self._sizes[name] > self._room:
            return None
        self._left -= 1
        self._room -= self._sizes[name]
        return target


def _size(schema: dict[str, Any]) -> int:
    return len(json.dumps(schema, default=str))


def gemini_schema(schema: Any) -> dict[str, Any]:
    """A client's JSON Schema in the words that Gemini takes. References are put in their places, to a limit.

    Not as ``declarations`` does it for a tool's own schema: that one refuses recursion, which its author can mend, and
    tells other choices than strings in the description. A client's schema is nobody's here to mend, may be anything, and
    must not grow without bound; what is left of it stays as the client wrote it.
    """
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    return _cleaned(schema, _Definitions(schema), ())


def _cleaned(schema: dict[str, Any], definitions: _Definitions, within: tuple[str, ...]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rsplit("/", 1)[-1]
        target = definitions.resolve(name, within)
        if target is None:
            return {"type": "object"}
        described = {key: value for key, value in schema.items() if key in ("description", "title", "default")}
        return _cleaned({**target, **described}, definitions, (*within, name))
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            made[key] = {name: _clean(each, definitions, within) for name, each in value.items()}
        elif key == "items":
            made[key] = _clean(value, definitions, within)
        elif key in ("anyOf", "oneOf") and isinstance(value, list):
            made["anyOf"] = [_clean(each, definitions, within) for each in value]
        elif key == "const":
            made["enum"] = [value]
        elif key == "type" and isinstance(value, list):
            _choose_type(made, value)
        elif key in _KEPT:
            made[key] = value
    if not all(isinstance(value, str) for value in made.get("enum", ())):
        del made["enum"]  # Gemini knows enumerations of strings alone
    return made


def _clean(schema: Any, definitions: _Definitions, within: tuple[str, ...]) -> dict[str, Any]:
    return _cleaned(schema, definitions, within) if isinstance(schema, dict) else {}


def _choose_type(made: dict[str, Any], kinds: list[Any]) -> None:
    real = [kind for kind in kinds if kind != "null"]
    if len(real) < len(kinds):
        made["nullable"] = True
    if len(real) == 1:
        made["type"] = real[0]
    elif real:
        made["anyOf"] = [{"type": kind} for kind in real]
