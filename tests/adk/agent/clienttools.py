"""Client tools, and what a request says of their results."""

from __future__ import annotations

import json
from typing import Any

from ag_ui.core import Tool

SCHEMA = {
    "type": "object",
    "properties": {"color": {"type": "string", "const": "red"}, "size": {"$ref": "#/$defs/size"}},
    "required": ["color"],
    "additionalProperties": False,
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"size": {"type": ["integer", "null"], "exclusiveMinimum": 0}},
}
PAINT = Tool(name="paint", description="Paints the page.", parameters=SCHEMA)


def responses_in(body: bytes) -> list[Any]:
    contents = json.loads(body)["contents"]
    parts = [part for content in contents for part in content["parts"]]
    return [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
