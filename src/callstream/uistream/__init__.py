"""Runs as the AI SDK's UI message stream: journal records in, chunks out; its chat's requests in, AG-UI input out. Pure.

``ChunkTranslator`` translates a turn, live or from its beginning; ``ui_messages`` returns the messages of a thread;
``read_request`` reads the requests of ``useChat``. ``Merger`` makes chunks fewer and ``encode_sse`` writes them.
"""

from __future__ import annotations

from callstream.uistream.messages import ChatTurn, begins_turn, fold, turns, ui_messages
from callstream.uistream.request import ChatRequest, read_request
from callstream.uistream.translator import DONE, HEADERS, Chunk, ChunkTranslator, Merger, Sdk, encode_sse

__all__ = [
    "DONE",
    "HEADERS",
    "ChatRequest",
    "Chunk",
    "Merger",
    "Sdk",
    "ChunkTranslator",
    "ChatTurn",
    "begins_turn",
    "encode_sse",
    "fold",
    "read_request",
    "turns",
    "ui_messages",
]
