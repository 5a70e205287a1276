"""Clients of google-cloud-storage: credentials, project, connections."""

from __future__ import annotations

import os
from http import HTTPStatus
from types import ModuleType

from midstream_core.object_store.access import ANONYMOUS, Access
from midstream_core.object_store.bucket_client import AT_ONCE
from midstream_core.object_store.client_library import Client, Credentials, Response, library
from midstream_core.object_store.errors import AccessDeniedError, StoreError
from midstream_core.object_store.gcs_errors import LOGIN

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
IAM = "MIDSTREAM_IAM_ENDPOINT"


def prepare_storage() -> None:
    """Import google-cloud-storage and what a client needs. Raises ImportError."""
    for name in ("google.auth.exceptions", "google.oauth2.service_account", "requests.adapters"):
        library(name)
    library("google.cloud.storage").Client.create_anonymous_client().close()


def open_storage(access: Access) -> tuple[Client, bool]:
    """Return a client of google-cloud-storage, and whether it has no credentials.

    Raises:
        StoreError: The package is not installed, or there are no credentials.
    """
    try:
        storage, exceptions = library("google.cloud.storage"), library("google.auth.exceptions")
    except ImportError as error:
        raise StoreError(
            f"gs:// needs google-cloud-storage, which cannot be imported: {error}", "pip install google-cloud-storage"
        ) from None
    try:
        client, anonymous = _client(storage, access)
    except (exceptions.GoogleAuthError, OSError) as error:  # OSError: credentials that name no project
        if not access.public:
            raise AccessDeniedError(f"no credentials for gs://: {' '.join(str(error).split())}", LOGIN) from None
        client, anonymous = storage.Client.create_anonymous_client(), True
    adapter = library("requests.adapters").HTTPAdapter
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, adapter(pool_maxsize=AT_ONCE))  # one connection a thread
    client._http.hooks["response"].append(_read_refusal)
    return client, anonymous


def _read_refusal(response: Response, **_: object) -> None:
    """Read the body of a refusal, so that its connection is used again.

    google-auth and google-cloud-storage drop a streamed refusal unread, its connection open, and repeat the request.
    """
    if response.status_code >= HTTPStatus.BAD_REQUEST:
        _ = response.content


def _client(storage: ModuleType, access: Access) -> tuple[Client, bool]:
    auth, service_account = library("google.auth"), library("google.oauth2.service_account")
    project = access.project or access.user_project or None
    if access.credentials == ANONYMOUS:
        return storage.Client.create_anonymous_client(), True
    credentials: Credentials = None
    if not access.credentials and "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
        # The client finds them too, except with STORAGE_EMULATOR_HOST, where it sends none.
        credentials = auth.default(scopes=[SCOPE])[0]
    if access.credentials:
        try:
            credentials = service_account.Credentials.from_service_account_file(access.credentials, scopes=[SCOPE])
        except (OSError, ValueError) as error:
            raise StoreError(f"{access.credentials}: no service account's key: {error}", "name its JSON file") from None
        project = project or credentials.project_id
    if access.impersonate:
        credentials = library("google.auth.impersonated_credentials").Credentials(
            source_credentials=credentials or auth.default(scopes=[SCOPE])[0],
            target_principal=access.impersonate,
            target_scopes=[SCOPE],
            iam_endpoint_override=_iam(access.impersonate),
        )
    emulated = credentials is None and "STORAGE_EMULATOR_HOST" in os.environ
    return storage.Client(project=project, credentials=credentials), emulated


def _iam(account: str) -> str | None:
    """Return the lab server's URL that issues an account's tokens, or None."""
    address = os.environ.get(IAM, "")
    if not address:
        return None
    if address.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
        raise StoreError(f"{IAM} is {address!r}", "it names a server of this machine: 127.0.0.1:PORT")
    return f"http://{address}/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
