"""What a person sees and does, in a real browser, before a real server and an agent of google-adk."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from callstream import Callstream
from callstream.calls import DECLINED
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReleased,
    CallReturned,
    CallRunningEarly,
    CallStarted,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    Question,
    RunResumed,
    StateChanged,
    TextAppended,
)
from tests.page.inspector import Inspector
from tests.page.stage import BIG_INTEGER, DOCUMENT, VERSE, Stage

CONTENT = '[aria-label="content"]'


# -- arguments while they are written ----------------------------------------------------------------------------------


def test_argument_grows_survives_a_reload_and_ends_exact(inspector: Inspector, stage: Stage, page: Page) -> None:
    stage.provider.hold(after=180)
    inspector.send("Write down how tides work.")
    inspector.count_steps(CONTENT)
    card = inspector.expect_state("write_document", "writing arguments")
    expect(page.locator(".run-feed")).to_have_text("live")
    assert stage.provider.held.wait(30)
    box = inspector.string(card, "content")
    expect(box).to_contain_text("Spring and neap")
    before = inspector.steps()
    shown = inspector.text_of(box)
    assert DOCUMENT.startswith(shown)
    assert 0 < len(shown) < len(DOCUMENT)
    assert "#/threads/" in page.url

    page.reload()
    inspector.count_steps(CONTENT)
    inspector.expect_state("write_document", "writing arguments")
    expect(box).to_contain_text("Spring and neap")
    assert inspector.text_of(box) == shown
    expect(card).to_contain_text("title")

    stage.provider.release()
    inspector.expect_state("write_document", "completed")
    inspector.expect_outcome("finished")
    assert inspector.text_of(box) == DOCUMENT
    after = inspector.steps()
    assert min(after) >= len(shown)
    assert len(before | after) >= 20
    expect(page.get_by_text("Written. Is there anything else?")).to_be_visible()
    expect(page.get_by_text("I will write that down.")).to_be_visible()
    for fact in ("first argument", "deltas", "deltas/s", "characters", "ran"):
        expect(card.locator(f'[data-fact="{fact}"] dd')).not_to_be_empty()
    expect(card).to_contain_text(str(BIG_INTEGER))


def test_connection_lost_in_the_middle(inspector: Inspector, stage: Stage, page: Page) -> None:
    """What comes while the browser is cut off is there when it is back."""
    card, _ = _miss_the_rest(inspector, stage, page)
    page.context.set_offline(False)
    inspector.expect_state("write_document", "completed")
    expect(page.get_by_text("The server does not answer.")).to_be_hidden()
    assert inspector.text_of(inspector.string(card, "content")) == DOCUMENT


@pytest.mark.slow
def test_compacted_while_away(inspector: Inspector, stage: Stage, page: Page) -> None:
    """The reader's place is gone when it comes back, because compaction has folded the records around it."""
    card, run_id = _miss_the_rest(inspector, stage, page)

    async def compact(cs: Callstream) -> int:
        return await cs.journal.compact(run_id)

    assert stage.call(compact) > 100
    page.context.set_offline(False)
    inspector.expect_state("write_document", "completed")
    assert inspector.text_of(inspector.string(card, "content")) == DOCUMENT
    assert page.locator("article").count() == 1
    expect(card.locator('[data-fact="deltas/s"]')).to_be_hidden()


def _miss_the_rest(inspector: Inspector, stage: Stage, page: Page) -> tuple[Locator, str]:
    """Cuts the browser off while arguments are written, and ends the run. Returns the call's card and the run's id."""
    stage.provider.hold(after=120)
    inspector.send("write")
    card = inspector.expect_state("write_document", "writing arguments")
    assert stage.provider.held.wait(30)
    expect(inspector.string(card, "content")).to_be_visible()
    page.context.set_offline(True)  # nothing new gets through
    stage.cut()  # and what is there ends
    expect(page.get_by_text("connection lost, trying again")).to_be_visible()
    expect(page.get_by_text("The server does not answer.")).to_be_visible()
    stage.provider.release()
    return card, _wait_until_ended(stage, page)


def _wait_until_ended(stage: Stage, page: Page) -> str:
    thread_id = page.url.split("/threads/")[1].split("/")[0]

    async def ended(cs: Callstream) -> str:
        (row,) = await cs.journal.runs(thread_id=thread_id)
        async for record in cs.journal.follow(row.run_id):
            assert record.run_id == row.run_id
        return row.run_id

    return stage.call(ended)


@pytest.mark.slow
def test_server_away_and_back(inspector: Inspector, stage: Stage, page: Page) -> None:
    inspector.send("endless")
    inspector.expect_state("write_document", "writing arguments")
    stage.stop()
    try:
        expect(page.get_by_text("The server does not answer.")).to_be_visible()
        page.get_by_role("button", name="Try now").click()
        expect(page.get_by_text("The server does not answer.")).to_be_visible()
    finally:
        stage.start()
    expect(page.get_by_text("The server does not answer.")).to_be_hidden()
    inspector.expect_state("write_document", "discarded")


def test_truncated_call_says_why(inspector: Inspector) -> None:
    inspector.send("cut")
    card = inspector.expect_state("write_document", "discarded")
    expect(card.locator(".outcome")).to_contain_text(
        "truncated The response ended before the call did. The tool never ran."
    )
    expect(card).to_contain_text("Cut")
    expect(card.locator(".is-live")).to_have_count(0)  # nobody writes it any more


def test_a_tool_that_began_early_is_not_said_never_to_have_run(inspector: Inspector, stage: Stage, page: Page) -> None:
    async def begin_early(cs: Callstream) -> None:
        async with cs.run("early") as run:
            await run.record([MessageReceived("user", "begin early"), CallStarted("e", "write_document")])
            await run.record(
                [ArgsAppended("e", '{"title": "A'), CallRunningEarly("e"), CallDiscarded("e", "interrupted")]
            )

    stage.call(begin_early)
    page.get_by_role("link", name="begin early").click()
    card = inspector.expect_state("write_document", "discarded")
    expect(card.locator(".outcome")).to_contain_text("The tool had begun; its result does not count.")


def test_failed_call_shows_its_error(inspector: Inspector) -> None:
    inspector.send("fail")
    card = inspector.expect_state("fail", "failed")
    expect(card.locator(".outcome")).to_contain_text("it could not be done: no paper")


def test_a_declined_call_is_not_said_to_have_failed(inspector: Inspector, stage: Stage, page: Page) -> None:
    names = {f"remove_{number}": said for number, said in enumerate(sorted(DECLINED))}

    async def decline(cs: Callstream) -> None:
        async with cs.run("declined") as run:
            await run.record([MessageReceived("user", "remove them")])
            for name, said in names.items():
                await run.record([CallStarted(name, name), CallCompleted(name), CallFailed(name, said)])

    stage.call(decline)
    page.get_by_role("link", name="remove them").click()
    for name, said in names.items():
        card = inspector.expect_state(name, "declined")
        expect(card.locator(".outcome h4")).to_have_text("Declined")
        expect(card.locator(".outcome")).to_contain_text(said)


def test_progress_moves(inspector: Inspector, page: Page) -> None:
    inspector.send("slow")
    bar = inspector.card("print_copies").get_by_role("progressbar")
    expect(bar).to_have_attribute("max", "10000")
    before = 0
    for _ in range(3):
        expect(bar).not_to_have_attribute("value", str(before))
        after = bar.evaluate("(bar) => bar.value")
        assert after > before
        before = after
    expect(inspector.card("print_copies")).to_contain_text("of 10,000 · printing")
    page.get_by_role("button", name="Stop run 1").click()
    inspector.expect_outcome("cancelled")


# -- what a person does -------------------------------------------------------------------------------------------------


def test_approve(inspector: Inspector, page: Page) -> None:
    inspector.send("approve")
    inspector.expect_state("publish", "awaiting an answer")
    card = page.get_by_role("article", name="publish", exact=True)
    expect(card).to_contain_text("moonstruck poets")
    page.reload()
    inspector.expect_state("publish", "awaiting an answer")
    card.get_by_label("Comment (optional)").fill("Go ahead.")
    card.get_by_role("button", name="Approve").click()
    inspector.expect_state("publish", "completed")
    expect(card.locator(".outcome")).to_contain_text("published")
    expect(card.locator(".answer")).to_have_count(0)
    expect(page.get_by_text("Published.", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="Run 2")).to_be_visible()
    page.get_by_role("button", name="publish", exact=True).click()
    expect(card).to_be_focused()


@pytest.mark.slow
def test_thread_that_waits_for_an_answer_says_so_in_the_list(inspector: Inspector, page: Page) -> None:
    inspector.send("approve")
    card = inspector.expect_state("publish", "awaiting an answer")
    waits = page.get_by_role("link", name="waits for an answer")
    expect(waits).to_have_count(1)
    expect(waits).to_have_attribute("aria-current", "page")
    page.get_by_role("button", name="New thread").click()
    expect(waits).to_be_visible()
    expect(waits).not_to_have_attribute("aria-current", "page")
    waits.click()
    card.get_by_role("button", name="Approve").click()
    inspector.expect_state("publish", "completed")
    expect(waits).to_have_count(0)


def test_reject(inspector: Inspector, page: Page) -> None:
    inspector.send("approve")
    card = inspector.expect_state("publish", "awaiting an answer")
    card.get_by_role("button", name="Reject").click()
    expect(card.locator(".answer")).to_have_count(0)
    expect(card.locator(".outcome")).to_contain_text("reject")


def test_answer_with_json(inspector: Inspector) -> None:
    inspector.send("approve")
    card = inspector.expect_state("publish", "awaiting an answer")
    card.get_by_text("Answer with JSON").click()
    answer = card.get_by_label("Answer", exact=True)
    answer.fill('{"approved": tru')
    card.get_by_role("button", name="Send JSON").click()
    expect(card.get_by_role("alert")).to_contain_text("This is not JSON")
    answer.fill('{"confirmed": true}')
    card.get_by_role("button", name="Send JSON").click()
    inspector.expect_state("publish", "completed")


def test_stop(inspector: Inspector, page: Page) -> None:
    inspector.send("endless")
    card = inspector.expect_state("write_document", "writing arguments")
    expect(inspector.string(card, "content")).to_be_visible()
    page.locator("#composer").get_by_role("button", name="Stop").click()
    inspector.expect_outcome("cancelled")
    inspector.expect_state("write_document", "discarded")
    expect(card.locator(".outcome")).to_contain_text("aborted")
    assert (VERSE * 3000).startswith(inspector.text_of(inspector.string(card, "content")))
    expect(page.locator("#composer").get_by_role("button", name="Send")).to_be_visible()


def test_thread_goes_on(inspector: Inspector, page: Page) -> None:
    inspector.send("approve one")
    inspector.expect_outcome("finished")
    inspector.send("fail two")
    expect(page.get_by_role("heading", name="Run 2")).to_be_visible()
    inspector.expect_state("fail", "failed")
    runs = page.get_by_role("list", name="Runs").get_by_role("link")
    expect(runs).to_have_count(2)
    runs.last.click()
    assert "/runs/" in page.url
    page.get_by_role("button", name="New thread").click()
    expect(page.get_by_role("heading", name="Tool calls, while they are written")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Run 1")).to_be_visible()


@pytest.mark.slow
def test_second_run_is_refused(inspector: Inspector, page: Page, stage: Stage) -> None:
    """The page refuses it by itself while it knows of the first; one that has not heard of it shows the server's answer."""
    inspector.send("approve")
    inspector.expect_outcome("finished")
    deaf = page.context.new_page()
    deaf.goto(page.url)
    expect(deaf.locator(".run-head .badge")).to_have_text("Outcome: finished")
    deaf.route("**/api/**", lambda route: route.abort())
    inspector.send("endless")
    inspector.expect_state("write_document", "writing arguments")
    inspector.send("write")
    expect(page.locator("#composer").get_by_role("alert")).to_contain_text("This thread has an active run.")
    Inspector(deaf, stage).send("write")
    expect(deaf.locator("#composer").get_by_role("alert")).to_contain_text("thread")
    expect(deaf.get_by_label("Message", exact=True)).to_have_value("write")
    deaf.close()
    page.get_by_role("button", name="Stop run 2").click()
    inspector.expect_outcome("cancelled")


def test_unknown_thread_is_a_new_one(inspector: Inspector, page: Page) -> None:
    inspector.open("/#/threads/never%20seen")
    inspector.send("fail")
    inspector.expect_state("fail", "failed")
    assert page.url.endswith("#/threads/never%20seen")


@pytest.mark.slow
def test_run_of_another_process(inspector: Inspector, stage: Stage, page: Page, tmp_path: Path) -> None:
    """Another Callstream writes into the same journal: the page finds the thread by itself, and follows it live."""
    url = f"sqlite:///{stage.folder}/calls.db"

    async def begin(_: Callstream) -> tuple[Callstream, Any]:
        other = Callstream(url)
        run = await other.start("another's thread", as_current=False)
        await run.record([MessageReceived("user", "from elsewhere"), CallStarted("far", "far_call")])
        await run.record([ArgsAppended("far", '{"text": "as far as')])
        return other, run

    other, run = stage.call(begin)
    page.get_by_role("link", name="from elsewhere").click()
    card = inspector.expect_state("far_call", "writing arguments")
    expect(card.locator(".string")).to_have_text("as far as")

    async def finish(_: Callstream) -> None:
        await run.record([ArgsAppended("far", ' it goes"}'), CallCompleted("far"), CallReturned("far", [1, 2])])
        await run.finish()
        await other.aclose()

    stage.call(finish)
    inspector.expect_state("far_call", "completed")
    expect(card.locator(".string")).to_have_text("as far as it goes")


def test_a_question_of_google_adks_is_a_question(inspector: Inspector, stage: Stage, page: Page) -> None:
    """Its name and its arguments are google-adk's own business; they are there for those who look."""
    books = json.dumps(
        {"originalFunctionCall": {"id": "d", "args": {"path": "a"}, "name": "delete"}, "toolConfirmation": {}}
    )
    asked = Question(reason="confirmation", message="Delete a?", about="d")

    async def ask(cs: Callstream) -> None:
        async with cs.run("asked") as run:
            await run.record([MessageReceived("user", "delete it"), CallStarted("d", "delete")])
            await run.record([CallCompleted("d", '{"path": "a"}'), CallAwaiting("d", is_paused=True)])
            await run.record([CallStarted("q", "adk_request_confirmation"), CallCompleted("q", books)])
            await run.record([CallAwaiting("q", asked)])

    async def answer(cs: Callstream) -> None:
        async with cs.run("asked") as run:
            await run.answer("q", {"confirmed": True})
            await run.answer("d", "deleted")

    stage.call(ask)
    page.reload()
    page.get_by_role("link", name="delete it").click()
    card = inspector.expect_state("Confirmation of delete", "awaiting an answer")
    deleting = inspector.expect_state("delete", "awaiting an answer")
    expect(deleting).to_contain_text("delete waits for your answer")
    expect(deleting).to_contain_text("Delete a?")
    stage.call(answer)
    page.reload()
    inspector.expect_state("Confirmation of delete", "completed")
    inspector.expect_state("delete", "completed")
    expect(card.locator(".card-panel")).to_be_hidden()
    assert "adk_request" not in page.locator("#main").inner_text()
    card.get_by_text("Tree", exact=True).click()
    expect(card.locator(".card-panel")).to_be_visible()
    expect(card.locator(".card-panel")).to_contain_text("originalFunctionCall")


def test_threads_that_failed_are_marked_and_found(inspector: Inspector, stage: Stage, page: Page) -> None:
    async def write(cs: Callstream) -> None:
        for thread, fails in (("good", False), ("bad", True)):
            try:
                async with cs.run(thread) as run:
                    await run.record([MessageReceived("user", f"a {thread} one"), CallStarted(f"c-{thread}", "look")])
                    await run.record([CallCompleted(f"c-{thread}", "{}"), CallExecuting(f"c-{thread}")])
                    if fails:
                        await run.fail(f"c-{thread}", "no paper")
                        raise ValueError("no paper")
                    await run.complete(f"c-{thread}", "seen")
            except ValueError:
                pass

    stage.call(write)
    page.reload()
    failed = page.locator("a.thread-link", has_text="a bad one")
    expect(failed.locator(".failed-mark")).to_have_text("failed")
    expect(page.locator("a.thread-link", has_text="a good one").locator(".failed-mark")).to_have_count(0)
    search = page.get_by_label("Search threads")
    search.fill("GOOD one")
    expect(failed).to_have_count(0)
    expect(page.locator("a.thread-link")).to_contain_text(["a good one"])
    search.fill("nothing of the kind")
    expect(page.get_by_text("No thread that is loaded has these words.")).to_be_visible()
    search.fill("")
    failed.click()
    expect(page.locator(".run-reason")).to_have_text("look failed, and the run with it.")
    expect(page.locator("#main").get_by_text("no paper")).to_have_count(1)


def test_marks_of_a_thread_stand_in_its_own_entry(inspector: Inspector, stage: Stage, page: Page) -> None:
    """Of one that works and waits, too, and of one that has failed and waits."""
    opened: list[Any] = []

    async def write(cs: Callstream) -> None:
        for thread in ("works", "fails"):
            run = await cs.start(thread, as_current=False)
            await run.record([MessageReceived("user", f"it {thread}"), CallStarted(f"c-{thread}", "ask")])
            await run.record([CallCompleted(f"c-{thread}", "{}"), CallAwaiting(f"c-{thread}")])
            opened.append(run)
        await opened[1].end(ValueError("no paper"))

    async def end(cs: Callstream) -> None:
        await opened[0].end(None)

    stage.call(write)
    try:
        page.reload()
        for thread, mark in (("works", "active"), ("fails", "failed")):
            entry = page.locator("a.thread-link", has_text=f"it {thread}")
            expect(entry.locator(f".{mark}-mark")).to_have_text(mark)
            expect(entry.locator(".waiting-mark")).to_be_visible()
            around, inside = entry.bounding_box(), entry.locator(f".{mark}-mark").bounding_box()
            assert around is not None
            assert inside is not None
            assert inside["y"] + inside["height"] <= around["y"] + around["height"]
    finally:
        stage.call(end)


def test_calls_of_other_kinds(inspector: Inspector, stage: Stage, page: Page) -> None:
    """A free-text tool, arguments that are no JSON, and a call that nobody tells the end of."""

    async def write(cs: Callstream) -> None:
        async with cs.run("kinds") as run:
            await run.record([MessageReceived("user", "all kinds", attachments=("image/png",))])
            await run.record(
                [CallStarted("free", "free_text", encoding="text"), ArgsAppended("free", "print('\"{')\n")]
            )
            await run.record([ArgsAppended("free", "pass"), CallCompleted("free"), CallReleased("free")])
            await run.record([CallStarted("bad", "bad_json"), ArgsAppended("bad", '{"right": 1, wrong')])
            await run.record([CallDiscarded("bad", "malformed", "expected a key")])
            await run.record([CallStarted("odd", "odd_progress"), CallCompleted("odd"), CallExecuting("odd")])
            await run.record([CallProgressed("odd", {"phase": ["one", "two"]}), CallReturned("odd", None)])
            await run.record([CallStarted("all", "all_at_once"), CallCompleted("all", '{"size": 12}')])
            await run.record([CallStarted("said", "said_at_once", encoding="text"), CallCompleted("said", '"pass"')])
            await run.record([StateChanged({"page": 7}), StateChanged(patch=[{"op": "remove", "path": "/page"}])])

    stage.call(write)
    page.reload()  # by itself the page looks for threads of others every few seconds
    page.get_by_role("link", name="all kinds").click()
    free = inspector.expect_state("free_text", "released")
    assert inspector.text_of(inspector.string(free, "arguments")) == "print('\"{')\npass"
    bad = inspector.expect_state("bad_json", "discarded")
    expect(bad).to_contain_text("Not JSON from character 13 on")
    expect(bad).to_contain_text("expected a key")
    expect(bad.locator(".row")).to_have_text("right1")
    odd = inspector.expect_state("odd_progress", "completed")
    expect(odd.locator(".progress")).to_contain_text("two")
    expect(odd.locator(".outcome")).to_have_text("Resultnull")
    expect(odd.locator(".mistake")).to_be_hidden()
    whole = inspector.expect_state("all_at_once", "released")
    expect(whole.locator(".card-panel .row")).to_have_text("size12")
    said = inspector.expect_state("said_at_once", "released")
    expect(said.locator(".card-panel .string")).to_have_text("pass")
    expect(page.locator(".saying.input")).to_contain_text("image/png")
    expect(page.locator(".note", has_text="state changed")).to_have_count(1)


def test_what_is_void_is_struck_through(inspector: Inspector, stage: Stage, page: Page) -> None:
    """A process died in the middle of a response, and another one went on with the run."""

    async def write(cs: Callstream) -> None:
        async with cs.run("killed") as run:
            await run.record([MessageReceived("user", "go on"), MessageStarted("m"), TextAppended("m", "Half a wo")])
            await run.record([CallStarted("half", "half_call", message_id="m"), ArgsAppended("half", '{"a": "b')])
            await run.record([MessageStarted("inner", within="half"), TextAppended("inner", "Inside")])
            await run.record([RunResumed(2, ("m",)), CallDiscarded("half", "interrupted")])
            await run.record([MessageStarted("n"), TextAppended("n", "All words."), MessageEnded("n"), RunResumed(3)])

    stage.call(write)
    page.reload()
    page.get_by_role("link", name="go on").click()
    card = inspector.expect_state("half_call", "discarded")
    expect(card).to_have_class(re.compile("is-void"))
    expect(page.locator(".item > .is-void")).to_have_count(3)
    expect(page.locator(".is-void .void-mark")).to_have_count(3)
    for void in ("Half a wo", "Inside"):
        expect(page.locator(".is-void", has_text=void)).to_have_css("text-decoration-line", "line-through")
    expect(page.locator(".saying.text", has_text="All words.")).not_to_have_class(re.compile("is-void"))
    first, second = page.locator(".note.resumed").all()
    expect(first).to_have_text(
        "attempt 2: another process goes on with the run; the response that was cut is void, the model is asked again"
    )
    expect(second).to_have_text("attempt 3: another process goes on with the run")
    expect(page.locator(".run-facts")).to_contain_text("attempt 3")
