"""The real servers that other tests rely on: they answer, and nothing of them survives their test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy

from tests import servers
from tests.project import source
from tests.servers import Server


@pytest.mark.parametrize("name", ["postgresql", "mariadb", "hive_server2"])
def test_a_server_answers_sql(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    engine = sqlalchemy.create_engine(server.url)
    try:
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
    finally:
        engine.dispose()


def test_no_socket_of_another_program_is_given_the_port_of_a_server_that_starts() -> None:
    with socket.socket() as other:
        other.bind((servers.HOST, 0))
        assert other.getsockname()[1] not in servers.PORTS
    assert servers.free_port() in servers.PORTS


def test_a_server_and_its_data_are_gone_after_its_block() -> None:
    with servers.postgresql() as server:
        assert answers(server.port)
    assert not answers(server.port)
    assert server.process.poll() is not None
    assert not server.directory.exists()


def test_a_server_does_not_survive_the_kill_of_its_test(tmp_path: Path) -> None:
    script = (
        "from tests import servers\n"
        "with servers.postgresql() as server:\n"
        "    print(server.port, server.directory, flush=True)\n"
        "    input()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], cwd=source.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        port, directory = child.stdout.readline().split()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    until(lambda: not answers(int(port)))
    # Only the kernel could stop the server; nobody was left to remove its data.
    subprocess.run(["rm", "-rf", directory], check=True)


def test_a_missing_program_fails_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(servers.ServerNotInstalledError, match="apt-get install -y some-package"):
        servers._program("no-such-program", "some-package", "/nowhere")


def answers(port: int) -> bool:
    try:
        socket.create_connection((servers.HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def until(true: object, seconds: float = 20.0) -> None:
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
