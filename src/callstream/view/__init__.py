"""A run as it stands: its records folded into messages and calls. Pure.

There is one fold in Callstream, and this is it: what an AG-UI client is told when it joins, what a terminal draws and
what ``GET /api/runs/{run_id}/view`` answers are all made from it. A record costs the same however many came before it:
text is kept in pieces, and joined when it is asked for.

What is in a view belongs to it and changes as it is fed; ``as_json()`` is a copy that stays as it is.

Records are fed in the order of the places where they began: ``seq``, or ``first_seq`` of those that compaction has folded
(``RunView.of`` sees to that). A compacted run gives the same view, except that all text of a message is one passage then,
where its first one stood, and the numbers of records that are gone are those of the record that took their place.
"""

from __future__ import annotations

from callstream.view.condensed import condensed
from callstream.view.items import AnswerView, CallView, InputView, Item, MessageView, Outcome, Passage, message_of
from callstream.view.run import RunView

__all__ = [
    "AnswerView",
    "CallView",
    "InputView",
    "Item",
    "MessageView",
    "Outcome",
    "Passage",
    "RunView",
    "condensed",
    "message_of",
]
