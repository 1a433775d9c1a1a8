"""The current state of a run: its records folded into messages and calls. Pure.

There is one fold in Callstream, and this is it: ``RunView.feed`` says what a record changed, and AG-UI, the AI SDK's stream
and the terminal are tables over these changes. The view itself is the source of what a client gets when it joins, and of
the answer to ``GET /api/runs/{run_id}/view``. A record costs the same however many came before it: text is kept in pieces,
and joined on demand.

The objects in a view belong to it and change as it is fed; ``as_json()`` returns a copy that does not change.

Records are fed in the order of the places where they began: ``seq``, or ``first_seq`` for those that compaction has folded
(``RunView.of`` sees to that). A compacted run gives the same view, except that all text of a message is then one passage, in
the place of its first one, and the numbers of records that are gone are replaced by that of the folded record.
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
