"""The servers of the tables "server", "pace" and "gateway", each in a process of its own: ``python -m bench.served``.

Callstream and ag_ui_adk serve the same google-adk agent with the same scripted model; the forwarder passes the model's
bytes on. A gateway of Callstream's passes Anthropic's wire on. Prints the address when it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import tempfile
from typing import Any

import uvicorn


def agent_of(base_url: str, maker: str) -> Any:
    from google.adk.agents import LlmAgent

    def write(content: str) -> dict[str, int]:
        """Writes."""
        return {"characters": len(content)}

    return LlmAgent(name="writer", model=model_of(base_url, maker), tools=[write])


def model_of(base_url: str, maker: str) -> Any:
    if maker == "anthropic":
        from google.adk.models.anthropic_llm import AnthropicLlm

        os.environ |= {"ANTHROPIC_BASE_URL": base_url, "ANTHROPIC_API_KEY": "none"}
        return AnthropicLlm(model="claude-sonnet-5-5")
    if maker == "litellm":
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched from the internet at import
        from google.adk.models.lite_llm import LiteLlm

        return LiteLlm(model="openai/scripted", api_base=f"{base_url}/v1", api_key="none")
    from google.adk.models import Gemini
    from google.genai import types

    options = types.HttpOptions(base_url=base_url)
    return Gemini(model="gemini-3-flash-preview", client_kwargs={"http_options": options, "api_key": "none"})


def callstream_app(
    base_url: str, maker: str, journal: Any, sessions: str | None = None, *, continues: bool = True
) -> Any:
    """``sessions``: a file for google-adk's sessions; then runs are kept so that another process can go on with them,
    if it ``continues``.
    """
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    from callstream import Callstream
    from callstream.adk import ADKAgent
    from callstream.server import ServerSettings, create_app

    service = None if sessions is None else SqliteSessionService(sessions)
    agent = ADKAgent(
        agent_of(base_url, maker), app_name="bench", callstream=Callstream(journal), session_service=service
    )
    return create_app(agent, settings=ServerSettings(max_runs=None, max_streams=None, continue_runs=continues))


def ag_ui_adk_app(base_url: str, maker: str) -> Any:
    from ag_ui_adk import ADKAgent, add_adk_fastapi_endpoint
    from fastapi import FastAPI
    from google.adk.agents.run_config import RunConfig, StreamingMode

    agent = ADKAgent(
        agent_of(base_url, maker),
        app_name="bench",
        user_id="user",
        streaming_function_call_arguments=True,
        max_concurrent_executions=100_000,
        run_config_factory=lambda given: RunConfig(streaming_mode=StreamingMode.SSE),
    )
    app = FastAPI()
    add_adk_fastapi_endpoint(app, agent, "/agui")
    return app


def gateway_app(base_url: str, journal: Any) -> Any:
    from callstream import Callstream
    from callstream.gateway import create_gateway

    return create_gateway(Callstream(journal), upstreams={"anthropic": f"{base_url}/v1"})


CALLSTREAMS = ("callstream", "continuing", "not continuing", "gateway")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--which", choices=(*CALLSTREAMS, "ag_ui_adk", "forwarder"), required=True)
    parser.add_argument("--provider", required=True, help="the base URL of the model")
    parser.add_argument("--maker", choices=("gemini", "anthropic", "litellm"), default="gemini")
    parser.add_argument("--journal", help="the URL of Callstream's journal (default: a new SQLite file)")
    parser.add_argument("--gather", type=float, help="milliseconds for which the journal gathers (default: its own)")
    parser.add_argument("--without", help="one of the tricks of bench.tricks, which is switched off")
    parser.add_argument("--core", type=int, help="the only core that this process may use")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    if options.without is not None:
        from bench.tricks import TRICKS

        TRICKS[options.without]()
    logging.disable(logging.CRITICAL)
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.which in CALLSTREAMS:
            from callstream.gateway.settings import GATHER_SECONDS
            from callstream.journal import open_journal
            from callstream.server.serving import serve

            sessions = None if options.which == "callstream" else f"{folder}/sessions.db"
            url = options.journal or f"sqlite:///{folder}/calls.db"
            own = {"gather_seconds": GATHER_SECONDS} if options.which == "gateway" else {}  # as `callstream gateway`
            gathering = own if options.gather is None else {"gather_seconds": options.gather / 1000}
            journal = open_journal(url, **gathering)
            if options.which == "gateway":
                app = gateway_app(options.provider, journal)
            else:
                continues = options.which != "not continuing"
                app = callstream_app(options.provider, options.maker, journal, sessions, continues=continues)
            with asyncio.Runner(
                loop_factory=uvicorn.Config(app).get_loop_factory()
            ) as runner:  # as `callstream serve` and `callstream gateway`
                runner.run(serve(app, sockets=[listening], log_level="critical"))
        elif options.which == "forwarder":
            from bench.forwarder import forward

            asyncio.run(forward(listening, options.provider))
        else:
            config = uvicorn.Config(ag_ui_adk_app(options.provider, options.maker), log_level="critical")
            with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:  # as uvicorn.run
                runner.run(uvicorn.Server(config).serve([listening]))


if __name__ == "__main__":
    main()
