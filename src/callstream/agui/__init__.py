"""Runs as AG-UI 1.0: journal records in, events out. Pure.

``Translator`` is for a client that sees a run from its beginning, ``Conversation`` for one that joins later or wants a
thread's messages; ``Onlooker`` follows a run for a client that joined it. ``View`` says what clients are shown.
``encode_sse`` writes events, ``merge`` makes them fewer, ``Position`` is how far a client has read.
``Reader`` is the way back: AG-UI events of an agent, as events of a run. ``for_older_client``: for clients before 1.0.
"""

from __future__ import annotations

from callstream.agui.conversation import Conversation, Onlooker
from callstream.agui.events import AguiEvent, encode
from callstream.agui.messages import Message
from callstream.agui.presentation import Position, encode_sse, for_older_client, merge
from callstream.agui.reader import Reader
from callstream.agui.translator import Translator, View

__all__ = [
    "AguiEvent",
    "Conversation",
    "Message",
    "Onlooker",
    "Position",
    "Reader",
    "Translator",
    "View",
    "encode",
    "encode_sse",
    "for_older_client",
    "merge",
]
