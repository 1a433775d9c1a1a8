"""Access to NATS JetStream: its address, whether it keeps what it acknowledges, and the requests to it."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import urllib.request
import zlib
from collections.abc import Callable, Container, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from callstream.errors import JournalError, UsageError
from callstream.journal.store import StoreUnavailable
from callstream.journal.writer import Stale

_log = logging.getLogger("callstream.journal")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,40}")
_OPTIONS = ("log", "log_stream", "log_streams", "log_durability", "log_monitor", "log_creds")
_MAX_STREAMS = 1000
_SCHEMES = ("nats", "tls")
_PORT = 4222
_MONITOR_PORT = 8222
_REPLICAS = 3
_CONNECT_SECONDS = 10.0
_AGAIN_SECONDS = 0.1
_ANSWER_SECONDS = 2.0
"""After that the leader is assumed to be gone. There will soon be another, which is asked instead."""
_PULSE_SECONDS = 2
_RECONNECTING: dict[str, Any] = {"reconnect_time_wait": 0.2, "max_reconnect_attempts": -1}
_OLDEST = (2, 11)
"""The oldest version of the server: since then one request can return many messages."""
_PAGE = 500
_PAGE_BYTES = 8 * 1024 * 1024
_AROUND = 4096
"""Bytes of a message that are reserved for its headers."""
_BYTES_A_CHARACTER = 4

_WRONG_LAST = (10071, 10164)
"""The last message is not the expected one; or one that is being written may become the last."""
_NO_MESSAGE = 10037
_NO_STREAM = 10059
_STREAM_TAKEN = 10058
_TOO_FEW_NODES = (10005, 10074)
_UNAVAILABLE = 503
_STREAMS = "callstream.streams"
_JOURNAL = "callstream.journal"

Feed: TypeAlias = Callable[[int, int, bytes], None]
"""Called with a message's place, the place of the one before it on its subject, and its content."""


class NatsAddress(msgspec.Struct, frozen=True):
    """Where the log is. ``is_strict``: acknowledged messages have to be on the disks of a majority of three servers.

    ``streams``: the number of streams over which processes are spread, each with a leader of its own.
    """

    servers: tuple[str, ...]
    stream: str = "callstream"
    streams: int = 1
    is_strict: bool = True
    monitors: tuple[str, ...] = ()
    credentials: str | None = None

    @property
    def name(self) -> str:
        """See ``Log``."""
        return f"log_stream={self.stream}&log_streams={self.streams}"

    @property
    def names(self) -> list[str]:
        """The names of the streams."""
        return [self._name(number) for number in range(self.streams)]

    def stream_of(self, writer: str) -> str:
        """The stream of a writer, by a hash of its name: the same one at all times and for every process."""
        return self._name(zlib.crc32(writer.encode()) % self.streams)

    def _name(self, number: int) -> str:
        return self.stream if self.streams == 1 else f"{self.stream}_{number}"

    @property
    def where(self) -> str:
        hosts = [f"{parts.hostname}:{parts.port}" for parts in map(urlsplit, self.servers)]
        return f"the NATS stream {self.stream!r} at {', '.join(hosts)}"


def nats_address(options: Mapping[str, str]) -> NatsAddress:
    """From options of the journal's URL: ``log``, ``log_stream``, ``log_streams``, ``log_durability``, ``log_monitor``,
    ``log_creds``.
    """
    if unknown := options.keys() - _OPTIONS:
        raise UsageError(f"expected {', '.join(_OPTIONS)} of a log, got {', '.join(sorted(unknown))}")
    url = options["log"]
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        shown = f"a URL that begins with {scheme + separator!r}" if separator else "one without a scheme"
        raise UsageError(f"expected log=nats://host,host,host, got {shown}")
    user, at, hosts = rest.rpartition("@")
    servers, monitors = [], []
    for host in hosts.rstrip("/").split(","):
        try:
            parts = urlsplit(f"//{host.strip()}")
            name, port = parts.hostname, parts.port or _PORT
        except ValueError:
            name, port, parts = None, 0, urlsplit("")
        if not name or parts.path or parts.query:
            raise UsageError(f"expected log=nats://host:port,host:port,host:port, got {host!r} among the hosts")
        name = f"[{name}]" if ":" in name else name
        servers.append(f"{scheme}://{user}{at}{name}:{port}")
        monitors.append(f"http://{name}:{_MONITOR_PORT}")
    stream = options.get("log_stream", "callstream")
    if not _NAME.fullmatch(stream):
        raise UsageError(f"log_stream must be a plain name of at most 41 letters, digits, _ and -, got {stream!r}")
    streams = options.get("log_streams", "1")
    if not streams.isdecimal() or not 1 <= int(streams) <= _MAX_STREAMS:
        raise UsageError(f"log_streams is a number from 1 to {_MAX_STREAMS}, got {streams!r}")
    durability = options.get("log_durability", "strict")
    if durability not in ("strict", "relaxed"):
        raise UsageError(f"log_durability is strict or relaxed, got {durability!r}")
    if named := options.get("log_monitor"):
        monitors = named.split(",")
        if not all(monitor.startswith(("http://", "https://")) for monitor in monitors):
            raise UsageError("expected log_monitor=http://host:8222,http://host:8222, got something else")
    return NatsAddress(
        tuple(servers),
        stream,
        int(streams),
        durability == "strict",
        tuple(dict.fromkeys(monitors)),
        options.get("log_creds"),
    )


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""

    def __str__(self) -> str:
        return f"{self.description} ({self.err_code})"


class _State(msgspec.Struct):
    bytes: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class _Config(msgspec.Struct):
    num_replicas: int = 1
    storage: str = "file"
    subjects: list[str] = []
    allow_direct: bool = False
    republish: dict[str, Any] | None = None
    metadata: dict[str, str] = {}


class _Message(msgspec.Struct):
    seq: int


class _Answer(msgspec.Struct):
    """The parts of JetStream's answers that are used here."""

    error: _Error | None = None
    seq: int = 0
    state: _State | None = None
    config: _Config | None = None
    message: _Message | None = None


_decoder = msgspec.json.Decoder(_Answer)


class _NoLeader(StoreUnavailable):
    """No server listens on the subject of the request."""


class NatsLink:
    """One connection, which the client restores when it breaks. ``broke`` is called when messages may have been missed."""

    def __init__(self, address: NatsAddress, patience: float) -> None:
        self._address = address
        self._patience = patience
        self.where = address.where
        self._client: Client | None = None
        self._asking: set[asyncio.Future[Msg]] = set()
        self._breaks = 0
        self._tls: ssl.SSLContext | None = None
        self._handshakes = 0
        self._has_warned = False

    async def open(self, journal_id: str, broke: Callable[[], object]) -> None:
        self._client = None
        self._journal_id = journal_id
        self._broke = broke
        self._check_credentials()
        try:
            await self._connect()
            for name in self._address.names:
                await self._prepare_stream(name)
            if self._address.is_strict:
                await self._check_disks()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    @property
    def room(self) -> int:
        """How many characters are certain to fit into a message."""
        largest = self._client.max_payload if self._client is not None else 0
        return (largest - _AROUND) // _BYTES_A_CHARACTER

    # -- messages ------------------------------------------------------------------------------------------------------

    def subject(self, writer: str) -> str:
        return f"{self._address.stream_of(writer)}.log.{writer}"

    async def publish(self, writer: str, message: bytes, expected: int | None) -> int:
        """Adds a message of that writer, and returns its place once it is stored.

        ``expected``: the place of the writer's last message; Stale if another is the last.
        """
        headers = None if expected is None else {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        answer = await self._request(self.subject(writer), message, headers, known=_WRONG_LAST)
        if answer.error is not None:
            raise Stale(str(answer.error))
        return answer.seq

    async def last(self, writer: str) -> int:
        """The place of the last message of that writer, 0 if there is none. The stream's leader is asked."""
        wanted = {"last_by_subj": self.subject(writer)}
        answer = await self._ask("STREAM.MSG.GET", self._address.stream_of(writer), wanted, known=(_NO_MESSAGE,))
        return answer.message.seq if answer.message else 0

    async def read(self, writer: str, place: int) -> list[tuple[int, bytes]]:
        """The next messages of that writer from that place on, with their places. Any server may answer, so the most recent
        ones may be missing.
        """
        wanted = {"seq": place, "next_by_subj": self.subject(writer), "batch": _PAGE, "max_bytes": _PAGE_BYTES}
        client = self._connected()
        found: list[tuple[int, bytes]] = []
        with self._failing():
            inbox = client.new_inbox()
            answers = await client.subscribe(inbox, pending_msgs_limit=0, pending_bytes_limit=0)
            try:
                await client.publish(
                    f"$JS.API.DIRECT.GET.{self._address.stream_of(writer)}", msgspec.json.encode(wanted), reply=inbox
                )
                while True:
                    answer = await answers.next_msg(self._seconds())
                    headers = answer.headers or {}
                    status = headers.get("Status")
                    if status in ("204", "404"):
                        return found
                    if status is not None:
                        raise StoreUnavailable(
                            f"{self.where} is unavailable: {status} {headers.get('Description', '')}"
                        )
                    found.append((int(headers["Nats-Sequence"]), answer.data))
            finally:
                await answers.unsubscribe()

    async def listen(self, writer: str, feed: Feed) -> Subscription:
        """Has each message that this writer adds from now on given to ``feed`` when it is stored."""

        async def take(message: Msg) -> None:
            headers = message.headers or {}
            feed(int(headers.get("Nats-Sequence", 0)), int(headers.get("Nats-Last-Sequence", 0)), message.data)

        with self._failing():
            return await self._connected().subscribe(f"{self._address.stream_of(writer)}.live.{writer}", cb=take)

    async def purge(self, writer: str, before: int) -> None:
        """Erases the messages of that writer before that place."""
        wanted = {"filter": self.subject(writer), "seq": before}
        await self._ask("STREAM.PURGE", self._address.stream_of(writer), wanted)

    async def stored_bytes(self) -> int:
        return sum([(await self._state(name)).bytes for name in self._address.names])

    async def writers(self) -> dict[str, int]:
        """The writers that have messages, each with a place after which it has none."""
        found: dict[str, int] = {}
        for name in self._address.names:
            state = await self._state(name)
            found |= {subject.rpartition(".")[2]: state.last_seq for subject in state.subjects or {}}
        return found

    async def _state(self, name: str) -> _State:
        return (await self._ask("STREAM.INFO", name, {"subjects_filter": ">"})).state or _State()

    # -- opening -------------------------------------------------------------------------------------------------------

    def _check_credentials(self) -> None:
        """Reads the credentials, because a server that asks for none would not show that they cannot be read."""
        try:
            if self._address.credentials is not None:
                Path(self._address.credentials).read_bytes()
        except OSError as error:
            raise JournalError(
                f"{self.where} could not be used: expected log_creds= to name a file that can be read: {error}"
            ) from error

    async def _connect(self) -> None:
        client = Client()
        self._tls = ssl.create_default_context() if self._address.servers[0].startswith("tls:") else None
        self._handshakes = 0
        try:
            await _in_time(
                client.connect(
                    servers=list(self._address.servers),
                    name="callstream",
                    tls=self._tls,
                    user_credentials=self._address.credentials,
                    connect_timeout=2,
                    **_RECONNECTING,
                    ping_interval=_PULSE_SECONDS,
                    max_outstanding_pings=2,
                    error_cb=_ignore,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                ),
                min(_CONNECT_SECONDS, max(self._patience, 1.0)),
                self._warn_of_waiting,
            )
        except TimeoutError as error:
            await _close(client)
            raise StoreUnavailable(
                f"{self.where} is unavailable: no server has answered: {_said(client.last_error)}"
            ) from error
        except (nats.errors.Error, OSError, ValueError) as error:
            await _close(client)
            raise JournalError(f"{self.where} could not be used: {type(error).__name__}: {error}") from error
        self._client = client
        if self._is_bare():
            raise JournalError(
                f"{self.where} could not be used: expected TLS, as tls:// in the URL says, got a server without"
            )
        version = client.connected_server_version
        if (version.major, version.minor) < _OLDEST:
            raise JournalError(
                f"{self.where} could not be used: expected NATS {_OLDEST[0]}.{_OLDEST[1]} or newer, got "
                f"{version.major}.{version.minor}"
            )

    def _warn_of_waiting(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("the journal is not open yet, waiting for %s", self.where)

    async def _disconnected(self) -> None:
        """Requests under way on that connection will never be answered."""
        self._breaks += 1
        for asking in self._asking:
            asking.cancel()

    async def _reconnected(self) -> None:
        if self._is_bare():
            _log.error(
                "%s has come back without TLS: pieces go to the index until this process is restarted",
                self.where,
            )
            await self.close()
        self._broke()

    def _is_bare(self) -> bool:
        """Whether the last connection was made without TLS although it was asked for: the client lets the server decide."""
        if self._tls is None:
            return False
        before, self._handshakes = self._handshakes, self._tls.session_stats()["connect_good"]
        return self._handshakes == before

    async def _prepare_stream(self, name: str) -> None:
        try:
            answer = await self._ask("STREAM.INFO", name, {}, known=(_NO_STREAM,))
        except _NoLeader as error:
            raise JournalError(
                f"{self.where} could not be used: its server has no JetStream, or none with a leader; enable it with "
                "`jetstream {}` in the server's configuration, or `nats-server --jetstream`"
            ) from error
        found = (answer if answer.error is None else await self._create_stream(name)).config or _Config()
        if found.subjects != [f"{name}.log.*"] or not found.allow_direct or found.republish is None:
            raise JournalError(f"{self.where} is another program's: name a different one with log_stream=")
        if (streams := found.metadata.get(_STREAMS)) != str(self._address.streams):
            raise JournalError(
                f"{self.where} is spread over {streams or 'no known number of'} streams: expected log_streams={streams} in "
                f"the journal's URL, got {self._address.streams}"
            )
        if found.metadata.get(_JOURNAL, self._journal_id) != self._journal_id:
            raise JournalError(
                f"{self.where} is another journal's log: name another one with log_stream=, or delete the stream {name} "
                "if that journal is gone"
            )
        if self._address.is_strict and (found.num_replicas < _REPLICAS or found.storage != "file"):
            raise self._not_durable(
                f"the stream is kept by {found.num_replicas} server{'s' * (found.num_replicas > 1)} in {found.storage}"
            )

    async def _create_stream(self, name: str) -> _Answer:
        known = (_STREAM_TAKEN, *_TOO_FEW_NODES)
        answer = await self._ask("STREAM.CREATE", name, self._stream(name, _REPLICAS), known=known)
        if answer.error is not None and answer.error.err_code in _TOO_FEW_NODES:
            if self._address.is_strict:
                raise self._not_durable(f"it does not have {_REPLICAS} servers ({answer.error})")
            answer = await self._ask("STREAM.CREATE", name, self._stream(name, 1), known=(_STREAM_TAKEN,))
        # If it is taken, another process was quicker.
        return answer if answer.error is None else await self._ask("STREAM.INFO", name, {})

    def _stream(self, name: str, replicas: int) -> dict[str, Any]:
        return {
            "name": name,
            "description": "the log of a journal of callstream: pieces of live runs",
            "subjects": [f"{name}.log.*"],
            "retention": "limits",
            "discard": "new",
            "storage": "file",
            "num_replicas": replicas,
            "allow_direct": True,
            "metadata": {_STREAMS: str(self._address.streams), _JOURNAL: self._journal_id},
            "republish": {"src": f"{name}.log.*", "dest": f"{name}.live.{{{{wildcard(1)}}}}"},
        }

    async def _check_disks(self) -> None:
        """Checks that servers have on disk what they acknowledge. Only a server's monitoring address shows that."""
        seen = await asyncio.gather(*(asyncio.to_thread(_syncs_always, url) for url in self._address.monitors))
        found = dict(zip(self._address.monitors, seen, strict=True))
        for url, always in found.items():
            if always is False:
                raise self._not_durable(f"the server that {url} watches has no `sync_interval: always`")
        silent = [url for url, always in found.items() if always is None]
        if len(silent) >= (len(found) + 1) // 2:
            raise JournalError(
                f"{', '.join(silent)} do{'es' if len(silent) == 1 else ''} not answer, so it is not known whether "
                f"{self.where} has what it acknowledges on disk: expected the monitoring addresses of a majority of its "
                "servers. Either the servers are unavailable, or their monitoring addresses are others (log_monitor=)"
            )

    def _not_durable(self, why: str) -> JournalError:
        return JournalError(
            f"{self.where} may lose what it has acknowledged: {why}. Expected three servers with `jetstream {{ "
            "sync_interval: always }`. With log_durability=relaxed in the journal's URL it is used nevertheless"
        )

    # -- asking --------------------------------------------------------------------------------------------------------

    def _connected(self) -> Client:
        if self._client is None:
            raise StoreUnavailable(f"{self.where} is unavailable: the connection is closed")
        return self._client

    def _seconds(self) -> float:
        return min(_ANSWER_SECONDS, max(self._patience, 1.0))

    async def _ask(self, name: str, stream: str, wanted: Mapping[str, Any], *, known: Container[int] = ()) -> _Answer:
        return await self._request(f"$JS.API.{name}.{stream}", msgspec.json.encode(wanted), None, known=known)

    async def _request(
        self, subject: str, message: bytes, headers: dict[str, str] | None, *, known: Container[int]
    ) -> _Answer:
        """JetStream's answer. ``known``: the errors that it may hold; others are raised."""
        client = self._connected()
        with self._failing():
            answer = await self._answer(client.request(subject, message, timeout=self._seconds(), headers=headers))
            found = _decoder.decode(answer.data)
        error = found.error
        if error is None or error.err_code in known:
            return found
        if error.code == _UNAVAILABLE or error.err_code == _NO_STREAM:
            raise StoreUnavailable(f"{self.where} is unavailable: {error}")
        raise JournalError(f"{self.where} could not be used: {error}")

    async def _answer(self, asking: Coroutine[Any, Any, Msg]) -> Msg:
        breaks, task = self._breaks, asyncio.ensure_future(asking)
        self._asking.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if breaks == self._breaks or (current is not None and current.cancelling()):
                raise
            raise StoreUnavailable(f"{self.where} is unavailable: the connection has broken") from None
        finally:
            self._asking.discard(task)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except nats.errors.NoRespondersError as error:
            raise _NoLeader(f"{self.where} is unavailable: it has no leader") from error
        except nats.errors.MaxPayloadError as error:
            raise JournalError(f"{self.where} could not be used: {error}") from error
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise StoreUnavailable(f"{self.where} is unavailable: {type(error).__name__}: {error}") from error
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            raise JournalError(f"{self.where} has given an answer that cannot be read: {error}") from error


def _said(error: Exception | None) -> str:
    """Why the last attempt to connect has failed. A timeout has no text of its own."""
    if error is None or isinstance(error, TimeoutError):
        return "a NATS server says at once what it is, and nothing has arrived"
    return str(error) or type(error).__name__


async def _ignore(error: Exception) -> None:
    """Failures of the connection show in the requests that they affect."""


async def _in_time(connecting: Coroutine[Any, Any, None], seconds: float, warn: Callable[[], None]) -> None:
    """Like ``asyncio.wait_for``, but cancels again if a cancellation is lost, as happens when an attempt has just failed.

    ``warn`` is called if connecting takes long.
    """
    task = asyncio.ensure_future(connecting)
    soon = min(seconds, _ANSWER_SECONDS)
    try:
        if not (await asyncio.wait({task}, timeout=soon))[0]:
            warn()
            if not (await asyncio.wait({task}, timeout=seconds - soon))[0]:
                raise TimeoutError
        task.result()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_AGAIN_SECONDS)


async def _close(client: Client) -> None:
    try:
        await asyncio.wait_for(client.close(), 2)
    except (TimeoutError, nats.errors.Error, OSError):
        pass  # it is gone


class _JetStream(msgspec.Struct):
    config: dict[str, Any] = {}


class _Varz(msgspec.Struct):
    jetstream: _JetStream = msgspec.field(default_factory=_JetStream)


def _syncs_always(url: str) -> bool | None:
    """None if the server does not answer."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/varz", timeout=2) as answer:
            found = msgspec.json.decode(answer.read(), type=_Varz)
    except (OSError, ValueError, msgspec.DecodeError):
        return None
    return bool(found.jetstream.config.get("sync_always"))
