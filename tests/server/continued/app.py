"""The same agent behind a server."""

from __future__ import annotations

from ag_ui.core import RunAgentInput

from callstream.server import create_app
from tests.server.continued.program import cs, settle


async def agent(given: RunAgentInput) -> None:
    await settle(str(given.messages[-1].content))


app = create_app(agent, callstream=cs, continues=True)
