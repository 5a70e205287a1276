"""Tokenizer and text of a run that is to start on this host.

Runs on the host; standard library only.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import glob
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, cast

from midstream_core.google_metadata import metadata_server
from midstream_core.json_types import JsonValue
from midstream_host.declarations import reads
from midstream_host.shapes import Text

REQUEST_TIMEOUT = 20.0  # seconds without a byte
AT_ONCE = 16  # requests
MAX_REQUESTS = 256  # files of a URL that are requested
MAX_TOKENIZER = 1 << 28  # bytes that are read
LISTED = 1000  # names that a bucket lists in one request


@dataclasses.dataclass(frozen=True)
class InputProblem:
    """An input that a run could not read.

    Where not ``certain``, it is a note: the engine may be able to read it.
    """

    field: Text
    message: Text
    hint: Text
    certain: bool


@reads()
def problems(
    tokenizer: str, eos_token: str, texts: Sequence[Mapping[str, Any]], run_directory: str, env: Mapping[str, str]
) -> List[InputProblem]:
    """List the inputs that an engine on this host could not read.

    Args:
        tokenizer: ``data.tokenizer``.
        eos_token: ``data.eos_token``.
        texts: Field, URL, files and their count of each URL, as ``midstream_engine.check_config`` prints them.
        run_directory: Directory that relative paths refer to.
        env: Added to the engine's environment.
    """
    os.environ.update(env)  # of this call's own process
    lines = list(_tokenizer(tokenizer, eos_token, run_directory))
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for text in texts:
            lines.extend(_text(text["field"], text["url"], text["files"], text["count"], run_directory, pool))
    return lines


# ---------------------------------------------------------------------------------------------------------- tokenizer


def _tokenizer(name: str, eos_token: str, run_directory: str) -> Iterator[InputProblem]:
    field = "data.tokenizer"
    if name == "bytes" or name.startswith(("ids:", "imported:")):
        return
    path = _resolved(name, run_directory)
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_TOKENIZER)
    except OSError as error:
        hint = "copy a Hugging Face tokenizer.json there, or -- --data.tokenizer bytes"
        yield InputProblem(field, "{}: {}".format(path, error.strerror), hint, True)
        return
    try:
        parsed: JsonValue = json.loads(content)
        words = _vocabulary(parsed)
    except (ValueError, TypeError, KeyError, AttributeError):
        yield InputProblem(field, "{} is no tokenizer.json".format(path), "copy one of Hugging Face there", True)
        return
    if words is not None and eos_token not in words:
        message = "{!r} is not in the vocabulary of {}".format(eos_token, path)
        yield InputProblem("data.eos_token", message, "-- --data.eos_token names the one that it has", True)


def _vocabulary(parsed: Any) -> Optional[Set[str]]:
    """The tokens of a tokenizer.json; None where its model has an unknown shape."""
    added = {token["content"] for token in parsed.get("added_tokens") or ()}
    vocabulary = parsed["model"].get("vocab")
    if isinstance(vocabulary, dict):
        return added | cast("Dict[str, int]", vocabulary).keys()
    if isinstance(vocabulary, list):
        return added | {entry[0] for entry in cast("List[List[str]]", vocabulary)}
    return None


# --------------------------------------------------------------------------------------------------------------- text


def _text(
    field: str,
    url: str,
    files: Sequence[str],
    count: int,
    run_directory: str,
    pool: concurrent.futures.ThreadPoolExecutor,
) -> Iterator[InputProblem]:
    scheme = url.partition("://")[0] if "://" in url else ""
    if url.startswith("stdlib:"):
        return
    if url.startswith("imported:"):
        path = _resolved(url[len("imported:") :], run_directory)
        if not os.path.exists(os.path.join(path, "manifest.json")):
            yield InputProblem(field, "{} has no imported data".format(path), "copy it there", True)
    elif scheme in ("", "file"):
        yield from _local(field, url, files, count, run_directory)
    elif scheme == "gs":
        yield from _bucket(field, url, files)
    elif scheme == "s3":
        message = "{} is checked when the engine starts: requests to S3 are signed with its packages".format(url)
        yield InputProblem(field, message, "", False)
    elif scheme in ("http", "https"):
        requested = list(files[:MAX_REQUESTS])
        for problem in pool.map(_server, [field] * len(requested), requested):
            if problem is not None:
                yield problem
                return
    else:
        message = "{!r} has an unknown scheme".format(url)
        yield InputProblem(field, message, "a local path, gs://, s3:// or https://", True)


def _local(field: str, url: str, files: Sequence[str], count: int, run_directory: str) -> Iterator[InputProblem]:
    missing = 0
    first_error = ""
    for pattern in files:
        path = _resolved(pattern[len("file://") :] if pattern.startswith("file://") else pattern, run_directory)
        matches = [path] if os.path.isfile(path) else glob.glob(path, recursive=True)
        readable = [match for match in matches if os.path.isfile(match)]
        missing += not readable
        for readable_file in readable[:LISTED]:
            if not os.access(readable_file, os.R_OK):
                yield InputProblem(field, "{} cannot be read".format(readable_file), "chmod it there", True)
                return
        first_error = first_error or ("" if readable else path)
    if missing == len(files):
        hint = "copy the text there, or name other files: paths in a config are those of the host"
        yield InputProblem(field, "{} names no file".format(first_error or url), hint, True)
    elif missing:
        message = "{} of {} files of {} are missing, such as {}".format(missing, count, url, first_error)
        yield InputProblem(field, message, "", False)


def _server(field: str, url: str) -> Optional[InputProblem]:
    """Request a file's head as the engine does; None where the server has it."""
    for method, headers in (("HEAD", {}), ("GET", {"Range": "bytes=0-0"})):
        request = urllib.request.Request(url, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT):
                return None
        except urllib.error.HTTPError as error:
            error.close()
            if method == "HEAD" and error.code in (403, 405, 501):
                continue
            message = "{}: HTTP {} {}".format(url, error.code, error.reason)
            return InputProblem(field, message, "name a file that this host can read", error.code < 500)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            message = "{}: {}".format(url, reason)
            return InputProblem(field, message, "HTTPS_PROXY in env: of the host, if it needs one", True)
    return None


def _bucket(field: str, url: str, patterns: Sequence[str]) -> Iterator[InputProblem]:
    """List a bucket as this machine's service account, or without credentials.

    Other credentials need packages.
    """
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST", "") or "https://storage.googleapis.com"
    endpoint = endpoint if "://" in endpoint else "http://" + endpoint
    name, _, pattern = patterns[0][len("gs://") :].partition("/")
    if not (name and pattern):
        yield InputProblem(field, "{!r} names no object".format(url), "write gs://BUCKET/NAME", True)
        return
    for listed_pattern in patterns:
        prefix = re.split(r"[*?\[]", listed_pattern[len("gs://") :].partition("/")[2])[0]
        query = urllib.parse.urlencode({"prefix": prefix, "maxResults": "1", "fields": "items(name)"})
        address = "{}/storage/v1/b/{}/o?{}".format(endpoint, urllib.parse.quote(name, safe=""), query)
        request = urllib.request.Request(address, headers=_authorization(endpoint))
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT) as response:
                if json.loads(response.read()).get("items"):
                    return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                yield InputProblem(field, "gs://{}: no such bucket".format(name), "check the bucket's name", True)
                return
            message = "{} is checked when the engine starts: without its packages the answer is HTTP {}".format(
                url, error.code
            )
            yield InputProblem(field, message, "", False)
            return
        except (OSError, http.client.HTTPException, ValueError) as error:
            message = "{}: {}".format(url, getattr(error, "reason", None) or error)
            yield InputProblem(field, message, "can this host reach Google Cloud Storage?", True)
            return
    yield InputProblem(field, "{} names no object".format(url), "check the name", True)


def _authorization(endpoint: str) -> Dict[str, str]:
    """The header of this machine's service account, where it has one."""
    server = metadata_server() if endpoint.startswith("https://") else ""
    if not server:
        return {}
    address = "http://{}/computeMetadata/v1/instance/service-accounts/default/token".format(server)
    request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=REQUEST_TIMEOUT) as response:
            return {"Authorization": "Bearer {}".format(json.loads(response.read())["access_token"])}
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return {}


def _resolved(path: str, run_directory: str) -> str:
    """Expand ``~``; a relative path refers to the run's directory, as in the engine."""
    return os.path.join(run_directory, os.path.expanduser(path))
