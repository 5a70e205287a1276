"""Objects below a ``gs://`` prefix, for the programs of a copy. Where those run, google-cloud-storage does the talking.

Who asks is said by ``access``: ``credentials`` (empty: application default; ``anonymous``; or a service account's key
file on the machine where this runs), ``impersonate`` (a service account), ``project``, and ``user_project``, the
project
that pays where the bucket's owner does not. What an object is, is kept with it: its SHA-256, under ``HASH``.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

SCHEME = "gs://"
HASH = "midstream-sha256"  # of an object's bytes
MARK = "midstream"  # "part": a temporary object, that nobody needs once the manifest lies there
CHUNK = 8 << 20  # bytes of a request at most, and what is sent again at most of each stream that was cut
AT_ONCE = 16  # requests of one program
COMPOSED = 32  # objects that the service joins in one request
PATIENCE = 300.0  # seconds that a request is tried again for, where the service is busy
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
IAM = "MIDSTREAM_IAM_ENDPOINT"
LOGIN = "gcloud auth application-default login"


class GcsError(Exception):
    """One line for a person, and what mends it."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.message, self.hint = message, hint


class Taken(GcsError):
    """A precondition did not hold: another object is there, or none."""


def split(url: str) -> Tuple[str, str]:
    """Bucket and prefix of ``gs://bucket/a/b``, the prefix without slashes at its end."""
    bucket, _, prefix = url[len(SCHEME) :].partition("/")
    if not url.startswith(SCHEME) or not bucket:
        raise GcsError("{!r} names no bucket".format(url), "write gs://BUCKET/PREFIX")
    return bucket, prefix.strip("/")


# ------------------------------------------------------------------------------------------------------- who asks


def open_client(access: Dict[str, Any]) -> Any:
    """A client of google-cloud-storage. GcsError where there are no credentials."""
    try:
        from google.cloud import storage
    except ImportError as error:
        raise GcsError("google-cloud-storage cannot be imported: {}".format(error), "install it there") from None
    with errors("gs://"):
        client = _client(storage, access)
    from requests.adapters import HTTPAdapter

    client._http.mount("https://", HTTPAdapter(pool_maxsize=AT_ONCE))  # one connection a thread
    client._http.mount("http://", HTTPAdapter(pool_maxsize=AT_ONCE))
    return client


def _client(storage: Any, access: Dict[str, Any]) -> Any:
    import google.auth
    from google.oauth2 import service_account

    project = access.get("project") or access.get("user_project") or None
    named = access.get("credentials") or ""
    if named == "anonymous":
        return storage.Client.create_anonymous_client()
    credentials: Any = None
    if not named and "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
        # The client finds them by itself, but for a server of one's own, where it asks as nobody.
        credentials = google.auth.default(scopes=[SCOPE])[0]
    if named:
        try:
            credentials = service_account.Credentials.from_service_account_file(named, scopes=[SCOPE])
        except (OSError, ValueError) as error:
            raise GcsError("{}: no service account's key: {}".format(named, error), "name its JSON file") from None
        project = project or credentials.project_id
    if access.get("impersonate"):
        from google.auth import impersonated_credentials

        credentials = impersonated_credentials.Credentials(
            source_credentials=credentials or google.auth.default(scopes=[SCOPE])[0],
            target_principal=access["impersonate"],
            target_scopes=[SCOPE],
            iam_endpoint_override=_iam(access["impersonate"]),
        )
    return storage.Client(project=project, credentials=credentials)


def _iam(account: str) -> Optional[str]:
    """Where tokens in an account's name come from, where that is a server of this machine: the lab's."""
    address = os.environ.get(IAM, "")
    if not address:
        return None
    if address.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
        raise GcsError("{} is {!r}".format(IAM, address), "it names a server of this machine: 127.0.0.1:PORT")
    return "http://{}/v1/projects/-/serviceAccounts/{}:generateAccessToken".format(address, account)


def patient() -> Any:
    """Tries again, ever more slowly, what the service answers with 408, 429 or 5xx, and what breaks on the way."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_delay(initial=0.25, maximum=16.0, multiplier=2.0).with_timeout(PATIENCE)


@contextlib.contextmanager
def errors(what: str) -> Iterator[None]:
    """The client's errors as GcsError; Taken where a precondition did not hold; FileNotFoundError for an object."""
    from google.api_core import exceptions
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from requests.exceptions import RequestException

    what = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in what)
    try:
        yield
    except exceptions.PreconditionFailed as error:
        raise Taken("{}: another one is there ({})".format(what, error.message)) from None
    except exceptions.NotFound as error:
        if "bucket" in error.message.lower():
            raise _no_bucket(what) from None
        raise FileNotFoundError(what) from None
    except DefaultCredentialsError as error:
        raise GcsError("no credentials for gs://: {}".format(_line(error)), LOGIN) from None
    except (GoogleAuthError, exceptions.Unauthorized) as error:
        raise GcsError("{}: the credentials are refused: {}".format(what, _line(error)), LOGIN) from None
    except (exceptions.Forbidden, exceptions.BadRequest) as error:
        raise _refused(what, error.message) from None
    except exceptions.RetryError as error:
        cause = error.cause or error
        raise GcsError("{}: the service is busy: {}".format(what, _line(cause)), "run it again to go on") from None
    except (exceptions.GoogleAPIError, RequestException) as error:
        raise GcsError("{}: {}".format(what, _line(error)), "run it again to go on") from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _no_bucket(what: str) -> GcsError:
    bucket = what[len(SCHEME) :].split("/")[0]
    return GcsError(
        "there is no bucket {}".format(bucket),
        "mend the name, or create it; gcloud storage buckets list --soft-deleted shows one that was deleted",
    )


def _refused(what: str, message: str) -> GcsError:
    """In words: which permission, on which bucket; who pays; which project."""
    said = re.search(r'"message": *"([^"]+)"', message)  # of a download, the whole answer
    bucket, line = what[len(SCHEME) :].split("/")[0], " ".join((said[1] if said else message).split())[:300]
    lower = line.lower()
    if "requester pays" in lower:
        return GcsError("bucket {}: whoever asks it pays, and nobody was named".format(bucket), "name user_project")
    if "project" in lower and re.search(r"unknown|invalid|not found|has not been used|disabled|not exist", lower):
        return GcsError("bucket {}: the project is wrong: {}".format(bucket, line), "gcloud projects list shows them")
    if "serviceusage.services.use" in lower or "billing" in lower:
        return GcsError("bucket {}: {}".format(bucket, line), "the project that pays has to let this account use it")
    permission = re.search(r"storage\.\w+(?:\.\w+)+", line)
    if permission:
        return GcsError(
            "bucket {}: this account lacks {}".format(bucket, permission[0]),
            "gcloud storage buckets add-iam-policy-binding gs://{} --member=... --role={}".format(
                bucket, "roles/storage.legacyBucketReader" if "buckets" in permission[0] else "roles/storage.objectUser"
            ),
        )
    return GcsError("{}: {}".format(what, line))


# ------------------------------------------------------------------------------------------------------- objects


class Bucket:
    """The objects below ``url``. Any thread may use it."""

    def __init__(self, url: str, access: Dict[str, Any]):
        self.url = url.rstrip("/")
        self.name, self.prefix = split(url)
        self.client = open_client(access)
        self._bucket = self.client.bucket(self.name, user_project=access.get("user_project") or None)

    def __enter__(self) -> Bucket:
        return self

    def __exit__(self, *_: object) -> None:
        """Close its connections."""
        self.client.close()

    def blob(self, path: str) -> Any:
        return self._bucket.blob("/".join(part for part in (self.prefix, path) if part))

    def names(self, below: str = "") -> Dict[str, Any]:
        """Objects by path relative to ``url``: with size, crc32c, generation, metadata and time."""
        start = self.prefix + "/" if self.prefix else ""
        with errors(self.url):
            found = self.client.list_blobs(self._bucket, prefix=start + below, retry=patient())
            return {blob.name[len(start) :]: blob for blob in found}

    def get(self, path: str, generation: Optional[int] = None) -> bytes:
        """A whole object; its crc32c is the service's. FileNotFoundError."""
        with errors("{}/{}".format(self.url, path)):
            return self.blob(path).download_as_bytes(if_generation_match=generation, checksum="crc32c", retry=patient())

    def read(self, path: str, offset: int, length: int, generation: Optional[int] = None) -> bytes:
        """A range of an object. FileNotFoundError where the object is not there; fewer bytes where it is shorter."""
        if not length:
            return b""
        where = "{}/{}".format(self.url, path)
        end = offset + length - 1
        with errors(where):
            return self.blob(path).download_as_bytes(
                start=offset, end=end, if_generation_match=generation, checksum=None, retry=patient()
            )

    def put(self, path: str, data: Any, sha256: str, part: bool = False, generation: Optional[int] = None) -> Any:
        """Create an object in one request, or replace one of other content; the blob. The service compares its crc32c,
        and so do we. A request whose answer was lost is a success where its bytes are found there.

        With ``generation`` (0: none may be there) it replaces that one alone: Taken."""
        import io

        import google_crc32c

        where = "{}/{}".format(self.url, path)
        expected = 0 if generation is None else generation
        while True:
            blob = self.blob(path)
            blob.metadata = dict({HASH: sha256}, **({MARK: "part"} if part else {}))
            try:
                with errors(where):
                    blob.upload_from_file(
                        io.BytesIO(data), size=len(data), content_type="application/octet-stream",
                        checksum="crc32c", if_generation_match=expected, retry=patient(),
                    )  # fmt: skip
                break
            except Taken:
                there = self.look(path)
                if there is not None and is_it(there, len(data), sha256):
                    return there
                if generation is not None:
                    raise
                expected = 0 if there is None else there.generation
        crc = google_crc32c.value(bytes(data))
        if blob.crc32c != crc_text(crc):
            raise GcsError("{}: the bucket has crc32c {}, sent was {}".format(where, blob.crc32c, crc_text(crc)))
        return blob

    def look(self, path: str) -> Any:
        """The object as the service describes it, None where there is none."""
        with contextlib.suppress(FileNotFoundError), errors("{}/{}".format(self.url, path)):
            blob = self.blob(path)
            blob.reload(retry=patient())
            return blob
        return None

    def join(self, path: str, parts: Sequence[Any], size: int, sha256: str, temporary: str) -> None:
        """Make an object of parts (blobs, in order), which are gone then. More than the service joins at once are
        joined by lots, under names that begin with ``temporary``."""
        crc = combined([(int.from_bytes(base64.b64decode(part.crc32c), "big"), part.size) for part in parts])
        made: List[Any] = []
        joined = list(parts)
        while len(joined) > COMPOSED:
            lots = [joined[i : i + COMPOSED] for i in range(0, len(joined), COMPOSED)]
            joined = [self._compose("{}-{}-{}".format(temporary, len(made), i), lot) for i, lot in enumerate(lots)]
            made += joined
        there = self.look(path)
        try:
            blob = self._compose(path, joined, sha256, 0 if there is None else there.generation)
        except Taken:
            blob = self.look(path)  # ours, where an answer was lost and the client asked again
            if blob is None or not is_it(blob, size, sha256):
                raise
        if (blob.size, blob.crc32c) != (size, crc_text(crc)):
            raise GcsError("{}/{}: the bucket joined other bytes than were sent".format(self.url, path))
        for each in [*parts, *made]:
            self.delete(each)

    def _compose(self, path: str, parts: Sequence[Any], sha256: str = "", generation: Optional[int] = None) -> Any:
        blob = self.blob(path)
        blob.metadata = {HASH: sha256} if sha256 else {MARK: "part"}
        with errors("{}/{}".format(self.url, path)):
            blob.content_type = "application/octet-stream"
            blob.compose(
                list(parts), if_generation_match=generation,
                if_source_generation_match=[int(part.generation) for part in parts], retry=patient(),
            )  # fmt: skip
        return blob

    def delete(self, blob: Any) -> None:
        """One generation of an object; one that is gone is no error."""
        with contextlib.suppress(FileNotFoundError, Taken), errors("{}/{}".format(self.url, blob.name)):
            blob.delete(if_generation_match=blob.generation, retry=patient())


def is_it(blob: Any, size: int, sha256: str) -> bool:
    """Whether an object has these bytes, by what was kept with it when they were verified."""
    return blob.size == size and (blob.metadata or {}).get(HASH) == sha256


def crc_text(crc: int) -> str:
    """As the service spells it."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def combined(pieces: Sequence[Tuple[int, int]]) -> int:
    """CRC32C of pieces one after the other, from (crc32c, bytes) of each. CRC is affine in what stands before: a zero
    byte appended to the first changes it as it changes the checksum of nothing, but for the difference between them."""
    import google_crc32c

    def after_zeros(crc: int, count: int) -> int:
        while count:
            step = min(count, len(_ZEROS))
            crc = google_crc32c.extend(crc, _ZEROS[:step])
            count -= step
        return crc

    total = 0
    for crc, size in pieces:
        total = crc ^ after_zeros(total, size) ^ after_zeros(0, size)
    return total


_ZEROS = bytes(1 << 20)


def able(url: str, access: Dict[str, Any]) -> Dict[str, str]:
    """``{"why", "hint"}``: why objects below ``url`` cannot be listed from here; empty where they can."""
    try:
        with Bucket(url, access) as bucket, errors(bucket.url):
            for _ in bucket.client.list_blobs(bucket._bucket, prefix=bucket.prefix, max_results=1, retry=patient()):
                break
    except GcsError as error:
        return {"why": error.message, "hint": error.hint}
    return {"why": "", "hint": ""}


Emit = Callable[..., None]


def tell(error: BaseException, emit: Emit) -> None:
    """A problem, to the operator."""
    hint = error.hint if isinstance(error, GcsError) else ""
    emit("problem", kind="system", message=str(error), hint=hint)
