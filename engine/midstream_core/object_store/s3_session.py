"""Sessions of botocore: credentials of AWS's standard chain, endpoint, region.

The chain is botocore's own: environment variables, the profile's files (keys, SSO, ``credential_process``, roles), web
identities, the roles of containers and instances.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType

from midstream_core.object_store.access import ANONYMOUS, Access
from midstream_core.object_store.bucket_client import AT_ONCE
from midstream_core.object_store.client_library import Session, library
from midstream_core.object_store.errors import AccessDeniedError, StoreError, one_line
from midstream_core.object_store.s3_errors import CREDENTIALS
from midstream_core.object_store.s3_signing import sign_known_hashes

CONNECT_TIMEOUT = 10.0  # seconds
REQUEST_TIMEOUT = 60.0  # seconds without a byte after which a connection counts as dead
REGION = "us-east-1"  # of a client for which none is named: Amazon's service names the right one in its answer


def prepare_session() -> None:
    """Import botocore and its description of S3.

    Raises ImportError and the errors of botocore.
    """
    session_module, config = library("botocore.session"), library("botocore.config")
    session = session_module.Session()
    _share_descriptions(session)
    unsigned = config.Config(signature_version=library("botocore").UNSIGNED)
    session.create_client("s3", region_name=REGION, config=unsigned)


def _share_descriptions(session: Session) -> None:
    """Make a session use the descriptions of services that this process has read."""
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))


@functools.lru_cache(maxsize=None)
def _loader(path: str | None) -> object:
    return library("botocore.loaders").create_loader(path)


@functools.lru_cache(32)
def open_session(access: Access, environment: tuple[tuple[str, str], ...], opened: int) -> tuple[Session, bool]:
    """Return a client of botocore for S3, and whether it has no credentials.

    Args:
        access: Of the store.
        environment: Variables that the client reads, as a part of the cache's key.
        opened: How many were opened before: another number reads the credentials again.

    Raises:
        StoreError: The package is not installed, or a profile, file or setting is wrong.
        AccessDeniedError: There are no credentials.
    """
    del environment, opened
    try:
        session_module, config = library("botocore.session"), library("botocore.config")
        exceptions, unsigned = library("botocore.exceptions"), library("botocore").UNSIGNED
    except ImportError as error:
        raise StoreError(f"s3:// needs botocore, which cannot be imported: {error}", "pip install botocore") from None
    session = session_module.Session(profile=access.profile or None)
    if access.credentials not in ("", ANONYMOUS):
        if not os.path.isfile(access.credentials):
            raise StoreError(f"{access.credentials}: there is no such file", "name a credentials file of AWS's format")
        session.set_config_variable("credentials_file", access.credentials)
    try:
        anonymous = access.credentials == ANONYMOUS or _has_none(session, access, exceptions)
        settings: dict[str, object] = {
            # Requests are repeated by the client of this package, by class, which reads bodies, too.
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "connect_timeout": CONNECT_TIMEOUT,
            "read_timeout": REQUEST_TIMEOUT,
            "max_pool_connections": AT_ONCE * 2,
            "response_checksum_validation": "when_required",  # hashes are compared here
            "request_checksum_calculation": "when_required",
        }
        if anonymous:
            settings["signature_version"] = unsigned
        _share_descriptions(session)
        region = access.region or session.get_config_variable("region") or REGION
        client = session.create_client(
            "s3", region_name=region, endpoint_url=access.endpoint or None, config=config.Config(**settings)
        )
    except (exceptions.BotoCoreError, ValueError) as error:
        raise StoreError(f"s3://: {one_line(error)}", "correct AWS's configuration, or the store's settings") from None
    sign_known_hashes(client)
    return client, anonymous


def _has_none(session: Session, access: Access, exceptions: ModuleType) -> bool:
    """Return whether a public bucket has to be read without credentials.

    Raises:
        AccessDeniedError: There are none, and the bucket need not be public.
    """
    try:
        credentials = session.get_credentials()
    except exceptions.BotoCoreError as error:
        raise AccessDeniedError(f"no credentials for s3://: {one_line(error)}", CREDENTIALS) from None
    if credentials is None and not access.public:
        raise AccessDeniedError(
            "no credentials for s3://: neither environment, files nor a role of this machine have some",
            "aws configure, or AWS_PROFILE; credentials: anonymous reads a public bucket",
        )
    return credentials is None


def relevant_environment() -> tuple[tuple[str, str], ...]:
    """Return the variables that a client reads when it is opened."""
    return tuple(sorted((key, value) for key, value in os.environ.items() if key.startswith("AWS_")))
