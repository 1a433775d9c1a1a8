"""What the tap raises into an SDK, in a form that the SDK neither wraps nor retries.

An SDK reads an answer that is not streamed while it sends the request, and may take every exception there for a broken
connection: it repeats the request and raises a connection error in the end, unless the exception is one of its own. For
such an SDK (``Provider.sdk_error``) the tap's errors are made that as well; a CallRejected is still a CallRejected.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from callstream.wire.provider import Provider


@contextmanager
def raised_once(provider: Provider) -> Iterator[None]:
    """Errors that rise from here reach the program that has called the SDK, after one request."""
    try:
        yield
    except Exception as error:
        module, _, name = (provider.sdk_error or "").partition(".")
        root = getattr(sys.modules.get(module), name, None)
        if root is None or isinstance(error, root):
            raise
        raise _also(error, root)  # noqa: B904  it is the error itself, whose cause it keeps


def _also(error: Exception, root: type[Exception]) -> Exception:
    """The error as an instance of ``root``, too. It is made without ``__init__``, whose arguments are not known any more."""
    of = type(error)
    kind: Any = type(of.__name__, (of, root), {"__module__": of.__module__, "__doc__": of.__doc__})
    made: Any = kind.__new__(kind, *error.args)
    made.__dict__.update(error.__dict__)
    made.__traceback__ = error.__traceback__
    cause: BaseException | None = error.__cause__
    if any(isinstance(link, root) for link in _chain(cause)):
        made.__context__ = cause  # as a cause, an error of the SDK's own would make it retry
    else:
        made.__cause__ = cause
    return made  # type: ignore[no-any-return]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__
