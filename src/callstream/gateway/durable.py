"""Each answer as a Durable Stream to read: its bytes from an offset on, and whether there are more to come.

Read-only, as the protocol allows: catching up and long-polling. An answer that broke off has no end; a reader is told so by
a 502 behind its last byte, since a stream that is merely closed would look whole.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from callstream.gateway.answers import Answer, AnswerBroken

_POLL_SECONDS: Final = 4.0
_PRIVATE: Final = {
    "cache-control": "private, no-store",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


async def read_durable(request: Request, answer: Answer) -> Response:
    """The answer's bytes from the offset in the query on."""
    offset = _offset(request.query_params.get("offset", "-1"), answer)
    if offset is None or offset > answer.size:
        return Response("expected an offset that this stream has given", 400, _PRIVATE, "text/plain")
    if request.query_params.get("live") == "long-poll" and offset == answer.size and not answer.is_over:
        await _wait(answer)
        if offset == answer.size and not answer.is_over:
            return Response(None, 204, _headers(answer))
    data = answer.content[offset:]
    if not data and answer.error is not None:
        return Response(
            "the answer broke off", 502, {**_PRIVATE, "stream-next-offset": _token(answer.size)}, "text/plain"
        )
    return Response(b"" if request.method == "HEAD" else data, 200, _headers(answer), answer.media_type)


async def _wait(answer: Answer) -> None:
    try:
        async with asyncio.timeout(_POLL_SECONDS):
            async for _ in answer.read(answer.size):
                return
    except (TimeoutError, AnswerBroken):
        pass


def _offset(text: str, answer: Answer) -> int | None:
    if text == "-1":
        return 0
    if text == "now":
        return answer.size
    return int(text) if text.isdecimal() and text.isascii() else None


def _token(size: int) -> str:
    return f"{size:020d}"


def _headers(answer: Answer) -> dict[str, str]:
    headers = {**_PRIVATE, "stream-next-offset": _token(answer.size), "stream-up-to-date": "true"}
    if answer.is_over and answer.error is None:
        headers["stream-closed"] = "true"
    return headers
