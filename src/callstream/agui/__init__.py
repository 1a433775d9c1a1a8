"""Runs as AG-UI 1.0: journal records in, events out. Pure.

``Translator`` is for a client that sees a run from its beginning, ``Conversation`` for one that joins, and for one that
wants a thread's messages; ``Onlooker`` follows a run for one that joined it. ``View`` says what they are shown, and a
``Presenter`` what becomes of that on one stream: ``Presentation``, or ``OlderClient`` for those before 1.0.
``encode_sse`` writes events, ``merge`` makes them fewer, ``Position`` is how far a client has read.
``Reader`` is the way back: AG-UI events of an agent, as events of a run.
"""

from __future__ import annotations

from callstream.agui.conversation import Conversation, Onlooker
from callstream.agui.events import AguiEvent, encode
from callstream.agui.messages import Message
from callstream.agui.presentation import (
    OlderClient,
    Position,
    Presentation,
    Presenter,
    encode_sse,
    for_older_client,
    merge,
)
from callstream.agui.reader import Reader
from callstream.agui.translator import Translator, View

__all__ = [
    "AguiEvent",
    "Conversation",
    "Message",
    "OlderClient",
    "Onlooker",
    "Position",
    "Presentation",
    "Presenter",
    "Reader",
    "Translator",
    "View",
    "encode",
    "encode_sse",
    "for_older_client",
    "merge",
]
