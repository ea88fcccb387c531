"""Logins at HiveServer2 as sites have them: a password that LDAP checks over TLS, and no SASL at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from thrift.transport.TSocket import TSocket

from tests import servers
from tests.servers import Server
from twophase.catalogs.hive.hiveserver2_client import SqlClient, wait_for_answers
from twophase.catalogs.hive.options import Settings
from twophase.errors import CatalogError, ConfigurationError

pytestmark = pytest.mark.timeout(600)

SECRET = "correct-horse"
STORE_PASSWORD = "of-the-keystore"


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents in what BER wrote one after the other."""
    while data:
        tag, length, start = data[0], data[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(data[2:start])
        yield tag, data[start : start + length]
        data = data[start + length :]


class _Directory(socketserver.BaseRequestHandler):
    """As much of an LDAP directory as answers a simple bind (RFC 4511, 4.2): it knows one password."""

    def handle(self) -> None:
        while request := self.request.recv(4096):  # a bind is small: it comes in one piece
            ((_, message),) = _fields(request)
            (_, number), (operation, bind), *_ = _fields(message)
            if operation != 0x60:
                return  # an unbind, the only other thing that is said
            code = 0 if dict(_fields(bind))[0x80] == SECRET.encode() else 49
            response = bytes((0x61, 7, 0x0A, 1, code, 4, 0, 4, 0))
            self.request.sendall(bytes((0x30, 2 + len(number) + len(response), 2, len(number))) + number + response)


@pytest.fixture(scope="module")
def ldap() -> Iterator[str]:
    with socketserver.ThreadingTCPServer((servers.HOST, 0), _Directory) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"ldap://{servers.HOST}:{server.server_address[1]}"
        server.shutdown()


def _certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A keystore with a key for this machine, and its certificate by itself."""
    store, certificate = directory / f"{name}.p12", directory / f"{name}.pem"
    java = Path(os.environ.get("JAVA_HOME", "/")) / "bin"
    keytool = shutil.which("keytool", path=f"{java}{os.pathsep}{os.environ['PATH']}") or "keytool"
    facts = ["-keystore", str(store), "-storepass", STORE_PASSWORD, "-alias", "server"]
    made = f"-genkeypair -keyalg RSA -keysize 2048 -validity 2 -dname CN={name} -ext san=ip:{servers.HOST}"
    for words in ([*made.split()], ["-exportcert", "-rfc", "-file", str(certificate)]):
        subprocess.run([keytool, *words, *facts], check=True, capture_output=True, timeout=60)
    return store, certificate


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    directory = tmp_path_factory.mktemp("certificates")
    return {name: _certificate(directory, name) for name in ("server", "stranger")}


@pytest.fixture(scope="module")
def guarded(ldap: str, certificates: dict[str, tuple[Path, Path]]) -> Iterator[Server]:
    """A server that speaks TLS only and asks LDAP for the password."""
    hiveconf = {
        "hive.server2.use.SSL": "true",
        "hive.server2.keystore.path": str(certificates["server"][0]),
        "hive.server2.keystore.password": STORE_PASSWORD,
        "hive.server2.authentication": "LDAP",
        "hive.server2.authentication.ldap.url": ldap,
        "hive.server2.authentication.ldap.baseDN": "dc=example,dc=org",
    }
    with servers.hive_server2(hiveconf=hiveconf) as server:
        yield server


def client(server: Server, **options: str) -> SqlClient:
    given = {"host": server.host, "port": str(server.port), "timeout": "20", **options}
    return SqlClient(Settings.read(given, "hive"))


def login(server: Server, password: str = SECRET, **options: str) -> SqlClient:
    return client(server, auth="LDAP", username="ann", password=password, **options)


def test_a_password_goes_over_tls_to_the_server_that_is_known(
    guarded: Server, certificates: dict[str, tuple[Path, Path]]
) -> None:
    ours = login(guarded, tls="true", tls_ca=str(certificates["server"][1]))
    assert ours.run("SELECT 1") == [(1,)]
    ours.close()
    blind = login(guarded, tls="true", tls_verify="false")
    assert blind.run("SELECT 1") == [(1,)]
    blind.close()


@pytest.mark.parametrize("ca", ["stranger", "the system's"])
def test_a_server_that_is_not_known_never_sees_the_password(
    guarded: Server, certificates: dict[str, tuple[Path, Path]], ca: str
) -> None:
    known = {"tls_ca": str(certificates[ca][1])} if ca in certificates else {}
    with pytest.raises(CatalogError, match="certificate verify failed") as caught:
        login(guarded, tls="true", **known).run("SELECT 1")
    assert SECRET not in str(caught.value)


def test_a_wrong_password_is_refused_and_not_told(guarded: Server, certificates: dict[str, tuple[Path, Path]]) -> None:
    with pytest.raises(CatalogError, match="refused the login") as caught:
        login(guarded, "wrong-horse", tls="true", tls_ca=str(certificates["server"][1])).run("SELECT 1")
    assert "wrong-horse" not in str(caught.value)
    assert "password" in str(caught.value)


def test_without_tls_the_login_fails_in_words(guarded: Server) -> None:
    with pytest.raises(CatalogError, match="tls"):
        login(guarded).run("SELECT 1")


def test_a_server_without_sasl_answers() -> None:
    with servers.hive_server2(hiveconf={"hive.server2.authentication": "NOSASL"}) as server:
        plain = client(server, auth="NOSASL")
        assert plain.run("SELECT 1") == [(1,)]
        plain.close()
        # The time limit is that of the login: a statement that is given up could still take effect.
        hasty = client(server, auth="NOSASL", timeout="3")
        assert len(hasty.run("SELECT java_method('java.lang.Thread', 'sleep', 4000L)")) == 1
        hasty.close()


def test_a_server_that_is_gone_without_a_word_is_noticed() -> None:
    """The system asks whether it is there, as nothing else ends the wait for a statement."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        connected = TSocket(*listener.getsockname())
        connected.open()
        with contextlib.closing(connected):
            wait_for_answers(connected)
            assert connected.handle.gettimeout() is None
            assert connected.handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert connected.handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


@pytest.mark.parametrize(
    ("option", "text"), [("port", "65536"), ("port", "0"), ("port", "²"), ("port", "-1"), ("timeout", "²")]
)
def test_a_number_that_is_none_or_too_large_is_refused(option: str, text: str) -> None:
    """A socket takes a port that is too large for another one, which would get the password."""
    with pytest.raises(ConfigurationError, match=f"{option} is a number from 1 to"):
        Settings.read({"host": "localhost", option: text}, "hive")
