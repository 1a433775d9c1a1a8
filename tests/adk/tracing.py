"""A program that serves a google-adk agent, asks it, and prints its spans and its log as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from contextlib import nullcontext
from typing import Any

from fastapi import FastAPI
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.runners import InMemoryRunner
from google.genai import types
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callstream import Callstream, Reject, tool
from callstream.adk import ADKAgent, CallstreamPlugin
from callstream.ag_ui_adk import add_adk_fastapi_endpoint
from callstream.testing import Finish, HttpError, ScriptedProvider, Text, ToolCall
from tests.adk.hosting import STREAMED, Models
from tests.server.serving import run_input, served, serving

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@tool
async def look_up(topic: str) -> str:
    """Looks a topic up."""
    return f"all about {topic}"


@look_up.on_args_complete
async def check(call: Any, signal: Any) -> None:
    if call.args == {"topic": "secrets"}:
        raise Reject("not that")


def agent(provider: ScriptedProvider, cs: Callstream) -> LlmAgent:
    return LlmAgent(name="writer", model=Models(cs)(provider), tools=[look_up])


class Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = {"logger": record.name, "level": record.levelname, "message": record.getMessage()}
        self.lines.append({**line, "traceback": record.exc_info is not None})


async def ask_server(script: list[Any], headers: dict[str, str] | None = None) -> None:
    with ScriptedProvider("gemini", script) as provider:
        cs = Callstream()
        adk = ADKAgent.from_app(App(name="writer", root_agent=agent(provider, cs)), callstream=cs)
        async with served(adk) as server, server.stream("POST", "/agui", json=run_input(), headers=headers) as stream:
            await stream.all()
            await server.finished(stream.run_id)


async def ask_endpoint(script: list[Any], headers: dict[str, str], **options: Any) -> None:
    with ScriptedProvider("gemini", script) as provider:
        cs = Callstream()
        adk = ADKAgent.from_app(App(name="writer", root_agent=agent(provider, cs)), callstream=cs, user_id="ada")
        app = FastAPI()
        add_adk_fastapi_endpoint(app, adk, path="/agui", **options)
        async with serving(app) as server, server.stream("POST", "/agui", json=run_input(), headers=headers) as stream:
            await stream.all()
        await adk.close()
        await cs.aclose()


async def ask_runner(script: list[Any], *, inside: bool = False) -> None:
    with ScriptedProvider("gemini", script) as provider:
        async with Callstream() as cs, cs.run("outer") if inside else nullcontext():
            app = App(name="writer", root_agent=agent(provider, cs), plugins=[CallstreamPlugin(cs)])
            runner = InMemoryRunner(app=app)
            session = await runner.session_service.create_session(app_name="writer", user_id="ada")
            message = types.Content(role="user", parts=[types.Part(text="Go")])
            async for _ in runner.run_async(
                user_id="ada", session_id=session.id, new_message=message, run_config=STREAMED
            ):
                pass
            await runner.close()


async def main() -> None:
    warnings.simplefilter("ignore")
    exporter, log = InMemorySpanExporter(), Log()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    logging.getLogger().addHandler(log)
    logging.getLogger("callstream").setLevel(logging.INFO)
    told: dict[str, Any] = {}

    def keep(name: str) -> None:
        told[name] = {"spans": [described(span) for span in exporter.get_finished_spans()], "log": list(log.lines)}
        exporter.clear()
        log.lines.clear()

    calls = [[ToolCall("look_up", {"topic": "tea"}), Finish()], [Text("Done."), Finish()]]
    await ask_server(calls)
    keep("served")
    await ask_server(calls, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    keep("traceparent")
    await ask_server([[ToolCall("look_up", {"topic": "secrets"}), Finish()], [Text("Done."), Finish()]])
    keep("rejected")
    await ask_server([[HttpError(400, "no")]])
    keep("failed")
    await ask_runner(calls)
    keep("runner")
    await ask_runner(calls, inside=True)
    keep("inside")
    for on_disconnect in ("stop", "continue"):
        await ask_endpoint(calls, {"traceparent": f"00-{TRACE}-{PARENT}-01"}, on_disconnect=on_disconnect)
        keep(f"endpoint {on_disconnect}")
    print(json.dumps(told))


def described(span: ReadableSpan) -> dict[str, Any]:
    assert span.context is not None
    return {
        "name": span.name,
        "trace": f"{span.context.trace_id:032x}",
        "id": f"{span.context.span_id:016x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "scope": span.instrumentation_scope.name if span.instrumentation_scope else None,
        "status": span.status.status_code.name,
        "attributes": dict(span.attributes or {}),
    }


if __name__ == "__main__":
    asyncio.run(main())
