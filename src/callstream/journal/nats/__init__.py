"""The log of live runs in NATS JetStream, beside an index in PostgreSQL."""

from __future__ import annotations

from callstream.journal.nats.link import NatsAddress, nats_address
from callstream.journal.nats.log import NatsLog

__all__ = ["NatsAddress", "NatsLog", "nats_address"]
