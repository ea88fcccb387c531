"""The names of tables in OpenLineage: its own convention, where there is one for the store. No secret is in them."""

from __future__ import annotations

import re

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from twophase.catalog import Catalog
from twophase.model import ObjectPath
from twophase.redaction import redact

_METASTORES = ("spark.hadoop.hive.metastore.uris", "spark.hive.metastore.uris", "hive.metastore.uris")
#: As the convention has it; of others the name of SQLAlchemy's dialect.
_PORTS = {"postgresql": ":5432", "mysql": ":3306", "mariadb": ":3306"}
_SCHEMES = {"postgresql": "postgres", "mariadb": "mysql"}

_HIDDEN = "***"
_HOST = r"(?:\[[^\]]*\]|[^:@]*)"
_HOSTS = re.compile(_HOST)
_HOSTS_PORTS = re.compile(rf"{_HOST}(?::\d+)?(?:,{_HOST}(?::\d+)?)*")


def dataset_name(catalog: Catalog, path: ObjectPath) -> tuple[str, str]:
    """Return the namespace and the name of a table.

    Of a table of a database they are ``postgres://host:5432`` and ``database.schema.table``, or ``mysql://host:3306``
    and ``database.table``; of one in a metastore ``hive://host:9083`` and ``database.table``. Of all others the
    namespace is the place of the catalog, or of its warehouse.
    """
    options = catalog.options
    if url := options.get("url") or options.get("uri"):
        return _by_url(url, path)
    if host := options.get("host"):
        return f"hive://{host}:{options.get('port', '10000')}", str(path)
    metastore = next((uris for name in _METASTORES if (uris := catalog.environment.conf.get(name))), None)
    if metastore:
        return _by_url(metastore.split(",")[0].strip(), path)
    return _without_login(catalog.environment.warehouse) or catalog.name, str(path)


def _by_url(text: str, path: ObjectPath) -> tuple[str, str]:
    shown = _without_login(text)
    try:
        url = make_url(shown)
    except ArgumentError:
        return shown, str(path)
    backend = url.get_backend_name()
    port = f":{url.port}" if url.port else _PORTS.get(backend, "")
    scheme = "hive" if backend == "thrift" else _SCHEMES.get(backend, backend)
    namespace = f"{scheme}://{url.host or ''}{port}"
    if backend == "postgresql":
        return namespace, f"{url.database or ''}.{path}"
    if url.host or not url.database:
        return namespace, str(path)
    return f"{scheme}:{url.database}", str(path)


def _without_login(place: str) -> str:
    """Scheme, host, port and path of a place; the host is hidden where a password could be taken for a part of it."""
    scheme, separator, rest = place.partition("://")
    if not separator:
        return redact(re.split("[?;]", place)[0])
    authority = re.split("[/?;]", rest)[0]
    count, own = rest.count("@"), authority.count("@")
    if own == count:
        rest = rest.rpartition("@")[2]
    elif count > 1:
        rest = _HIDDEN  # Passwords may contain each of the characters that end them; so may the options in a query.
    elif not (_HOSTS.fullmatch(authority) if "@" in re.split("[?;]", rest)[0] else _HOSTS_PORTS.fullmatch(authority)):
        rest = rest.rpartition("@")[2]
    return redact(f"{scheme}://{re.split('[?;]', rest)[0]}")
