"""google-adk with its own resumability."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App, ResumabilityConfig  # +
from google.adk.integrations.openai import OpenAILlm
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from bench.continuing.tools import FOLDER, INSTRUCTION, PROVIDER, look_up, write_document

model = OpenAILlm(model="gpt-4o", api_key="none", base_url=PROVIDER)
root_agent = LlmAgent(name="writer", model=model, instruction=INSTRUCTION, tools=[look_up, write_document])


async def main() -> None:
    sessions = SqliteSessionService(str(FOLDER / "sessions.db"))
    app = App(name="app", root_agent=root_agent, resumability_config=ResumabilityConfig(is_resumable=True))  # +
    runner = Runner(app=app, session_service=sessions)
    key = {"user_id": "user", "session_id": "session"}
    session = await sessions.get_session(app_name="app", **key)  # +
    if session is None or not session.events:  # +
        if session is None:  # +
            await sessions.create_session(app_name="app", **key)
        asked = {"new_message": types.UserContent("Go")}
    else:  # +
        asked = {"invocation_id": session.events[-1].invocation_id}  # +
    config = RunConfig(streaming_mode=StreamingMode.SSE)
    async for event in runner.run_async(**key, **asked, run_config=config):
        if event.is_final_response() and not event.partial:
            (FOLDER / "finished").touch()


asyncio.run(main())
