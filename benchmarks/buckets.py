"""Copy trees to a bucket and back with midstream and with public tools, side by side in one run.

    python benchmarks/buckets.py [--mib 1024] [--rounds 3] [--cases many one] [--services s3 gs] [--disk DIRECTORY]

The service is the tests' own server on loopback, in a process of its own: the same for all, in memory. The tools are
those that are installed (rclone, awscli, s5cmd, gcloud, gsutil). midstream hashes every object as it is read and
written, resumes, and writes the manifest last; the others compare sizes or checksums at most. Rounds are interleaved,
medians are compared. ``time_ratio`` is the time of a way over that of midstream: above 1 means slower than midstream.

``midstream, new process`` starts an interpreter for each copy, as a command does; ``midstream`` copies in this process,
which has the clients of buckets imported after its first copy, as the terminal UI has.

Google's service is reached over TLS by all, because gsutil supports nothing else. midstream alone waits until a
download is on the disk and has the right hashes. A row ``NAME, verified`` is the tool and then, in this process, the
same: every file is read again and hashed, on all cores, and synced.

The rows ``obstore`` and ``botocore`` are the libraries alone, with 8 threads: what a client costs without a copy around
it. obstore is measured where it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream_core.object_store.access import Access
from midstream_core.object_store.open_bucket import open_bucket
from support.checkpoints.trees import write_tree

MIB = 1 << 20
OURS, NEW_PROCESS = "midstream", "midstream, new process"
THREADS = 8
SERVER = """
import json, ssl, sys
sys.path[:0] = json.loads(sys.argv[1])
from simulators.object_stores.bucket import BucketServer, bucket_server
from simulators.object_stores.s3_server import s3_server
if sys.argv[2:] == ["s3"]:
    opened = s3_server("runs")
else:
    class Secure(BucketServer):
        def __init__(self):
            super().__init__()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(sys.argv[3])
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        url = property(lambda self: "https://" + self.address)
    opened = Secure()
with opened as server:
    if "runs" not in server.buckets:
        server.create("runs")
    print(json.dumps([server.url, server.environment]), flush=True)
    sys.stdin.read()
"""
COPY = """
import sys, tempfile
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream.transfer.copy_tree import copy_tree
host = LocalHost("here", LocalHostConfig(root=tempfile.gettempdir()))
ends = [bucket_endpoint(each) if "://" in each else Endpoint(host, each) for each in sys.argv[1:]]
copy_tree(*ends)
"""
Way = Callable[[Path, str], None]  # a directory and a URL: copies in one direction


@contextlib.contextmanager
def served(service: str) -> Iterator[str]:
    """Context with the service in a process of its own; sets the environment of its clients."""
    argv = [sys.executable, "-c", SERVER, json.dumps(sys.path), service]
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as keys, contextlib.ExitStack() as stack:
        if service == "gs":
            argv.append(certificate(keys))
            os.environ["REQUESTS_CA_BUNDLE"] = os.path.join(keys, "certificate.pem")
        process = stack.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert process.stdout is not None
        url, environment = json.loads(process.stdout.readline())
        os.environ.update(environment)
        os.environ.pop("AWS_CA_BUNDLE", None)  # the service has no TLS
        try:
            yield url
        finally:
            process.kill()


def certificate(directory: str) -> str:
    """Make a certificate for loopback; return the path of the file that has it and its key."""
    key, made, both = (os.path.join(directory, f"{name}.pem") for name in ("key", "certificate", "both"))
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", made)  # fmt: skip
    Path(both).write_text(Path(key).read_text() + Path(made).read_text())
    return both


def run(*argv: str, **environment: str) -> None:
    done = subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{argv[0]}: {done.stderr.strip()[-300:]}")


def ours(source: bool) -> Way:
    host = LocalHost("here", LocalHostConfig(root=tempfile.gettempdir()))

    def copy(directory: Path, url: str) -> None:
        ends = Endpoint(host, str(directory)), bucket_endpoint(url)
        copy_tree(*(ends if source else ends[::-1]))

    return copy


def ours_in_new_process(source: bool) -> Way:
    def copy(directory: Path, url: str) -> None:
        ends = [str(directory), url]
        run(sys.executable, "-c", COPY, *(ends if source else ends[::-1]))

    return copy


def tool(*argv: str, **environment: str) -> tuple[Way, Way]:
    """Return upload and download by a program: ``{from}`` and ``{to}`` are replaced."""

    def way(upload: bool) -> Way:
        def copy(directory: Path, url: str) -> None:
            ends = (f"{directory}/", f"{url}/") if upload else (f"{url}/", f"{directory}/")
            every = f"{ends[0]}*" if "{every}" in argv else ""
            named = {"{from}": ends[0], "{to}": ends[1], "{every}": every}
            run(*(named.get(part, part).replace("s3://", ":s3:") if argv[0] == "rclone" else named.get(part, part)
                  for part in argv), **environment)  # fmt: skip

        return copy

    return way(True), way(False)


def tools(service: str, endpoint: str) -> dict[str, tuple[Way, Way]]:
    found: dict[str, tuple[Way, Way]] = {
        OURS: (ours(True), ours(False)),
        NEW_PROCESS: (ours_in_new_process(True), ours_in_new_process(False)),
    }
    if service == "s3":
        options = ("--s3-provider=Other", f"--s3-endpoint={endpoint}", "--s3-env-auth", "--s3-region=us-east-1")
        found["rclone"] = tool("rclone", "copy", "--transfers=8", *options, "{from}", "{to}")
        found["aws s3 cp"] = tool("aws", "s3", "cp", "--recursive", "--quiet", "{from}", "{to}")
        found["s5cmd"] = tool("s5cmd", "--endpoint-url", endpoint, "cp", "{every}", "{to}")
        found["botocore"] = (library_put(own_client), library_get(own_client))
        if importlib.util.find_spec("obstore"):
            found["obstore"] = (library_put(obstore_client(endpoint)), library_get(obstore_client(endpoint)))
    else:
        override = f"{endpoint}/storage/v1/"
        quiet = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": override, "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true"}
        found["gcloud storage"] = tool(
            "gcloud", "storage", "cp", "-r", "--no-user-output-enabled", "{every}", "{to}", **quiet
        )
        host, _, port = endpoint.rpartition("/")[2].partition(":")
        boto = {
            "Credentials:gs_json_host": host, "Credentials:gs_json_port": port, "GSUtil:prefer_api": "json",
            "GSUtil:check_hashes": "if_fast_else_skip", "Boto:ca_certificates_file": os.environ["REQUESTS_CA_BUNDLE"],
            "GSUtil:state_dir": os.path.join(os.path.dirname(os.environ["REQUESTS_CA_BUNDLE"]), "gsutil"),
        }  # fmt: skip
        options = [word for name, value in boto.items() for word in ("-o", f"{name}={value}")]
        found["gsutil"] = tool("gsutil", *options, "-m", "-q", "cp", "-r", "{every}", "{to}", BOTO_CONFIG=os.devnull)
        found["google-cloud-storage"] = (library_put(own_client), library_get(own_client))
    present = {"rclone": "rclone", "aws s3 cp": "aws", "s5cmd": "s5cmd"}
    present |= {"gcloud storage": "gcloud", "gsutil": "gsutil"}
    return {name: ways for name, ways in found.items() if name not in present or shutil.which(present[name])}


def own_client(url: str) -> tuple[Callable[[str, bytes], Any], Callable[[str], bytes]]:
    client = open_bucket(url, Access())
    return client.put, lambda path: client.get(path)[0]


def obstore_client(endpoint: str) -> Callable[[str], tuple[Callable[[str, bytes], Any], Callable[[str], bytes]]]:
    def open_(url: str) -> tuple[Callable[[str, bytes], Any], Callable[[str], bytes]]:
        import obstore  # not a dependency: measured beside what is used  # pyright: ignore[reportMissingImports]
        from obstore.store import S3Store  # pyright: ignore[reportMissingImports]

        settings = {
            "aws_endpoint": endpoint, "aws_access_key_id": "lab", "aws_secret_access_key": "secret",
            "aws_region": "us-east-1", "aws_virtual_hosted_style_request": "false", "aws_checksum_algorithm": "sha256",
        }  # fmt: skip
        store = S3Store("runs", prefix=url.split("/", 3)[3], config=settings, client_options={"allow_http": True})
        return lambda path, data: obstore.put(store, path, data), lambda path: bytes(obstore.get(store, path).bytes())

    return open_


def library_put(open_: Callable[[str], Any]) -> Way:
    def copy(directory: Path, url: str) -> None:
        put, _ = open_(url)
        paths = [path for path in directory.rglob("*") if path.is_file()]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda path: put(str(path.relative_to(directory)), path.read_bytes()), paths))

    return copy


def library_get(open_: Callable[[str], Any]) -> Way:
    def copy(directory: Path, url: str) -> None:
        _, get = open_(url)

        def fetch(path: str) -> None:
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(get(path))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fetch, open_bucket(url, Access()).entries()))

    return copy


def verified(directory: Path) -> dict[str, str]:
    """Return the hashes of the files, which are on the disk then."""

    def one(path: Path) -> tuple[str, str]:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        return str(path.relative_to(directory)), digest

    with ThreadPoolExecutor() as pool:
        return dict(pool.map(one, [path for path in directory.rglob("*") if path.is_file()]))


def random_bytes(rng: random.Random, size: int) -> bytes:
    return b"".join(rng.randbytes(min(16 * MIB, size - start)) for start in range(0, size, 16 * MIB))


def measure(service: str, case: str, mib: int, rounds: int, disk: str | None) -> Iterator[dict[str, Any]]:
    """Yield one row for each way and direction."""
    sizes = [mib * MIB] if case == "one" else [16 * MIB] * (mib // 16)
    rng = random.Random(1)
    with served(service) as endpoint, tempfile.TemporaryDirectory(prefix="bench-buckets-", dir=disk) as scratch:
        source = Path(scratch, "source")
        write_tree(source, {f"arrays/{number}/c/0": random_bytes(rng, size) for number, size in enumerate(sizes)})
        expected = verified(source)
        ways, times, failed = tools(service, endpoint), dict[tuple[str, str], list[float]](), dict[str, str]()
        for number in range(rounds):
            for name, (upload, download) in ways.items():
                if name in failed:
                    continue
                url, back = (
                    f"{service}://runs/{number}-{name.replace(' ', '-').replace(',', '')}",
                    Path(scratch, "back"),
                )
                shutil.rmtree(back, ignore_errors=True)
                back.mkdir()
                try:
                    for direction, way, directory in (("upload", upload, source), ("download", download, back)):
                        began = time.monotonic()
                        way(directory, url)
                        times.setdefault((name, direction), []).append(time.monotonic() - began)
                    if verified(back) != expected:
                        raise RuntimeError("the tree that came back is another")
                    times.setdefault((f"{name}, verified", "download"), []).append(time.monotonic() - began)
                except (RuntimeError, OSError) as error:
                    failed[name] = " ".join(str(error).split())[:200]
                with open_bucket(url, Access()) as client:
                    for path in client.entries():
                        client.delete(path)
        for direction in ("upload", "download"):
            base = statistics.median(times[OURS, direction])
            for name in [each for way in ways for each in (way, f"{way}, verified")]:
                row = {"service": service, "case": case, "direction": direction, "way": name}
                if name in failed:
                    yield {**row, "failed": failed[name]}
                verified_already = name in (f"{OURS}, verified", f"{NEW_PROCESS}, verified")
                if (name, direction) not in times or name in failed or verified_already:
                    continue
                median = statistics.median(times[name, direction])
                yield {**row, "seconds": round(median, 2), "time_ratio": round(median / base, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=["many", "one"], choices=["many", "one"])
    parser.add_argument("--services", nargs="+", default=["s3", "gs"], choices=["s3", "gs"])
    parser.add_argument("--disk", help="directory of the files; by default that of temporary files")
    options = parser.parse_args()
    for service in options.services:
        for case in options.cases:
            for row in measure(service, case, options.mib, options.rounds, options.disk):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
