"""A run as it stands: its records folded into messages and calls. Pure.

There is one fold in Callstream, and this is it: ``RunView.feed`` says what a record changed, and AG-UI, the AI SDK's stream
and the terminal are tables over these changes; what a client gets when it joins and what ``GET /api/runs/{run_id}/view``
answers are made from the view itself. A record costs the same however many came before it:
text is kept in pieces, and joined when it is asked for.

What is in a view belongs to it and changes as it is fed; ``as_json()`` is a copy that stays as it is.

Records are fed in the order of the places where they began: ``seq``, or ``first_seq`` of those that compaction has folded
(``RunView.of`` sees to that). A compacted run gives the same view, except that all text of a message is one passage then,
where its first one stood, and the numbers of records that are gone are those of the record that took their place.
"""

from __future__ import annotations

from callstream.view.items import AnswerView, CallView, InputView, Item, MessageView, Outcome, Part, Passage, message_of
from callstream.view.replay import condensed
from callstream.view.run import (
    Asked,
    Began,
    Closed,
    Ended,
    Grew,
    InputCame,
    MessageBegan,
    Opened,
    Progressed,
    RanEarly,
    Resumed,
    RunView,
    Settled,
    Signed,
    StateMoved,
    ViewChange,
)

__all__ = [
    "AnswerView",
    "Asked",
    "Began",
    "CallView",
    "Closed",
    "Ended",
    "Grew",
    "InputCame",
    "InputView",
    "Item",
    "MessageBegan",
    "MessageView",
    "Opened",
    "Outcome",
    "Part",
    "Passage",
    "Progressed",
    "RanEarly",
    "Resumed",
    "RunView",
    "Settled",
    "Signed",
    "StateMoved",
    "ViewChange",
    "condensed",
    "message_of",
]
