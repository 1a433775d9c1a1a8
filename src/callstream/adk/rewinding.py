"""Questions that were asked in turns which a program has rewound (``Runner.rewind_async``).

google-adk keeps such turns in the session, with an event after them that says from where on they do not count; no plugin is
called. Nobody can answer a question of theirs any more, so the next run of the thread gives their calls up.
"""

from __future__ import annotations

from google.adk.events.event import Event
from google.adk.sessions.session import Session

from callstream.adk.calls import SessionCalls
from callstream.calls import CallState
from callstream.events import CallDiscarded
from callstream.runtime import Run

REWOUND = "the conversation was rewound to before this call"


async def give_up_rewound(run: Run, session: Session) -> None:
    """Discards calls of rewound turns that await an answer."""
    rewound = rewound_calls(session)
    if not rewound:
        return
    awaiting = await run.directory.journal.calls(
        thread_id=run.thread_id, principal=run.principal, states=[CallState.AWAITING]
    )
    calls = SessionCalls(session)
    for call in awaiting:
        if calls.id_of(call) in rewound and await run.resume(call.call_id) is not None:
            await run.record([CallDiscarded(call.call_id, "aborted", REWOUND)])


def rewound_calls(session: Session) -> set[str]:
    """google-adk's ids of the calls that are in rewound turns alone."""
    if not any(event.actions.rewind_before_invocation_id for event in session.events):
        return set()
    live = _live(session.events)
    kept = {id(event) for event in live}
    return _call_ids([event for event in session.events if id(event) not in kept]) - _call_ids(live)


def _live(events: list[Event]) -> list[Event]:
    """The events that count, the last first: a rewinding event drops all from the turn that it names up to itself."""
    first: dict[str, int] = {}
    for number, event in enumerate(events):
        first.setdefault(event.invocation_id, number)
    live: list[Event] = []
    at = len(events) - 1
    while at >= 0:
        before = events[at].actions.rewind_before_invocation_id
        if before:
            at = min(at, first.get(before, at))
        else:
            live.append(events[at])
        at -= 1
    return live


def _call_ids(events: list[Event]) -> set[str]:
    return {call.id for event in events for call in event.get_function_calls() if call.id}
