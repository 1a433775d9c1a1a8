from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from tests.sdks.gemini import GeminiSdk
from tests.sdks.sdk import NAMES, SCHEMA, Answer, loads


class InteractionsSdk(GeminiSdk):
    takes_httpx2 = False  # of google-genai 2; 3 does

    async def stream(self, client: Any) -> AsyncIterator[Any]:
        tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
        stream: AsyncIterator[Any] = await client.aio.interactions.create(
            model="gemini-3", input="go", tools=tools, stream=True, store=False
        )
        return stream

    def fold(self, events: list[Any]) -> Answer:
        """The SDK hands the events on; programs put them together by index, as here."""
        answer = Answer()
        calls: dict[int, list[Any]] = {}
        for event in events:
            match event.event_type:
                case "step.start":
                    assert event.index not in calls
                    if event.step.type == "function_call":
                        calls[event.index] = [event.step.id, event.step.name, "", event.step.arguments]
                case "step.delta":
                    self._delta(answer, calls, event.index, event.delta)
                case "interaction.completed":
                    answer.finish = event.interaction.status
                case "error":
                    raise RuntimeError(event.error.message)
        answer.calls = [(call_id, name, loads(text) or given) for call_id, name, text, given in calls.values()]
        return answer

    def _delta(self, answer: Answer, calls: dict[int, list[Any]], index: int, delta: Any) -> None:
        match delta.type:
            case "arguments_delta":
                calls[index][2] += delta.arguments
                answer.pieces += 1
            case "text":
                answer.text += delta.text
            case "thought_summary":
                answer.thoughts += delta.content.text

    async def whole(self, client: Any) -> Answer:
        interaction = await client.aio.interactions.create(model="gemini-3", input="go", store=False)
        answer = Answer()
        answer.finish = interaction.status
        for step in interaction.steps or ():
            match step.type:
                case "model_output":
                    answer.text += "".join(content.text for content in step.content or ())
                case "thought":
                    answer.thoughts += "".join(content.text for content in step.summary or ())
                case "function_call":
                    answer.calls.append((step.id, step.name, step.arguments))
        return answer

    def raw(self, base_url: str) -> tuple[str, dict[str, Any]]:
        return f"{base_url}/v1beta/interactions", {"model": "m", "stream": True, "input": "go", "store": False}
