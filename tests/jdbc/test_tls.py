"""Servers with certificates: those of the CA that the user names are trusted, and no others."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests import servers
from tests.jdbc.places import Place, open_jdbc, ordered
from tests.jdbc.statements import ROWS, run
from twophase.errors import CatalogError
from twophase.model import ObjectPath

DATABASES = {"postgresql": "public", "mariadb": "twophase"}
#: How a URL names the CA whose certificates are trusted, for the host of the URL only.
TRUST = {
    "postgresql": lambda ca: {"sslmode": "verify-full", "sslrootcert": str(ca)},
    "mariadb": lambda ca: {"ssl_ca": str(ca)},
}
CIPHER = {
    "postgresql": "SELECT cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    "mariadb": "SHOW SESSION STATUS LIKE 'Ssl_cipher'",
}


@dataclass(frozen=True)
class Secured:
    """A server with a certificate for its address only.

    Attributes
    ----------
    place : Place
    ca, other_ca : Path
        Certificates of the CA that signed it, and of one that did not.
    """

    place: Place
    ca: Path
    other_ca: Path

    def url(self, ca: Path, **changes: str) -> str:
        """The URL of one who trusts a CA."""
        url = sa.engine.make_url(self.place.url).set(**changes)
        return url.update_query_dict(TRUST[self.place.kind](ca)).render_as_string(hide_password=False)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def _make_ca(directory: Path, name: str) -> Path:
    key, certificate = directory / f"{name}.key", directory / f"{name}.pem"
    new = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(key)]
    _openssl("req", "-x509", *new, "-out", str(certificate), "-days", "2", "-subj", f"/CN={name}")
    return certificate


def _make_certificate(directory: Path, ca: Path) -> None:
    request, extensions = directory / "server.csr", directory / "server.ext"
    extensions.write_text(f"subjectAltName=IP:{servers.HOST}\n")
    new = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(directory / "server.key")]
    _openssl("req", *new, "-out", str(request), "-subj", "/CN=server")
    signed = ["-CA", str(ca), "-CAkey", str(ca.with_suffix(".key")), "-CAcreateserial", "-days", "2"]
    words = [*signed, "-extfile", str(extensions), "-out", str(directory / "server.pem")]
    _openssl("x509", "-req", "-in", str(request), *words)
    (directory / "server.key").chmod(0o644)


@contextlib.contextmanager
def _postgresql(directory: Path) -> Iterator[Place]:
    with servers.postgresql() as server:
        place, data = Place("postgresql", server.url), server.directory / "data"
        for name in ("server.pem", "server.key"):
            file = Path(shutil.copy(directory / name, data / name))
            file.chmod(0o600)
            os.chown(file, data.stat().st_uid, -1)
        for setting in ("ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.key'", "ssl = on"):
            place.execute(f"ALTER SYSTEM SET {setting}")
        (data / "pg_hba.conf").write_text("hostssl all all all trust\n")
        # Connections from before need no rules; the server says when it has read the new ones.
        engine = sa.create_engine(place.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as held:
            held.exec_driver_sql("SELECT pg_reload_conf()")
            while held.exec_driver_sql("SHOW ssl").scalar() != "on":
                pass
        engine.dispose()
        yield place


@contextlib.contextmanager
def _mariadb(directory: Path) -> Iterator[Place]:
    files = {"ca": "right.pem", "cert": "server.pem", "key": "server.key"}
    settings = [f"--ssl-{what}={directory / name}" for what, name in files.items()]
    with servers.mariadb(*settings) as server:
        place = Place("mariadb", server.url)
        place.execute("ALTER USER twophase@'%' REQUIRE SSL")
        yield place


@pytest.fixture(scope="module", params=DATABASES)
def secured(request: pytest.FixtureRequest) -> Iterator[Secured]:
    """A server that admits nobody without TLS."""
    starts = {"postgresql": _postgresql, "mariadb": _mariadb}
    # Not pytest's directory: the server runs as another user.
    with tempfile.TemporaryDirectory(prefix="twophase-tls-") as made:
        directory = Path(made)
        directory.chmod(0o755)
        right, wrong = (_make_ca(directory, name) for name in ("right", "wrong"))
        _make_certificate(directory, right)
        with starts[request.param](directory) as place:
            yield Secured(place, right, wrong)


def test_a_statement_is_written_and_read_over_tls(secured: Secured) -> None:
    kind = secured.place.kind
    catalog, path = open_jdbc(url=secured.url(secured.ca)), ObjectPath.of(DATABASES[kind], "daily")
    run(catalog, path)
    with catalog.store.begin(path.database) as connection:
        assert connection.exec_driver_sql(CIPHER[kind]).one()[-1]
        assert ordered(connection.exec_driver_sql(f"SELECT * FROM {path.database}.{path.name}").all()) == ROWS
    catalog.drop_table(path)
    catalog.close()


@pytest.mark.promise("secrets", "a certificate of another CA or for another host is refused")
@pytest.mark.parametrize("wrong", ["CA", "host"])
def test_a_certificate_of_another_ca_or_for_another_host_is_refused(secured: Secured, wrong: str) -> None:
    url = secured.url(secured.other_ca) if wrong == "CA" else secured.url(secured.ca, host="localhost")
    catalog = open_jdbc(url=url, connect_timeout="3")
    with pytest.raises(CatalogError, match=r"certificate.*Check that .*sslrootcert.*ssl_ca"):
        catalog.list_databases()
    catalog.close()


def test_a_file_that_is_no_ca_is_reported(secured: Secured) -> None:
    catalog = open_jdbc(url=secured.url(secured.ca.with_name("missing.pem")), connect_timeout="3")
    with pytest.raises(CatalogError, match=r"Check that .*sslrootcert.*ssl_ca"):
        catalog.list_databases()
    catalog.close()


def test_without_tls_the_server_is_not_reached_and_says_what_to_add(secured: Secured) -> None:
    url = sa.engine.make_url(secured.place.url)
    plain = {"postgresql": {"sslmode": "disable"}, "mariadb": {"ssl_disabled": "true"}}
    url = url.update_query_dict(plain[secured.place.kind])
    catalog = open_jdbc(url=url.render_as_string(hide_password=False), connect_timeout="3")
    with pytest.raises(CatalogError, match=r"\?ssl_ca=FILE"):
        catalog.list_databases()
    catalog.close()
