"""Tools as other frameworks declare and call them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callstream.tools import Progress, no_progress, tool

from .samples import order, write_document


def test_schema_of_pydantic_models() -> None:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", number=(int, ...))
    model = pydantic.create_model("Outer", inner=(inner, ...), inners=(list[inner], []))

    def take(one: Any, many: Any = None) -> None: ...

    take.__annotations__ = {"one": model, "many": list[model] | None}
    declared = tool(take).schema("anthropic")["input_schema"]
    assert declared["properties"]["one"]["properties"]["inner"] == {"$ref": "#/$defs/Inner"}
    assert declared["$defs"]["Inner"]["required"] == ["number"]
    flat = tool(take).schema("gemini")["parameters"]["properties"]
    assert flat["one"]["properties"]["inner"]["properties"]["number"]["type"] == "integer"
    assert flat["many"]["items"]["properties"]["inners"]["items"]["title"] == "Inner"


def test_schema_of_a_class_that_describes_itself() -> None:
    class Odd:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {
                "allOf": [{"$ref": "#/$defs/Part"}],
                "type": "object",
                "properties": {
                    "maybe": {"type": ["string", "null"]},
                    "either": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
                    "when": {"type": "string", "format": "date-time"},
                    "where": {"type": "string", "format": "uri"},
                    "fixed": {"const": "yes"},
                    "any": {"type": "array", "items": True},
                },
                "additionalProperties": False,
                "$defs": {"Part": {"description": "A part."}},
            }

    instance = Odd()

    def take(odd: Any = instance) -> None: ...

    take.__annotations__ = {"odd": Odd}
    made = tool(take)
    assert made.schema("anthropic")["input_schema"]["properties"]["odd"] == {
        key: value for key, value in Odd.model_json_schema().items() if key != "$defs"
    }  # A default that is not JSON is left out.
    assert made.schema("gemini")["parameters"]["properties"]["odd"] == {
        "description": "A part.",
        "type": "object",
        "properties": {
            "maybe": {"type": "string", "nullable": True},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "when": {"type": "string", "format": "date-time"},
            "where": {"type": "string"},
            "fixed": {"type": "string", "enum": ["yes"]},
            "any": {"type": "array"},
        },
    }


def test_docstring_with_sections_in_any_order() -> None:
    @tool
    def speak(text: str, loud: bool, progress_callback: Any = None, **more: str) -> None:
        """Speaks.

        Returns:
            Nothing.

        Args:
            text: What
                to say.

            loud (bool): How: with a colon.
            progress_callback: Hidden,
                with a second line.

        It ends here: no parameter.
        """

    assert "Hidden" not in (speak.__doc__ or "")
    assert "second line" not in (speak.__doc__ or "")
    assert (speak.__doc__ or "").endswith("It ends here: no parameter.")

    @tool
    def quiet(text: str, loud: bool) -> None: ...

    quiet.__doc__ = speak.__doc__
    described = tool(quiet).schema("openai")["function"]
    assert described["description"] == "Speaks."
    assert described["parameters"]["properties"] == {
        "text": {"type": "string", "description": "What to say."},
        "loud": {"type": "boolean", "description": "How: with a colon."},
    }


@pytest.mark.filterwarnings("default")
def test_declaration_of_google_adk() -> None:
    function_tool = pytest.importorskip("google.adk.tools.function_tool")
    tools = pytest.importorskip("google.adk.tools")

    @tool
    async def write(title: str, content: str, progress: Progress = no_progress) -> dict[str, Any]:
        """Writes a document."""
        return {}

    async def in_context(title: str, tool_context: Any, progress: Progress = no_progress) -> dict[str, Any]:
        return {"context": tool_context}

    in_context.__annotations__["tool_context"] = tools.ToolContext

    @tool
    async def stream(title: str, progress: Progress = no_progress) -> AsyncIterator[int]:
        yield 1

    def declared(made: Any) -> dict[str, Any]:
        found = function_tool.FunctionTool(made)._get_declaration().model_dump(exclude_none=True)
        return typing.cast(dict[str, Any], found)

    def names(made: Any) -> list[str]:
        found = declared(made)
        schema = found.get("parameters") or found["parameters_json_schema"]
        return list(schema["properties"])

    assert declared(write)["name"] == "write"
    assert declared(write)["description"] == "Writes a document."
    assert names(write) == ["title", "content"]
    assert names(tool(in_context)) == ["title"]
    assert names(stream) == ["title"]
    assert function_tool.FunctionTool(stream)._spec.is_generator
    assert function_tool.FunctionTool(tool(in_context))._context_param_name == "tool_context"


@pytest.mark.filterwarnings("default")
async def test_call_by_google_adk() -> None:
    function_tool = pytest.importorskip("google.adk.tools.function_tool")
    invoked = function_tool.FunctionTool(tool(write_document))
    assert await invoked._invoke_callable(tool(write_document), {"title": "a", "content": "b"}) == {
        "title": "a",
        "content": "b",
    }


def test_declaration_for_google_genai() -> None:
    types = pytest.importorskip("google.genai.types")
    for made in (order, tool(write_document)):
        types.FunctionDeclaration.model_validate(made.schema("gemini"))
    with pytest.raises(ValueError, match="extra"):
        types.Schema.model_validate({"type": "object", "$defs": {}})


@pytest.mark.filterwarnings("default")
async def test_declaration_of_langchain() -> None:
    tools = pytest.importorskip("langchain_core.tools")
    made = tools.StructuredTool.from_function(coroutine=tool(write_document), parse_docstring=True)
    schema = made.args_schema.model_json_schema()
    assert list(schema["properties"]) == ["title", "content"]
    assert schema["properties"]["content"]["description"] == "The text."
    assert await made.ainvoke({"title": "a", "content": "b"}) == {"title": "a", "content": "b"}


async def test_declaration_by_pydantics_validated_calls() -> None:
    """The way of Pydantic AI and the OpenAI Agents SDK: type hints, signature and kind of the function."""
    pydantic = pytest.importorskip("pydantic")
    made = tool(write_document)
    hints = typing.get_type_hints(made, include_extras=True)
    fields = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(made).parameters.items()
    }
    schema = pydantic.create_model(made.__name__, **fields).model_json_schema()
    assert list(schema["properties"]) == ["title", "content"]
    assert inspect.iscoroutinefunction(made)
    checked = pydantic.validate_call(made)
    assert await checked(title="a", content="b") == {"title": "a", "content": "b"}
    with pytest.raises(pydantic.ValidationError):
        await checked(title="a", content=3)
