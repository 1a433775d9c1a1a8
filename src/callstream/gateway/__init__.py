"""A gateway by base URL: it makes model calls of any program, in any language, live and durable, with no change to it.

The same wire goes in and out, byte for byte; the traffic is decoded on the side and journaled as by the tap. An answer
outlives its reader: a client that did not receive all of it gets it by sending the same request again. ``create_gateway``
makes the app, ``callstream gateway`` serves it.
"""

from __future__ import annotations

from callstream.errors import MissingExtra

try:
    from callstream.gateway.app import create_gateway
    from callstream.gateway.settings import GatewaySettings
except ModuleNotFoundError as error:
    raise MissingExtra("callstream.gateway needs starlette and ag-ui-protocol", "server", error) from error

__all__ = ["GatewaySettings", "create_gateway"]
