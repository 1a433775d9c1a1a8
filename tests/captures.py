"""Recorded provider streams: real response bodies, and what the calls in them are.

They are not part of the repository. ``CALLSTREAM_WIRES`` names their folder, else ``../shared/wires`` beside the
repository is looked at. Where there is no such folder, tests that need it are skipped and say so; a folder that was
named but is not there is an error, so that nobody takes a skip for a pass.

::

    from tests.captures import Capture, body, each_capture


    @each_capture("anthropic")
    def test_recorded_calls_exact(capture: Capture) -> None:
        events = decoder_for("anthropic").feed(body(capture))
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callstream.wire.eventstream import write_event

ROOT = Path(__file__).resolve().parent.parent

WIRES = {
    "gemini": "gemini_stream_generate_content",
    "anthropic": "anthropic_messages",
    "openai_chat": "openai_chat",
    "openai_responses": "openai_responses",
    "cohere": "cohere_v2",
    "bedrock_converse": "bedrock_converse_stream",
    "bedrock_invoke": "bedrock_invoke_anthropic",
    "gemini_interactions": "gemini_interactions",
    "ollama": "ollama_chat",
}
"""The names that ``decoder_for`` takes, and the manifest's names for the same wires."""

OWN_TOOLS = frozenset({"apply_patch_call", "local_shell_call"})
"""OpenAI's own tools that the client runs. Their arguments are the object, where the manifest may have a part for their text."""
CLIENT_KINDS = OWN_TOOLS | {"function", "function_call", "functionCall", "tool_use", "toolUse", "custom_tool_call"}
"""Kinds of calls that the client executes. Other kinds run on the provider's side and give no call events."""


class CapturedCall(msgspec.Struct, frozen=True):
    """A call as the manifest tells it. ``final_args_json`` is None when the call never completed.

    ``args_text`` is the exact text, or an object with its sha256 and length where it is longer than 4,000 characters.
    """

    id: str | None
    name: str | None
    kind: str
    complete: bool
    final_args_json: str | None = None
    n_deltas: int | None = None
    args_text: str | dict[str, Any] | None = None
    item_id: str | None = None
    streamed: bool | None = None
    thought_signature: Any = None
    not_streamed: Any = None


class Capture(msgspec.Struct, frozen=True):
    """One line of the manifest. ``entry`` is that line whole, for what has no field here."""

    file: str
    provider: str
    wire: str
    tool_calls: tuple[CapturedCall, ...]
    quirks: tuple[str, ...] = ()
    read_sizes: tuple[int, ...] | None = None
    raw_file: str | None = None
    tools_file: str | None = None
    negative_control: bool = False
    entry: dict[str, Any] = {}

    @property
    def client_calls(self) -> tuple[CapturedCall, ...]:
        kinds = CLIENT_KINDS - {"toolUse"} if "toolUse_type:server_tool_use" in self.quirks else CLIENT_KINDS
        return tuple(_named(call) for call in self.tool_calls if call.kind in kinds)


def _named(call: CapturedCall) -> CapturedCall:
    """The call with the name of its tool: the manifest has the type of the item for those of OpenAI's own."""
    if call.kind not in OWN_TOOLS:
        return call
    return msgspec.structs.replace(call, name=call.kind.removesuffix("_call"), args_text=None)


@cache
def folder() -> Path | None:
    """Where the recorded streams are, None where there are none."""
    named = os.environ.get("CALLSTREAM_WIRES")
    place = Path(named) if named else ROOT.parent / "shared" / "wires"
    if (place / "MANIFEST.jsonl").is_file():
        return place
    if named:
        raise FileNotFoundError(f"CALLSTREAM_WIRES is {named!r}, and there is no MANIFEST.jsonl in it")
    return None


@cache
def _manifest() -> tuple[Capture, ...]:
    place = folder()
    if place is None:
        return ()
    lines = (place / "MANIFEST.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [msgspec.json.decode(line) for line in lines if line.strip()]
    return tuple(msgspec.convert({**entry, "entry": entry}, Capture) for entry in entries)


def captures(*wires: str) -> list[Capture]:
    """The captures of these wires (the decoder's name or the manifest's), of all wires where none is given."""
    wanted = {WIRES.get(wire, wire) for wire in wires}
    return [capture for capture in _manifest() if not wanted or capture.wire in wanted]


def body(capture: Capture) -> bytes:
    """The response body. Where only parsed payloads were kept, each is framed as one event of its wire."""
    data = _read(capture.file)
    if not capture.file.endswith(".jsonl"):
        return data
    if capture.wire.startswith("bedrock_"):
        events = [msgspec.json.decode(line) for line in data.split(b"\n") if line.strip()]
        return raw_body(capture) or b"".join(
            write_event(kind, msgspec.json.encode(payload)) for event in events for kind, payload in event.items()
        )
    if capture.wire == "ollama_chat":
        return data
    return b"".join(b"data: " + line + b"\n\n" for line in data.split(b"\n") if line.strip())


def raw_body(capture: Capture) -> bytes | None:
    """The body before it was decoded: a binary event stream, or Gemini's JSON array. None where it was not kept."""
    return None if capture.raw_file is None else _read(capture.raw_file)


def reads(capture: Capture) -> list[bytes] | None:
    """The body in the pieces in which the network gave it to the recorder. None where those were not recorded."""
    if capture.read_sizes is None:
        return None
    data, pieces, start = body(capture), [], 0
    for size in capture.read_sizes:
        pieces.append(data[start : start + size])
        start += size
    if start != len(data):
        raise ValueError(f"{capture.file}: the read sizes sum to {start}, the body has {len(data)} bytes")
    return pieces


def declared_tools(capture: Capture) -> list[dict[str, Any]]:
    """Names and schemas of the tools that the request declared, as far as they were kept."""
    if capture.tools_file is None:
        return []
    tools: list[dict[str, Any]] = msgspec.json.decode(_read(capture.tools_file))
    return tools


def each_capture(*wires: str, slow_above: int | None = None) -> pytest.MarkDecorator:
    """Runs a test once for each capture of these wires, as its argument ``capture``.

    ``slow_above``: captures of more bytes are for `make slow`, since the test takes long with them.
    """
    found = captures(*wires)
    if found:
        cases = [pytest.param(capture, id=capture.file, marks=_marks(capture, slow_above)) for capture in found]
    elif folder() is None:
        skipped = pytest.mark.skip(reason=NOT_THERE)
        cases = [pytest.param(None, id="no-recorded-streams", marks=[pytest.mark.wires, skipped])]
    else:
        raise LookupError(f"no capture of {wires} in the manifest")
    return pytest.mark.parametrize("capture", cases)


def _marks(capture: Capture, slow_above: int | None) -> list[pytest.MarkDecorator]:
    is_slow = slow_above is not None and len(body(capture)) > slow_above
    return [pytest.mark.wires, pytest.mark.slow] if is_slow else [pytest.mark.wires]


NOT_THERE = "the recorded provider streams are not here; CALLSTREAM_WIRES can name their folder"


def _read(name: str) -> bytes:
    place = folder()
    if place is None:
        pytest.skip(NOT_THERE)
    return (place / name).read_bytes()
