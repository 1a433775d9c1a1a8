"""The AG-UI server: run, leave, come back, answer, stop.

::

    app = create_app(ADKAgent.from_app(my_app, callstream=Callstream("sqlite:///calls.db")))
"""

from __future__ import annotations

from callstream.errors import MissingExtra

try:
    from callstream.server.agent import Agent, Host
    from callstream.server.app import create_app
    from callstream.server.requests import Auth
    from callstream.server.settings import ServerSettings
except ModuleNotFoundError as error:
    raise MissingExtra("callstream.server needs starlette and ag-ui-protocol", "server", error) from error

__all__ = ["Agent", "Auth", "Host", "ServerSettings", "create_app"]
