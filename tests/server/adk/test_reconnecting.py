"""The JavaScript of docs/howto/reconnecting.md, run by node with the official client, under a path prefix."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from callstream import Callstream
from callstream.adk import ADKAgent
from callstream.ag_ui_adk import add_adk_fastapi_endpoint
from callstream.server import create_app
from callstream.testing import Finish, Text
from tests.adk.hosting import Models, agent_of, scripted
from tests.captures import ROOT
from tests.server.serving import Server, run_input, serving

PAGE = (ROOT / "docs" / "howto" / "reconnecting.md").read_text(encoding="utf-8")
SERVER, _, ENDPOINT = re.findall(r"```js\n(.*?)```", PAGE, re.DOTALL)
THREAD = "tea / time?"


async def joined(program: str, url: str, thread: str, folder: Path) -> list[dict[str, Any]]:
    """The messages that the page's program ends with."""
    assert program.count("https://example.com/agui") == 1
    (folder / "node_modules").symlink_to(ROOT / "tests" / "agui" / "client" / "node_modules")
    said = program.replace("https://example.com/agui", url)
    file = folder / "page.mjs"
    file.write_text(f"const threadId = {json.dumps(thread)};\n{said}\nconsole.log(JSON.stringify(agent.messages));\n")
    process = await asyncio.create_subprocess_exec("node", str(file), stdout=-1, stderr=-1)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    messages: list[dict[str, Any]] = json.loads(out)
    return messages


async def check(server: Server, path: str, program: str, folder: Path) -> None:
    async with server.stream("POST", path, json=run_input("Hello", thread=THREAD)) as stream:
        await stream.all()
    messages = await joined(program, server.url + path, THREAD, folder)
    assert [(message["role"], message["content"]) for message in messages] == [("user", "Hello"), ("assistant", "Hi.")]


async def test_the_server_under_a_prefix(cs: Callstream, models: Models, tmp_path: Path, official_client: None) -> None:
    async with scripted("gemini", [Text("Hi."), Finish()]) as provider:
        inner = create_app(ADKAgent(agent_of(models(provider)), "app", user_id="ada", callstream=cs))
        app = Starlette(routes=[Mount("/shop/v1", inner)], lifespan=lambda _: inner.router.lifespan_context(inner))
        async with serving(app) as server:
            await check(server, "/shop/v1/agui", SERVER, tmp_path)
            for path, code in (("/shop/v1/threads/none/connect", "not_found"), ("/threads/none/connect", None)):
                answer = await server.post(path)
                assert answer.status_code == 404
                assert code_of(answer) == code


async def test_the_fastapi_endpoint(cs: Callstream, models: Models, tmp_path: Path, official_client: None) -> None:
    async with scripted("gemini", [Text("Hi."), Finish()]) as provider:
        app = FastAPI()
        agent = ADKAgent(agent_of(models(provider)), "app", user_id="ada", callstream=cs)
        add_adk_fastapi_endpoint(app, agent, path="/shop/agui")
        async with serving(app) as server:
            await check(server, "/shop/agui", ENDPOINT, tmp_path)


async def test_an_unknown_path_is_not_mistaken_for_an_unknown_thread(cs: Callstream) -> None:
    async def agent(given: Any) -> None:
        pass

    async with serving(create_app(agent, callstream=cs)) as server:
        answer = await server.post("/shop/threads/none/connect")
    assert (answer.status_code, code_of(answer)) == (404, "unknown_path")


def code_of(answer: httpx.Response) -> str | None:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None


@pytest.mark.parametrize("program", [SERVER, ENDPOINT])
def test_the_page_has_programs(program: str) -> None:
    assert "connectAgent()" in program
