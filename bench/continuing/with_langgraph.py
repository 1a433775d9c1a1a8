"""LangGraph with a checkpointer."""

import asyncio

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # +

from bench.continuing.tools import FOLDER, INSTRUCTION, PROVIDER, look_up, write_document


async def main() -> None:
    model = ChatOpenAI(model="gpt-4o", api_key="none", base_url=PROVIDER, streaming=True, max_retries=0)
    async with AsyncSqliteSaver.from_conn_string(str(FOLDER / "checkpoints.db")) as saver:  # +
        tools = [look_up, write_document]
        agent = create_agent(model, tools, system_prompt=INSTRUCTION, checkpointer=saver)
        config = {"configurable": {"thread_id": "thread"}}  # +
        state = await agent.aget_state(config)  # +
        asked = None if state.values else {"messages": [{"role": "user", "content": "Go"}]}
        async for _ in agent.astream(asked, config, stream_mode="messages"):
            pass
        (FOLDER / "finished").touch()


asyncio.run(main())
