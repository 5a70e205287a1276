"""Client of Google Cloud Storage for the programs of a copy, which needs google-cloud-storage on the host.

``access`` has ``credentials`` (empty: application default; ``anonymous``; or the path of a service account's key file
on this machine), ``impersonate`` (a service account), ``project`` and ``user_project``, the project that pays for
requests to a requester-pays bucket. The metadata of each object has its SHA-256 under ``HASH``.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import importlib
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from midstream.remote.declarations import reads
from midstream_engine.gcs_errors import GcsError, ObjectExistsError, split_url, translate_errors

HASH = "midstream-sha256"  # metadata key: SHA-256 of an object's bytes
MARK = "midstream"  # metadata key; "part": a temporary object, deleted when the manifest is written
CHUNK = 8 << 20  # bytes of a request; a stream that was cut sends at most so many again
AT_ONCE = 16  # concurrent requests of one program
COMPOSED = 32  # objects that the service joins in one request
RETRY_TIMEOUT = 300.0  # seconds for which a request is repeated while the service is busy
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
IAM = "MIDSTREAM_IAM_ENDPOINT"


_NO_METADATA: Dict[str, str] = {}


def _library(name: str) -> Any:
    """Import a module that has no types, or incomplete ones. Raises ImportError."""
    return importlib.import_module(name)


# ------------------------------------------------------------------------------------------------------- credentials


def open_client(access: Dict[str, Any]) -> Any:
    """Open a client of google-cloud-storage. Raises GcsError where there are no credentials."""
    try:
        storage = _library("google.cloud.storage")
    except ImportError as error:
        raise GcsError("google-cloud-storage cannot be imported: {}".format(error), "install it there") from None
    with translate_errors("gs://"):
        client = _client(storage, access)
    from requests.adapters import HTTPAdapter

    client._http.mount("https://", HTTPAdapter(pool_maxsize=AT_ONCE))  # one connection a thread
    client._http.mount("http://", HTTPAdapter(pool_maxsize=AT_ONCE))
    return client


def _client(storage: Any, access: Dict[str, Any]) -> Any:
    auth, service_account = _library("google.auth"), _library("google.oauth2.service_account")
    project = access.get("project") or access.get("user_project") or None
    named = access.get("credentials") or ""
    if named == "anonymous":
        return storage.Client.create_anonymous_client()
    credentials: Any = None
    if not named and "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
        # The client finds them too, except with STORAGE_EMULATOR_HOST, where it sends none.
        credentials = auth.default(scopes=[SCOPE])[0]
    if named:
        try:
            credentials = service_account.Credentials.from_service_account_file(named, scopes=[SCOPE])
        except (OSError, ValueError) as error:
            raise GcsError("{}: no service account's key: {}".format(named, error), "name its JSON file") from None
        project = project or credentials.project_id
    if access.get("impersonate"):
        credentials = _library("google.auth.impersonated_credentials").Credentials(
            source_credentials=credentials or auth.default(scopes=[SCOPE])[0],
            target_principal=access["impersonate"],
            target_scopes=[SCOPE],
            iam_endpoint_override=_iam(access["impersonate"]),
        )
    return storage.Client(project=project, credentials=credentials)


def _iam(account: str) -> Optional[str]:
    """URL that issues tokens for an account, where it is the lab's server on this machine."""
    address = os.environ.get(IAM, "")
    if not address:
        return None
    if address.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
        raise GcsError("{} is {!r}".format(IAM, address), "it names a server of this machine: 127.0.0.1:PORT")
    return "http://{}/v1/projects/-/serviceAccounts/{}:generateAccessToken".format(address, account)


def retry_policy() -> Any:
    """Retry with backoff after 408, 429, 5xx and lost connections, for `RETRY_TIMEOUT`."""
    default = _library("google.cloud.storage.retry").DEFAULT_RETRY
    return default.with_delay(initial=0.25, maximum=16.0, multiplier=2.0).with_timeout(RETRY_TIMEOUT)


# ------------------------------------------------------------------------------------------------------- objects


class Bucket:
    """The objects below ``url``. Any thread may use it."""

    def __init__(self, url: str, access: Dict[str, Any]) -> None:
        self.url = url.rstrip("/")
        self.name, self.prefix = split_url(url)
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
        """Blobs by path relative to ``url``: with size, crc32c, generation, metadata and time."""
        start = self.prefix + "/" if self.prefix else ""
        with translate_errors(self.url):
            found = self.client.list_blobs(self._bucket, prefix=start + below, retry=retry_policy())
            return {blob.name[len(start) :]: blob for blob in found}

    def probe(self) -> None:
        """List one object. Raises GcsError where that is not allowed."""
        with translate_errors(self.url):
            found = self.client.list_blobs(self._bucket, prefix=self.prefix, max_results=1, retry=retry_policy())
            next(iter(found), None)

    def get(self, path: str, generation: Optional[int] = None) -> bytes:
        """Read an object and check its crc32c. Raises FileNotFoundError."""
        with translate_errors("{}/{}".format(self.url, path)):
            return self.blob(path).download_as_bytes(
                if_generation_match=generation, checksum="crc32c", retry=retry_policy()
            )

    def read(self, path: str, offset: int, length: int, generation: Optional[int] = None) -> bytes:
        """Read a range; fewer bytes at the object's end. Raises FileNotFoundError."""
        if not length:
            return b""
        where = "{}/{}".format(self.url, path)
        end = offset + length - 1
        with translate_errors(where):
            return self.blob(path).download_as_bytes(
                start=offset, end=end, if_generation_match=generation, checksum=None, retry=retry_policy()
            )

    def put(self, path: str, data: Any, sha256: str, part: bool = False, generation: Optional[int] = None) -> Any:
        """Create or replace an object in one request and return its blob.

        The service and the client both check its crc32c. A request whose response was lost counts as a success if the
        object is found.

        Args:
            path: Path relative to ``url``.
            data: The bytes.
            sha256: Their hash, stored in the metadata.
            part: Whether to mark it as a temporary object.
            generation: The only generation that may be replaced (0: the object must not exist). None: any.

        Raises:
            ObjectExistsError: Another generation exists.
        """
        import io

        google_crc32c = _library("google_crc32c")
        where = "{}/{}".format(self.url, path)
        expected = 0 if generation is None else generation
        while True:
            blob = self.blob(path)
            blob.metadata = dict({HASH: sha256}, **({MARK: "part"} if part else {}))
            try:
                with translate_errors(where):
                    blob.upload_from_file(
                        io.BytesIO(data), size=len(data), content_type="application/octet-stream",
                        checksum="crc32c", if_generation_match=expected, retry=retry_policy(),
                    )  # fmt: skip
                break
            except ObjectExistsError:
                there = self.look(path)
                if there is not None and is_it(there, len(data), sha256):
                    return there
                if generation is not None:
                    raise
                expected = 0 if there is None else there.generation
        crc: int = google_crc32c.value(bytes(data))
        if blob.crc32c != crc_text(crc):
            raise GcsError("{}: the bucket has crc32c {}, not {} as sent".format(where, blob.crc32c, crc_text(crc)))
        return blob

    def look(self, path: str) -> Any:
        """Return the blob with its metadata; None where there is none."""
        with contextlib.suppress(FileNotFoundError), translate_errors("{}/{}".format(self.url, path)):
            blob = self.blob(path)
            blob.reload(retry=retry_policy())
            return blob
        return None

    def join(self, path: str, parts: Sequence[Any], size: int, sha256: str, temporary: str) -> None:
        """Compose an object of parts (blobs, in order) and delete the parts.

        More parts than one request may have are composed in groups, under names that begin with ``temporary``.
        """
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
        except ObjectExistsError:
            blob = self.look(path)  # created by this request, whose response was lost and which the client repeated
            if blob is None or not is_it(blob, size, sha256):
                raise
        if (blob.size, blob.crc32c) != (size, crc_text(crc)):
            raise GcsError("{}/{}: the composed object has other bytes than were sent".format(self.url, path))
        for each in [*parts, *made]:
            self.delete(each)

    def _compose(self, path: str, parts: Sequence[Any], sha256: str = "", generation: Optional[int] = None) -> Any:
        blob = self.blob(path)
        blob.metadata = {HASH: sha256} if sha256 else {MARK: "part"}
        with translate_errors("{}/{}".format(self.url, path)):
            blob.content_type = "application/octet-stream"
            blob.compose(
                list(parts), if_generation_match=generation,
                if_source_generation_match=[int(part.generation) for part in parts], retry=retry_policy(),
            )  # fmt: skip
        return blob

    def delete(self, blob: Any) -> None:
        """Delete one generation of an object; no error where it does not exist."""
        where = "{}/{}".format(self.url, blob.name)
        with contextlib.suppress(FileNotFoundError, ObjectExistsError), translate_errors(where):
            blob.delete(if_generation_match=blob.generation, retry=retry_policy())


def is_it(blob: Any, size: int, sha256: str) -> bool:
    """Return whether an object has these bytes, by the hash in its metadata."""
    return blob.size == size and recorded_hash(blob) == sha256


def recorded_hash(blob: Any) -> Optional[str]:
    """The SHA-256 in an object's metadata; None where it has none."""
    return (blob.metadata or _NO_METADATA).get(HASH)


def crc_text(crc: int) -> str:
    """Encode a checksum as the service does."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def combined(pieces: Sequence[Tuple[int, int]]) -> int:
    """CRC32C of concatenated pieces, from (crc32c, bytes) of each.

    CRC is affine: appending zero bytes changes the CRC of a piece and the CRC of no bytes by the same linear map.
    """
    google_crc32c = _library("google_crc32c")

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


@dataclasses.dataclass(frozen=True)
class AccessProblem:
    """Reason why objects cannot be listed, with a hint; both empty where they can."""

    why: str
    hint: str


@reads()
def able(url: str, access: Dict[str, Any]) -> AccessProblem:
    """Try to list objects below ``url`` from this host."""
    try:
        with Bucket(url, access) as bucket:
            bucket.probe()
    except GcsError as error:
        return AccessProblem(error.message, error.hint)
    return AccessProblem("", "")


Emit = Callable[..., None]


def report_problem(error: BaseException, emit: Emit) -> None:
    """Report an error to the app as ``problem``."""
    hint = error.hint if isinstance(error, GcsError) else ""
    emit("problem", kind="system", message=str(error), hint=hint)
