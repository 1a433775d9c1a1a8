"""A gateway by base URL: model calls of any program, in any language, live and durable, without a change to it.

The same wire goes in and out, byte for byte; what passes is decoded beside it and journaled as the tap does. An answer
outlives its reader: a client that asks the same again gets the answer it did not get to the end. ``create_gateway`` makes
the app, ``callstream gateway`` serves it.
"""

from __future__ import annotations

from callstream.errors import MissingExtra

try:
    from callstream.gateway.app import create_gateway
    from callstream.gateway.settings import GatewaySettings
except ModuleNotFoundError as error:
    raise MissingExtra("callstream.gateway needs starlette and ag-ui-protocol", "server", error) from error

__all__ = ["GatewaySettings", "create_gateway"]
