"""Ports for servers that are stopped and started again at the same address."""

from __future__ import annotations

import random
import socket

_BELOW_EPHEMERAL = range(20_000, 32_000)
"""Ports that no system gives to a client's connection: while the server is down, one of those could take its port."""


def kept_port() -> int:
    """A port that is free now, and that nothing takes unless it asks for just this one."""
    chance = random.SystemRandom()
    while True:
        port = chance.choice(_BELOW_EPHEMERAL)
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
