"""One PyHive connection, opened on first use; every error has a readable message without secrets."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

from twophase.catalogs.hive.options import Settings
from twophase.catalogs.keepalive import keep_alive
from twophase.errors import CatalogError, ConfigurationError


class SqlClient:
    """Client that runs statements on a HiveServer2.

    Parameters
    ----------
    settings : Settings
        The catalog's settings, from ``host`` on.

    Raises
    ------
    ConfigurationError
        Options contradict each other, or one is missing.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection: Any = None
        self._check()

    def __repr__(self) -> str:
        return f"<SqlClient {self.address}>"

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self._settings.host.lower()}:{self._settings.port}"

    def _check(self) -> None:
        settings = self._settings
        if not settings.host:
            raise settings.wrong("metastore=hiveserver2 needs the option host.")
        with_password = settings.auth in ("LDAP", "CUSTOM")
        if with_password != (settings.password is not None):
            needed = "needs a password" if with_password else "takes no password"
            raise settings.wrong(f"auth={settings.auth} {needed}.")
        if (settings.auth == "KERBEROS") != (settings.kerberos_service_name is not None):
            raise settings.wrong("auth=KERBEROS and kerberos_service_name belong together.")
        for option in ("tls_ca", "tls_verify"):
            if option in settings.model_fields_set and not settings.tls:
                raise settings.wrong(f"{option} needs tls=true; the connection would not be encrypted.")

    # -- statements ----------------------------------------------------------------------------------------------

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows.

        Raises
        ------
        CatalogError
            The server refused the statement, or could not be reached; the message does not contain the statement.
        """
        try:
            return self._run_once(sql)
        except CatalogError as error:
            if "Invalid SessionHandle" not in str(error):
                raise
        self.close()  # The server has ended the idle session, and has not looked at the statement.
        return self._run_once(sql)

    def _run_once(self, sql: str) -> list[tuple[Any, ...]]:
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
                self._clean(f"The connection to HiveServer2 at {self.address} broke: {_message(error)}")
            ) from None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # the connection is broken, or the server is gone
                connection.close()

    # -- the connection ------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        if self._connection is None:
            try:
                self._connection = self._connect()
            except ImportError as error:
                raise ConfigurationError(
                    f"Catalog {self._settings.catalog} needs PyHive: {error}", hint="pip install 'twophase[hive]'"
                ) from None
            except Exception as error:
                raise CatalogError(
                    self._clean(
                        f"HiveServer2 at {self.address} cannot be reached or refused the login: {_message(error)}"
                    ),
                    hint="Check the host, port, auth, username and password of the catalog, and tls.",
                ) from None
        return self._connection

    def _connect(self) -> Any:
        from pyhive import hive

        username, connected = self._settings.username, self._socket()
        connected.setTimeout(self._settings.timeout * 1000)
        connection = hive.Connection(username=username, thrift_transport=self._transport(username, connected))
        wait_for_answers(connected)
        return connection

    def _transport(self, username: str | None, connected: Any) -> Any:
        """Return a transport with SASL; PyHive's own arguments do not support all of its options."""
        from thrift.transport import TTransport

        if self._settings.auth == "NOSASL":
            return TTransport.TBufferedTransport(connected)
        import getpass

        import thrift_sasl
        from pyhive.hive import get_installed_sasl

        mechanism = "GSSAPI" if self._settings.auth == "KERBEROS" else "PLAIN"
        facts = {
            "host": self._settings.host,
            "sasl_auth": mechanism,
            "service": self._settings.kerberos_service_name,
            "username": username or getpass.getuser(),
            # SASL PLAIN needs a password even if the server does not check it.
            "password": "x" if self._settings.password is None else self._settings.password,
        }
        return thrift_sasl.TSaslClientTransport(lambda: get_installed_sasl(**facts), mechanism, connected)

    def _socket(self) -> Any:
        from thrift.transport import TSocket, TSSLSocket

        host, port = self._settings.host, self._settings.port
        if not self._settings.tls:
            return TSocket.TSocket(host, port)
        context = ssl.create_default_context(cafile=self._settings.tls_ca)
        if not self._settings.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE

        class Socket(TSSLSocket.TSSLSocket):
            def close(self) -> None:
                # PyHive closes a transport that it could not open, and Thrift then fails on the missing socket: the
                # original error would be lost.
                if self.handle is not None:
                    super().close()

        return Socket(
            self._settings.host, self._settings.port, ssl_context=context, server_hostname=self._settings.host
        )

    def _clean(self, text: str) -> str:
        """Remove the password from a message, in case a library has included it."""
        password = self._settings.password
        return text.replace(password, "***") if password else text


def wait_for_answers(connected: Any) -> None:
    """Wait for a statement without a timeout, because an abandoned statement could still take effect later.

    A server that disappears silently is detected by TCP keepalive.
    """
    connected.setTimeout(None)
    keep_alive(connected.handle)


def _message(error: Exception) -> str:
    """The server's message, without Java's stack trace."""
    for argument in error.args:
        status = getattr(argument, "status", None)
        if status is not None and status.errorMessage:
            return str(status.errorMessage).split("\n\tat ")[0][:2000]
    text = str(error) or type(error).__name__
    reason = getattr(error, "inner", None)  # Thrift's: the error of the system or of TLS
    return (f"{text}: {reason}" if reason else text).split("\n\tat ")[0][:2000]
