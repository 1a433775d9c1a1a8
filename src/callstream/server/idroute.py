"""Routes to what has an id."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from starlette.routing import Route, compile_path


class IdRoute(Route):
    """A route whose ids are whatever their client or provider likes: a slash in one comes decoded, and is part of it."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.path_regex, self.path_format, self.param_convertors = compile_path(re.sub(r"{(\w+)}", r"{\1:path}", path))
