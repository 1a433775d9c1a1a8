"""The program of docs/howto/continuing.md, whose tools tell what they do, and hang where the environment says so."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic

from callstream import Callstream, current_run, tool

LOG = Path(os.environ["CONTINUED_LOG"])
HANGS_AT = os.environ.get("CONTINUED_HANGS_AT")


def write(did: str) -> None:
    with LOG.open("a") as log:
        log.write(f"{did}\n")


async def note(did: str) -> None:
    write(did)
    if did == HANGS_AT:
        print("hanging", flush=True)
        await asyncio.Event().wait()


@tool(replay="safe")
async def find_order(order: str) -> dict[str, Any]:
    """Finds an order."""
    await note(f"find {order}")
    return {"order": order, "amount": 40}


@tool
async def pay_back(amount: int) -> str:
    """Pays an amount back to the customer."""
    await note(f"pay {amount}")
    return "paid"


cs = Callstream(os.environ["CONTINUED_JOURNAL"], tools=[find_order, pay_back])
client = AsyncAnthropic(
    base_url=os.environ["CONTINUED_PROVIDER"], api_key="none", max_retries=0, http_client=cs.http_client()
)
TOOLS: list[Any] = [find_order.schema("anthropic"), pay_back.schema("anthropic")]


async def settle(question: str) -> str:
    """The agent: it asks until nothing is left to do."""
    run = current_run()
    assert run is not None
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        answer = await client.messages.create(
            model="claude-sonnet-5-5", max_tokens=4000, messages=messages, tools=TOOLS
        )
        messages.append({"role": "assistant", "content": answer.content})
        results = await run.run_tools()
        if not results:
            return answer.content[-1].text  # type: ignore[union-attr]
        content = [
            {
                "type": "tool_result",
                "tool_use_id": result.wire_id,
                "content": result.text,
                "is_error": result.is_error,
            }
            for result in results
        ]
        messages.append({"role": "user", "content": content})


async def main(order: str) -> None:
    async with cs, client, cs.run(thread_id=f"order {order}", run_id=f"settle {order}", continues=True):
        print(await settle(f"Settle order {order}."), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
