"""The options of a Hive catalog."""

from __future__ import annotations

from typing import Annotated, Literal

from twophase.config import settings
from twophase.config.schema_conflicts import DESCRIPTION, SchemaConflicts, strategy_of
from twophase.config.settings import Flag, Text, lower, option, secret, upper, whole
from twophase.schema import SchemaConflictResolutionStrategy


class Settings(settings.Settings):
    """The settings of a Hive catalog; those from ``host`` on apply to HiveServer2 only."""

    metastore: Annotated[Literal["session", "hiveserver2"], lower] = option(
        "session", "session: the Spark session's own metastore client; hiveserver2: SQL through a HiveServer2"
    )
    recipe: Annotated[Literal["pointer", "rename"], lower] = option(
        "pointer", "how a table is published: pointer; or rename, which keeps files at the usual location"
    )
    append: Annotated[Literal["directory", "links", "files"] | None, lower] = option(
        None,
        "how several new files of an INSERT INTO are published: directory, links or files",
        shown="by the rows",
    )
    field_ids: Flag = option(
        False, "whether new Parquet tables have field ids, so that their columns can be renamed without a rewrite"
    )
    alter: Annotated[Literal["native", "rewrite"], lower] = option(
        "native",
        "what ALTER TABLE does with a change that Spark's reader cannot follow: native refuses it; rewrite replaces "
        "the table by its own rows",
    )
    promotion: Annotated[Literal["exact", "wide", "implicit", "hudi", "explicit"], lower] = option(
        "wide",
        "changes of type that ALTER TABLE and writes that bring columns may make: exact, or wide (whatever keeps each "
        "value); with a rewrite also implicit, hudi or explicit",
    )
    on_cast_failure: Annotated[Literal["error", "null"], lower] = option(
        "error", "what a rewrite does with a value that the new type cannot hold: error, or NULL instead of it"
    )
    schema_conflicts: SchemaConflicts = option("rfc-82", DESCRIPTION)
    host: str = option("", "HiveServer2: host name")
    # A socket silently maps a port that is too large to another one, which would then receive the password.
    port: Annotated[int, whole(65_535)] = option(10_000, "HiveServer2: port")
    auth: Annotated[Literal["NONE", "NOSASL", "LDAP", "CUSTOM", "KERBEROS"], upper] = option(
        "NONE", "HiveServer2: NONE, NOSASL, LDAP, CUSTOM or KERBEROS"
    )
    username: Text = option(None, "HiveServer2: user")
    password: str | None = secret("password of the HiveServer2 user, for LDAP and CUSTOM")
    kerberos_service_name: Text = option(None, "HiveServer2: service name for KERBEROS")
    tls: Flag = option(False, "HiveServer2: true for an encrypted connection")
    tls_ca: Text = option(None, "HiveServer2: file with the certificates to trust")
    tls_verify: Flag = option(True, "HiveServer2: whether certificates are checked; false accepts any")
    timeout: Annotated[int, whole(86_400)] = option(30, "HiveServer2: seconds to wait for a connection and the login")

    @property
    def strategy(self) -> SchemaConflictResolutionStrategy:
        """The rules for rows that were staged for other columns than their table has now."""
        return strategy_of(self.schema_conflicts)
