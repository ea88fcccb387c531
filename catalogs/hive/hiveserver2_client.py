"""One PyHive connection: opened late, with every failure in words and without secrets."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from twophase.errors import CatalogError, ConfigurationError

AUTHENTICATIONS = ("NONE", "NOSASL", "LDAP", "CUSTOM", "KERBEROS")
#: After how many seconds of silence the system asks whether the other side is there; how often, and how many times.
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class SqlClient:
    """Runs statements on a HiveServer2.

    Parameters
    ----------
    catalog : str
        Name of the catalog, for messages.
    options : mapping of str to str
        ``host``, ``port``, ``auth``, ``username``, ``password``, ``kerberos_service_name``, ``tls``, ``tls_ca``,
        ``tls_verify``, ``timeout``.

    Raises
    ------
    ConfigurationError
        An option is wrong or missing.
    """

    def __init__(self, catalog: str, options: Mapping[str, str]) -> None:
        self._catalog = catalog
        self._options = dict(options)
        self._connection: Any = None
        self._host = options.get("host", "")
        self._port = self._number("port", 10_000, most=65_535)
        self._timeout = self._number("timeout", 30, most=86_400)
        self._auth = options.get("auth", "NONE").upper()
        self._tls = self._says("tls", default=False)
        self._verifies = self._says("tls_verify", default=True)
        self._check()

    def __repr__(self) -> str:
        return f"<SqlClient {self.address}>"

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self._host.lower()}:{self._port}"

    def _number(self, option: str, default: int, *, most: int) -> int:
        # A socket takes a port that is too large for another one: the password would go there.
        text = self._options.get(option, str(default))
        if not re.fullmatch("[0-9]{1,9}", text) or not 0 < int(text) <= most:
            raise ConfigurationError(
                f"Catalog {self._catalog}: the option {option} is a number from 1 to {most}, not {text!r}."
            )
        return int(text)

    def _says(self, option: str, *, default: bool) -> bool:
        # Anything else is refused, not taken for one of them: a password would go in plain text.
        text = self._options.get(option, str(default)).strip().lower()
        if text not in ("true", "false"):
            raise ConfigurationError(f"Catalog {self._catalog}: the option {option} is true or false, not {text!r}.")
        return text == "true"

    def _check(self) -> None:
        if not self._host:
            raise ConfigurationError(f"Catalog {self._catalog}: metastore=hiveserver2 needs the option host.")
        if self._auth not in AUTHENTICATIONS:
            raise ConfigurationError(
                f"Catalog {self._catalog}: the option auth is one of {', '.join(AUTHENTICATIONS)}, not {self._auth!r}."
            )
        with_password = self._auth in ("LDAP", "CUSTOM")
        if with_password != ("password" in self._options):
            needed = "needs a password" if with_password else "takes no password"
            raise ConfigurationError(f"Catalog {self._catalog}: auth={self._auth} {needed}.")
        if (self._auth == "KERBEROS") != ("kerberos_service_name" in self._options):
            raise ConfigurationError(
                f"Catalog {self._catalog}: auth=KERBEROS and kerberos_service_name belong together."
            )
        for option in ("tls_ca", "tls_verify"):
            if option in self._options and not self._tls:
                raise ConfigurationError(
                    f"Catalog {self._catalog}: {option} needs tls=true; the connection would not be encrypted."
                )

    # -- statements ----------------------------------------------------------------------------------------------

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows.

        Raises
        ------
        CatalogError
            The server refused the statement, or could not be reached; without the statement's text.
        """
        from pyhive import exc

        connection = self._open()
        try:
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall()) if cursor.description else []
        except exc.Error as error:
            raise CatalogError(self._clean(f"HiveServer2 refused: {_message(error)}")) from None
        except Exception as error:
            self.close()
            raise CatalogError(
                self._clean(f"The connection to HiveServer2 at {self._host}:{self._port} broke: {_message(error)}")
            ) from None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it is broken or the server is gone
                connection.close()

    # -- the connection ------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        if self._connection is None:
            try:
                self._connection = self._connect()
            except ImportError as error:
                raise ConfigurationError(
                    f"Catalog {self._catalog} needs PyHive: {error}", hint="pip install 'twophase[hive]'"
                ) from None
            except Exception as error:
                raise CatalogError(
                    self._clean(
                        f"HiveServer2 at {self._host}:{self._port} cannot be reached or refused the login: "
                        f"{_message(error)}"
                    ),
                    hint="Check the host, port, auth, username and password of the catalog, and tls.",
                ) from None
        return self._connection

    def _connect(self) -> Any:
        from pyhive import hive

        username, connected = self._options.get("username"), self._socket()
        connected.setTimeout(self._timeout * 1000)
        connection = hive.Connection(username=username, thrift_transport=self._transport(username, connected))
        wait_for_answers(connected)
        return connection

    def _transport(self, username: str | None, connected: Any) -> Any:
        """A socket with SASL, which PyHive's own arguments cannot all say."""
        from thrift.transport import TTransport

        if self._auth == "NOSASL":
            return TTransport.TBufferedTransport(connected)
        import getpass

        import thrift_sasl
        from pyhive.hive import get_installed_sasl

        mechanism = "GSSAPI" if self._auth == "KERBEROS" else "PLAIN"
        facts = {
            "host": self._host,
            "sasl_auth": mechanism,
            "service": self._options.get("kerberos_service_name"),
            "username": username or getpass.getuser(),
            # SASL PLAIN wants one even where the server looks at none.
            "password": self._options.get("password", "x"),
        }
        return thrift_sasl.TSaslClientTransport(lambda: get_installed_sasl(**facts), mechanism, connected)

    def _socket(self) -> Any:
        from thrift.transport import TSocket, TSSLSocket

        if not self._tls:
            return TSocket.TSocket(self._host, self._port)
        context = ssl.create_default_context(cafile=self._options.get("tls_ca"))
        if not self._verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE

        class Socket(TSSLSocket.TSSLSocket):
            def close(self) -> None:
                # PyHive closes what it could not open, and Thrift then fails on the socket that there is not: why the
                # server was refused would not be told.
                if self.handle is not None:
                    super().close()

        return Socket(self._host, self._port, ssl_context=context, server_hostname=self._host)

    def _clean(self, text: str) -> str:
        """A message without the password, should a library have put it there."""
        password = self._options.get("password")
        return text.replace(password, "***") if password else text


def wait_for_answers(connected: Any) -> None:
    """Wait for a statement as long as the server works on it: one that was given up could still take effect later.

    A server that is gone without a word is noticed by the system's own probes.
    """
    connected.setTimeout(None)
    connected.handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):  # not on every system
            connected.handle.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _message(error: Exception) -> str:
    """What the server said, without Java's stack."""
    for argument in error.args:
        status = getattr(argument, "status", None)
        if status is not None and status.errorMessage:
            return str(status.errorMessage).split("\n\tat ")[0][:2000]
    text = str(error) or type(error).__name__
    reason = getattr(error, "inner", None)  # Thrift's: what the system or TLS said
    return (f"{text}: {reason}" if reason else text).split("\n\tat ")[0][:2000]
