"""What a client is told when it asks for what it cannot have: a status, a code and one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

from callstream import codec


class Problem(Exception):
    """Raised anywhere in a request, and answered as ``{"error": {"code": …, "message": …}}``.

    ``closes``: the rest of the request is not wanted, so the connection cannot be used for another.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: int | None = None, closes: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.closes = closes


def not_found(what: str) -> Problem:
    """The same for what does not exist and for what belongs to another principal."""
    return Problem(HTTPStatus.NOT_FOUND, "not_found", f"No such {what}.")


def shutting_down() -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "shutting_down",
        "The server is shutting down; try again in a moment.",
        retry_after=5,
    )


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        codec.encode(value), status, {"cache-control": "no-store", **(headers or {})}, media_type="application/json"
    )


def problem_response(problem: Problem) -> Response:
    headers = {} if problem.retry_after is None else {"retry-after": str(problem.retry_after)}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if problem.closes:
        headers["connection"] = "close"
    return json_response({"error": {"code": problem.code, "message": problem.message}}, problem.status, headers)
