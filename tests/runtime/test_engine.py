"""Names that work for one more version, now that the engine stands below and ``Callstream`` above."""

from __future__ import annotations

import pytest

import callstream.runtime
from callstream import Callstream


async def test_a_run_knows_its_callstream_and_says_that_the_engine_is_meant(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        with pytest.warns(DeprecationWarning, match=r"run\.engine"):
            assert run.callstream is cs
        assert run.engine is cs.engine


def test_callstream_is_found_where_it_was() -> None:
    with pytest.warns(DeprecationWarning, match="from callstream"):
        assert callstream.runtime.Callstream is Callstream
    with pytest.raises(AttributeError, match="Nothing"):
        callstream.runtime.Nothing  # noqa: B018
