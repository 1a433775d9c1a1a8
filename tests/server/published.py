"""The clients that are published, as tests use them: the folder of each, which has its packages and ``cuts.mjs``.

With ``-callstream``, the chat's transport is that of the npm package. ``ai7-read`` is the reader of messages alone.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent.parent
AI_SDK = TESTS / "uistream" / "client"
FOLDERS = {
    "ag-ui": TESTS / "agui" / "client",
    "ag-ui-0.0.59": TESTS / "agui" / "others",
    "tanstack": TESTS / "agui" / "others",
    "copilotkit": TESTS / "server" / "copilotkit" / "core",
    **{f"ai{version}": AI_SDK for version in (5, 6, 7)},
    **{f"ai{version}-callstream": AI_SDK for version in (5, 6, 7)},
    "ai7-read": AI_SDK,
}
