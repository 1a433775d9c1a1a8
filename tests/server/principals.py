"""Principals by a header, and how a refusal looks."""

from __future__ import annotations

import json
from typing import Any

import httpx

from callstream.testing import Finish, Text

END = [Text("Done."), Finish()]
MARKER = "xyzzy-argument-text"
"""What must not show up anywhere else."""


def by_name(request: Any) -> str | None:
    name: str | None = request.headers.get("x-user")
    return name


def refused(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, (answer.request.url, answer.text)
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"code", "message"}


def called(call_id: str, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
