"""Pydantic AI with DBOS, its tools as steps."""

import asyncio

from dbos import DBOS, SetWorkflowID  # +
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability  # +
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from bench.continuing.tools import FOLDER, INSTRUCTION, PROVIDER, look_up, write_document

DBOS(config={"name": "app", "system_database_url": f"sqlite:///{FOLDER}/dbos.sqlite", "run_admin_server": False})  # +
look_up = DBOS.step()(look_up)  # +
write_document = DBOS.step()(write_document)  # +


async def handle(context: object, events: object) -> None:
    """Streams what the model says."""
    async for _ in events:  # type: ignore[attr-defined]
        pass


client = AsyncOpenAI(api_key="none", base_url=PROVIDER, max_retries=0)
model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=client))
durability = DBOSDurability(event_stream_handler=handle)  # +
agent = Agent(
    model,
    name="writer",
    instructions=INSTRUCTION,
    tools=[look_up, write_document],
    capabilities=[durability],  # +
)


@DBOS.workflow()  # +
async def run() -> str:  # +
    return (await agent.run("Go")).output


async def main() -> None:
    DBOS.launch()  # +
    if await DBOS.get_workflow_status_async("run") is None:  # +
        with SetWorkflowID("run"):  # +
            await DBOS.start_workflow_async(run)  # +
    handle = await DBOS.retrieve_workflow_async("run")  # +
    await handle.get_result()
    (FOLDER / "finished").touch()
    DBOS.destroy()  # +


asyncio.run(main())
