"""The real Claude Code and Codex through the gateway, before a scripted provider: ``make gateway-programs``.

Nothing is set but the base URL and a key. They run in a network of their own where the machine allows it, with nothing in it
but loopback, in an empty home and with an environment that has nothing of this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from callstream.calls import CallState
from callstream.gateway import GatewaySettings
from callstream.guards import Rule, Rules
from callstream.testing import Finish, ReceivedRequest, ScriptedProvider, Text, ToolCall
from tests.gateway.gates import Cutter, Gate, Valve, before, gate, port_of, until_unread
from tests.npm import install
from tests.server.serving import run_input, tool_message

FOLDER = Path(__file__).parent / "programs"
WORDS = "The moon pulls at the sea, and the sea follows. " * 4
DONE = "All of it is done now."
LIMIT = 420.0
UNSHARED = "CALLSTREAM_UNSHARED"


class Program(NamedTuple):
    """``call``: of a tool that the program has, which writes ``argument`` to the terminal."""

    name: str
    wire: str
    command: Callable[[str, str], list[str]]
    call: Callable[[str], ToolCall]
    is_main: Callable[[Any], bool]
    """Whether a request is of the conversation itself, and not beside it."""
    is_sub_agent: Callable[[ReceivedRequest], bool]
    spawning: list[ToolCall]
    """The calls, one after the other, that have a sub-agent work."""
    after_the_last_item: int = 0
    """How many events come when all that was written has ended: a program that has it all asks for something else."""

    def answer(self, printed: str) -> str:
        """What it prints as the model's answer: some print more before it."""
        at = printed.rfind(WORDS.strip())
        return printed[at:] if at >= 0 else printed


def _claude(base_url: str, prompt: str) -> list[str]:
    binary = next(FOLDER.glob("node_modules/@anthropic-ai/claude-code-*/claude"))  # npm installs that of this machine
    return [str(binary), "-p", prompt, "--allowedTools", "Bash,Task,Agent"]


def _codex(base_url: str, prompt: str) -> list[str]:
    script = FOLDER / "node_modules/@openai/codex/bin/codex.js"
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return ["node", str(script), "exec", *options, "-c", f'openai_base_url="{base_url}"', prompt]


_LOOKING = ToolCall(
    "Agent", {"description": "Looks", "prompt": "Look at the sea.", "subagent_type": "general-purpose"}, size=9
)
PROGRAMS = (
    Program(
        "Claude Code",
        "anthropic",
        _claude,
        lambda text: ToolCall("Bash", {"command": f"echo {text}", "description": "Says it"}, size=6),
        lambda body: bool(body.get("tools")),
        lambda request: "x-claude-code-agent-id" in request.headers,
        [_LOOKING],
    ),
    Program(
        "Codex",
        "openai_responses",
        _codex,
        lambda text: ToolCall("exec_command", {"cmd": f"echo {text}"}, size=6),
        lambda body: True,
        lambda request: request.headers.get("thread-id") != request.headers.get("session-id"),
        [
            ToolCall("spawn_agent", {"task_name": "look", "message": "Look at the sea."}, namespace="collaboration"),
            ToolCall("wait_agent", {"timeout_ms": 30_000}, namespace="collaboration"),
        ],
        after_the_last_item=1,
    ),
)


def answered(body: Any) -> int:
    """How many results of tools a request brings."""
    text = json.dumps(body)
    return text.count('"tool_result"') + text.count('"function_call_output"')


def script_of(program: Program, *turns: list[Any]) -> Callable[[ReceivedRequest], list[Any]]:
    """One turn of the model after the other, by the results that a request brings; a word for everything beside it."""

    def script(request: ReceivedRequest) -> list[Any]:
        if not program.is_main(request.json):
            return [Text("A title"), Finish()]
        return [*turns[min(answered(request.json), len(turns) - 1)], Finish()]

    return script


@asynccontextmanager
async def started(program: Program, gateway: Gate, port: int, prompt: str = "Go.") -> AsyncIterator[asyncio.Task[str]]:
    """What it prints, when it has ended."""
    base_url = gateway.base_url.replace(f":{gateway.server.port}", f":{port}")
    with tempfile.TemporaryDirectory() as folder:
        home, work = os.path.join(folder, "home"), os.path.join(folder, "work")
        os.makedirs(home)
        os.makedirs(work)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "CODEX_HOME": home,
            "TERM": "dumb",
            "ANTHROPIC_BASE_URL": base_url,
            "ANTHROPIC_API_KEY": "sk-ant-none",
            "CODEX_API_KEY": "sk-none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        process = await asyncio.create_subprocess_exec(
            *program.command(base_url, prompt),
            cwd=work,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

        async def printed() -> str:
            return (await process.communicate())[0].decode(errors="replace")

        task = asyncio.create_task(printed())
        try:
            yield task
        finally:
            if process.returncode is None:
                process.kill()
            await asyncio.wait({task}, timeout=10)


async def run(program: Program, gateway: Gate, port: int | None = None) -> str:
    async with started(program, gateway, port or gateway.server.port) as printed:
        return await asyncio.wait_for(printed, LIMIT)


def main_requests(program: Program, gateway: Gate) -> list[Any]:
    asked = [request for request in gateway.provider.requests if request.method == "POST" and request.json]
    return [request for request in asked if program.is_main(request.json)]


# -- what is shown --


async def threads(program: Program) -> str:
    """A call and its result are one turn of one conversation."""
    script = script_of(program, [Text("I look. "), program.call("moonlight")], [Text(DONE)])
    async with gate(program.wire, script) as gateway:
        printed = await run(program, gateway)
        runs = await gateway.runs()
        calls = [call for each in runs for call in await gateway.callstream.journal.calls(run_id=each.run_id)]
        told = [(call.name, str(call.state), "moonlight" in json.dumps(call.result)) for call in calls]
        is_right = DONE in printed and [each[1:] for each in told] == [("completed", True)]
        found = (
            f"threads {sorted({each.thread_id for each in runs})}, runs {[each.run_id for each in runs]}, calls {told}"
        )
        return f"{'PASS' if is_right else 'FAIL'}: {found}" + ("" if is_right else f"\n{printed[-1500:]}")


async def sub_agents(program: Program) -> str:
    """A sub-agent is a thread of its own."""

    def script(request: ReceivedRequest) -> list[Any]:
        if program.is_sub_agent(request):
            return [Text("The sea is calm."), Finish()]
        if not program.is_main(request.json):
            return [Text("A title"), Finish()]
        turns = [*program.spawning, Text(DONE)]
        return [turns[min(answered(request.json), len(turns) - 1)], Finish()]

    async with gate(program.wire, script) as gateway:
        printed = await run(program, gateway)
        names = sorted({each.thread_id for each in await gateway.runs()})
        is_right = DONE in printed and len(names) == 2 and names[1].startswith(f"{names[0]}/")
        return f"{'PASS' if is_right else 'FAIL'}: threads {names}" + ("" if is_right else f"\n{printed[-1500:]}")


async def cuts(program: Program, places: list[int] | None) -> str:
    """It comes back by itself, and the provider is not asked again.

    The provider waits with its next event until the gateway has seen the connection break.
    """
    found, failed = 0, []
    provider = ScriptedProvider(program.wire, script_of(program, [Text(WORDS, size=12)]))
    async with (
        provider,
        Valve(port_of(provider)) as valve,
        before(provider, GatewaySettings(), valve.origin) as gateway,
    ):
        async with Cutter(gateway.server.port) as cutter:
            cutter.next_cut = most = 1_000_000  # which only counts
            expected = await run(program, gateway, cutter.port)
            events = most - cutter.next_cut
            tried = range(events - program.after_the_last_item) if places is None else places
            for place in tried:
                asked_before, cuts_before = len(main_requests(program, gateway)), cutter.cuts
                valve.open.clear()
                cutter.next_cut, valve.next_cut = place, max(place, 1)
                async with started(program, gateway, cutter.port) as printed:
                    async with asyncio.timeout(LIMIT):
                        while cutter.cuts == cuts_before:  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
                    await until_unread(gateway)
                    valve.open.set()
                    text = await asyncio.wait_for(printed, LIMIT)
                asked = len(main_requests(program, gateway)) - asked_before
                if asked == 1 and program.answer(text) == program.answer(expected):
                    found += 1
                else:
                    failed.append(f"\nafter {place} events: asked {asked}, printed {text[-800:]}")
    head = f"{'FAIL' if failed else 'PASS'}: cut before {len(tried)} of {events} events, {found} came back whole"
    return f"{head}, the provider was asked once for each{''.join(failed)}" if not failed else head + "".join(failed)


async def refused(program: Program) -> str:
    """A refused call is a sentence, and nothing of it ran."""
    rules = Rules([Rule(name="moon", pattern="moonlight", message="Not at night.")])
    script = script_of(program, [Text("I look. "), program.call("moonlight")], [Text(DONE)])
    async with gate(program.wire, script, guards=[rules]) as gateway:
        printed = await run(program, gateway)
        is_right = "was refused: Not at night." in printed and DONE not in printed
        return f"{'PASS' if is_right else 'FAIL'}: {printed.strip()[-160:]!r}"


async def asked(program: Program, seconds: float) -> str:
    """A call is held for a person, and passes when it was approved."""
    rules = Rules([Rule(name="moon", pattern="moonlight", action="ask", message="At night?")])
    script = script_of(program, [Text("I look. "), program.call("moonlight")], [Text(DONE)])
    async with gate(program.wire, script, guards=[rules]) as gateway:
        async with started(program, gateway, gateway.server.port) as printed:
            journal = gateway.callstream.journal
            async with asyncio.timeout(120):
                while not (waiting := await journal.calls(states=[CallState.AWAITING])):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(seconds)
            [question] = waiting
            said = tool_message(question.call_id, {"approved": True})
            reply = run_input(None, thread=question.thread_id, messages=[said])
            async with gateway.server.stream("POST", "/agui", json=reply) as stream:
                await stream.all()
            text = await asyncio.wait_for(printed, LIMIT)
        is_right = DONE in text and len(main_requests(program, gateway)) == 2
        found = f"approved after {seconds:g} s, requests {len(main_requests(program, gateway))}"
        return f"{'PASS' if is_right else 'FAIL'}: {found}" + ("" if is_right else f"\n{text[-1500:]}")


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", choices=[program.name for program in PROGRAMS], action="append")
    parser.add_argument("--seconds", type=float, default=240.0, help="until a person answers (default: 240)")
    parser.add_argument("--cut", type=int, action="append", help="after so many events (default: each)")
    parser.add_argument("--only", action="append", help="some of: threads, sub-agents, cuts, refused, asked")
    options = parser.parse_args()
    failed = 0
    for program in PROGRAMS:
        if options.program and program.name not in options.program:
            continue
        shown: dict[str, Callable[[], Any]] = {
            "threads": lambda program=program: threads(program),
            "sub-agents": lambda program=program: sub_agents(program),
            "refused": lambda program=program: refused(program),
            "cuts": lambda program=program: cuts(program, options.cut),
            "asked": lambda program=program: asked(program, options.seconds),
        }
        for name, show in shown.items():
            if not options.only or name in options.only:
                try:
                    found = await show()
                except TimeoutError:
                    found = "FAIL: it did not end"
                failed += "FAIL" in found
                print(f"{program.name}, {name}: {found}", flush=True)
    return 1 if failed else 0


def in_own_network(module: str = "tests.gateway.coding") -> None:
    """Starts a module with these arguments where nothing can be reached but loopback. OSError where that is not possible."""
    command = f"ip link set lo up && exec {sys.executable} -W ignore -m {module} " + shlex.join(sys.argv[1:])
    os.execvpe("unshare", ["unshare", "-rn", "sh", "-c", command], {**os.environ, UNSHARED: "1"})


if __name__ == "__main__":
    if UNSHARED not in os.environ:
        install(FOLDER)
        in_own_network()
    logging.disable(logging.CRITICAL)  # what is refused is meant to be
    sys.exit(asyncio.run(main()))
