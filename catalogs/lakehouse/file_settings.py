"""The settings of a Hadoop client for a file system, under the names that PyIceberg has for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from twophase.catalogs.files import HadoopFiles
from twophase.errors import ConfigurationError

#: The region of a store that is not Amazon's: any will do.
_ANY_REGION = "us-east-1"
#: Amazon's for all regions, which means no choice.
_CENTRAL = "s3.amazonaws.com"
_AMAZON = re.compile(r"(?:^|//)(?:[^/]*\.)?s3[.-](?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com")
_TENANT = re.compile(r"//[^/]+/([^/]+)/")
#: PyIceberg has no such providers: they stand for its settings of a role, and for none at all.
_ROLE = "AssumedRoleCredentialProvider"
#: S3A's own, that of Amazon's former library, which S3A takes for it, and that of the present one.
_ANONYMOUS = frozenset({"AnonymousAWSCredentialsProvider", "AnonymousAWSCredentials", "AnonymousCredentialsProvider"})
#: Those that look at the keys in the settings, the second one also at the token.
_KEYS, _WITH_TOKEN = "SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider"
#: Those that look where PyArrow's default chain does.
_DEFAULT_CHAIN = frozenset(
    {
        "DefaultCredentialsProvider",
        "DefaultAWSCredentialsProviderChain",
        "EnvironmentVariableCredentialsProvider",
        "ProfileCredentialsProvider",
        "ProfileAWSCredentialsProvider",
        "WebIdentityTokenFileCredentialsProvider",
        "WebIdentityTokenCredentialsProvider",
        "ContainerCredentialsProvider",
        "EC2ContainerCredentialsProviderWrapper",
        "InstanceProfileCredentialsProvider",
        "IAMInstanceCredentialsProvider",
    }
)
_KNOWN = _DEFAULT_CHAIN | _ANONYMOUS | {_ROLE, _KEYS, _WITH_TOKEN}


def of_hadoop(location: str, hadoop: HadoopFiles, *, has_credentials: bool = False) -> dict[str, str]:
    """The settings of a session's Hadoop client for the file system of a location; none if PyIceberg has no such.

    Parameters
    ----------
    location : str
    hadoop : HadoopFiles
    has_credentials : bool
        Whether there are others for S3, which take precedence.

    Raises
    ------
    ConfigurationError
        The client's credentials come from a class that has no counterpart.
    """
    scheme, _, rest = location.partition(":")
    authority = rest.removeprefix("//").partition("/")[0] if rest.startswith("//") else ""
    read = _BY_SCHEME.get(scheme)
    if read is None:
        return {}
    return {name: value for name, value in read(authority, hadoop, has_credentials).items() if value}


def _first(
    hadoop: HadoopFiles, names: Mapping[str, Sequence[str]], *, secret: bool = False, providers: str | None = None
) -> dict[str, str | None]:
    """For each key the first of its settings that is set, all looked up in one call."""
    wanted = [name for group in names.values() for name in group]
    values = dict(zip(wanted, hadoop.settings(wanted, secret=secret, providers=providers), strict=True))
    return {key: next((values[name] for name in group if values[name]), None) for key, group in names.items()}


# -- S3 ----------------------------------------------------------------------------------------------------------------

_S3_PLAIN = (
    "endpoint",
    "endpoint.region",
    "path.style.access",
    "connection.ssl.enabled",
    "aws.credentials.provider",
    "assumed.role.arn",
    "assumed.role.session.name",
    "security.credential.provider.path",
)
_S3_SECRET = ("access.key", "secret.key", "session.token")


def _s3(bucket: str, hadoop: HadoopFiles, has_credentials: bool) -> dict[str, str | None]:
    plain = _first(hadoop, _of_bucket(bucket, _S3_PLAIN))
    endpoint = _endpoint(plain["endpoint"], plain["connection.ssl.enabled"])
    is_by_path = (plain["path.style.access"] or "").lower() == "true"
    return {
        "s3.endpoint": endpoint,
        "s3.region": plain["endpoint.region"],
        "s3.force-virtual-addressing": None if endpoint is None else str(not is_by_path).lower(),
        **({} if has_credentials else _s3_credentials(bucket, hadoop, plain)),
    }


def _of_bucket(bucket: str, names: Sequence[str]) -> dict[str, Sequence[str]]:
    return {name: (f"fs.s3a.bucket.{bucket}.{name}", f"fs.s3a.{name}") for name in names}


def _endpoint(endpoint: str | None, encrypted: str | None) -> str | None:
    if not endpoint or endpoint.rpartition("/")[2] == _CENTRAL:
        return None
    if "://" in endpoint:
        return endpoint
    return f"{'http' if (encrypted or '').lower() == 'false' else 'https'}://{endpoint}"


def with_region(properties: Mapping[str, str]) -> dict[str, str]:
    """Settings for S3 with a region, if they name a store: PyIceberg would ask Amazon for that of the bucket.

    Parameters
    ----------
    properties : mapping of str to str
        Under PyIceberg's names.
    """
    endpoint = properties.get("s3.endpoint")
    if endpoint is None or not properties.keys().isdisjoint(("s3.region", "client.region")):
        return dict(properties)
    found = _AMAZON.search(endpoint)
    return {**properties, "s3.region": found[1] if found else _ANY_REGION}


def _s3_credentials(bucket: str, hadoop: HadoopFiles, plain: Mapping[str, str | None]) -> dict[str, str | None]:
    """The keys that the providers in use would find: keys that they do not look at may be of another account."""
    classes = [name.strip() for name in (plain["aws.credentials.provider"] or "").split(",") if name.strip()]
    # They are asked in this order. An anonymous one always answers, and nothing is known about what follows another.
    last = next((name for name in classes if _short(name) not in _KNOWN - _ANONYMOUS), None)
    providers = [_short(name) for name in (classes[: classes.index(last)] if last else classes)]
    if _ROLE in providers:  # PyArrow takes no keys beside it.
        return {"s3.role-arn": plain["assumed.role.arn"], "s3.role-session-name": plain["assumed.role.session.name"]}
    with_token = not classes or _WITH_TOKEN in providers
    if with_token or _KEYS in providers:
        path = plain["security.credential.provider.path"]
        given = _first(hadoop, _of_bucket(bucket, _S3_SECRET), secret=True, providers=path)
        if given["access.key"] and given["secret.key"]:
            return {
                "s3.access-key-id": given["access.key"],
                "s3.secret-access-key": given["secret.key"],
                "s3.session-token": given["session.token"] if with_token else None,
            }
    if last and _short(last) in _ANONYMOUS:
        # PyArrow does not go on anonymously where its default chain finds nothing.
        return {"s3.anonymous": "true"} if _DEFAULT_CHAIN.isdisjoint(providers) else {}
    if last:
        raise ConfigurationError(
            f"The files of bucket {bucket} were not opened: the session's Hadoop client has its credentials from the "
            f"class {last}, which PyIceberg does not have, so that it would use others. Nothing was started.",
            hint="Set the catalog's options s3.access-key-id and s3.secret-access-key; or provide the client with "
            f"credentials that both can use, by fs.s3a.bucket.{bucket}.aws.credentials.provider.",
        )
    return {}


def _short(name: str) -> str:
    return name.rpartition(".")[2]


# -- Azure and Google --------------------------------------------------------------------------------------------------


def _azure(authority: str, hadoop: HadoopFiles, _: bool) -> dict[str, str | None]:
    host = authority.rpartition("@")[2]
    plain = _first(
        hadoop, _of_account(host, ("account.auth.type", "account.oauth2.client.id", "account.oauth2.client.endpoint"))
    )
    secrets = ("account.key", "sas.fixed.token", "account.oauth2.client.secret")
    given = _first(hadoop, _of_account(host, secrets), secret=True)
    found: dict[str, str | None] = {"adls.account-name": host.partition(".")[0]}
    kind = (plain["account.auth.type"] or "SharedKey").lower()
    if kind == "sas":
        return {**found, "adls.sas-token": given["sas.fixed.token"]}
    if kind == "oauth":
        tenant = _TENANT.search(plain["account.oauth2.client.endpoint"] or "")
        return {
            **found,
            "adls.client-id": plain["account.oauth2.client.id"],
            "adls.client-secret": given["account.oauth2.client.secret"],
            "adls.tenant-id": tenant[1] if tenant else None,
        }
    return {**found, "adls.account-key": given["account.key"]}


def _of_account(host: str, names: Sequence[str]) -> dict[str, Sequence[str]]:
    return {name: (f"fs.azure.{name}.{host}", f"fs.azure.{name}") for name in names}


def _google(_: str, hadoop: HadoopFiles, __: bool) -> dict[str, str | None]:
    names = {"gcs.service.host": ("fs.gs.storage.root.url",), "gcs.project-id": ("fs.gs.project.id",)}
    return _first(hadoop, names)


_BY_SCHEME: Mapping[str, Callable[[str, HadoopFiles, bool], dict[str, str | None]]] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), _s3),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), _azure),
    "gs": _google,
}
