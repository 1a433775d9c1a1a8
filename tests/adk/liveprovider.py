"""A scripted model of Gemini's live API: BidiGenerateContent over a real websocket, with TLS, on loopback.

Each message of the client that asks for an answer (text, audio, a whole turn, results of tools) is answered with the next turn
of the script. A turn is a list of server messages, as the API writes them in JSON, and of pauses.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

Turn = Sequence[dict[str, Any] | float | None]
"""Server messages; a number is a pause in seconds, None breaks the connection off."""


def text(*pieces: str, **more: Any) -> list[dict[str, Any]]:
    return [{"serverContent": {"modelTurn": {"role": "model", "parts": [{"text": piece, **more}]}}} for piece in pieces]


def spoken(*pieces: str) -> list[dict[str, Any]]:
    """Audio, and its transcription."""
    audio = {"inlineData": {"mimeType": "audio/pcm;rate=24000", "data": "AAAA"}}
    return [
        message
        for piece in pieces
        for message in (
            {"serverContent": {"modelTurn": {"role": "model", "parts": [audio]}}},
            {"serverContent": {"outputTranscription": {"text": piece}}},
        )
    ]


def calls(*function_calls: dict[str, Any]) -> dict[str, Any]:
    return {"toolCall": {"functionCalls": list(function_calls)}}


COMPLETE: dict[str, Any] = {"serverContent": {"turnComplete": True}}


class LiveProvider:
    """``async with LiveProvider(folder, turns) as provider``; the client has to trust ``provider.certificate``."""

    def __init__(self, folder: Path, turns: Iterable[Turn]) -> None:
        self.certificate = folder / "loopback.pem"
        self._key = folder / "loopback.key"
        self._turns = iter(turns)
        self.setups: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        self.closed = asyncio.Event()
        """Set when a client's connection has ended."""
        self._server: Server | None = None

    @property
    def base_url(self) -> str:
        assert self._server is not None
        return f"https://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}"

    @property
    def results(self) -> list[dict[str, Any]]:
        """The function responses that the client sent, in order."""
        sent = [message["tool_response"] for message in self.received if "tool_response" in message]
        return [response for each in sent for response in each["functionResponses"]]

    async def __aenter__(self) -> Self:
        self._certify()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self._key)
        self._server = await serve(self._serve, "127.0.0.1", 0, ssl=context)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, connection: ServerConnection) -> None:
        try:
            self.setups.append(json.loads(await connection.recv())["setup"])
            await connection.send(json.dumps({"setupComplete": {}}).encode())
            async for message in connection:
                said = json.loads(message)
                self.received.append(said)
                if _asks(said):
                    await self._answer(connection, next(self._turns, []))
        except ConnectionClosed:
            pass
        finally:
            self.closed.set()

    async def _answer(self, connection: ServerConnection, turn: Turn) -> None:
        for message in turn:
            if message is None:
                connection.transport.abort()
            elif isinstance(message, dict):
                await connection.send(json.dumps(message).encode())
            else:
                try:
                    await asyncio.wait_for(connection.wait_closed(), message)
                except TimeoutError:
                    pass  # the pause is over

    def _certify(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self._key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )


def _asks(said: dict[str, Any]) -> bool:
    content, realtime = said.get("client_content") or {}, said.get("realtime_input") or {}
    return "tool_response" in said or bool(content.get("turn_complete")) or bool({"text", "audio"} & realtime.keys())
