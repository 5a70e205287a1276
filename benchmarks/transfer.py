"""Copy trees between two hosts with midstream and with public tools, side by side in one run.

    python benchmarks/transfer.py [--mib 512] [--small 4000] [--rounds 3] [--disk DIR] [--cases one large small]
        [--ways NAME ...]
    python benchmarks/transfer.py --link [--mib 512] [--mbit 1000] [--milliseconds 50 | --cable]

Without ``--link`` the target is a real sshd on loopback, and two of them for copies between hosts. midstream hashes
every object as it arrives, names it when its hash agrees, waits for the disk, and writes the manifest last; the other
tools do none of that, and are also timed with ``sha256sum`` at both ends (``verified``). Rounds are interleaved,
medians are compared; the nearest of the ssh tools is named for each case, without and with verification.
midstream connects over TLS to a port of the host, or, with ``over ssh`` in its name, leaves the bytes to ssh.
``time_ratio`` is the time of a way over that of midstream: above 1 means slower than midstream. Read it, not
the rates. ``cpu_ratio`` is the same for the processor's time of both sides, all programs and SSH servers together: it
says more on a machine that is busy with other things. ``socket`` is the bare way: the same bytes over one TCP
connection into files, unencrypted, unverified.

With ``--link`` the connections go over a link with a rate and a delay (`tests/simulators/link.py`, a proxy in a
process of its own: many kernels come without netem), and ``of_link`` says how much of the rate arrived as objects.
With ``--cable`` the kernel limits the rate, nearly for free and without a delay (`tests/simulators/cable.py`, as root).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host import Host
from midstream.hosts.host_pool import open_host
from midstream.hosts.local_host import LocalHost
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from simulators import link
from simulators.cable import cable
from simulators.sshd import SSHD, Lab, SshServer
from support.checkpoints.trees import cell, write_tree
from support.loopback import free_port

MIB = 1 << 20
GCM = "aes128-gcm@openssh.com"
OURS = "midstream"
OVER_SSH = "midstream, over ssh"
VERIFIED = ", verified"
NOT_SSH = ("midstream", "cp", "socket")
CASES = ("one", "large", "small")
Way = Callable[[Path, Path], None]


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def tools(server: SshServer) -> dict[str, Way]:
    """Common tools, as they are used and with the fastest cipher."""
    config = str(server.directory / "ssh_config")
    found: dict[str, Way] = {}
    for name, options in (("", []), (", aes128-gcm", ["-c", GCM])):
        ssh = " ".join(["ssh", "-F", config, *options])

        def scp(source: Path, target: Path, options: list[str] = options) -> None:
            _run("scp", "-q", "-r", "-F", config, *options, str(source), f"{server.name}:{target}")

        def rsync(source: Path, target: Path, ssh: str = ssh) -> None:
            _run("rsync", "-rW", "-e", ssh, f"{source}/", f"{server.name}:{target}/")

        def tar(source: Path, target: Path, ssh: str = ssh) -> None:
            _run("sh", "-c", f'tar -C "$1" -cf - . | {ssh} {server.name} "mkdir $2 && tar -C $2 -xf -"', "sh",
                 str(source), str(target))  # fmt: skip

        found |= {f"scp -r{name}": scp, f"tar | ssh{name}": tar}
        if shutil.which("rsync"):
            found[f"rsync -W{name}"] = rsync
    return found


def over_socket(source: Path, target: Path) -> None:
    """One TCP connection on loopback, files end to end with their names and sizes before them."""
    listener = socket.create_server(("127.0.0.1", 0))

    def receive() -> None:
        sock, _ = listener.accept()
        view = memoryview(bytearray(MIB))
        with sock, io.BufferedReader(socket.SocketIO(sock, "r"), MIB) as stream:
            while line := stream.readline():
                name, size = json.loads(line)
                place = target / name
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("wb", buffering=0) as file:
                    while size:
                        count = stream.readinto(view[: min(size, MIB)])
                        file.write(view[:count])
                        size -= count

    thread = threading.Thread(target=receive)
    thread.start()
    with socket.create_connection(listener.getsockname()) as sock:
        for place in sorted(path for path in source.rglob("*") if path.is_file()):
            sock.sendall(json.dumps([str(place.relative_to(source)), place.stat().st_size]).encode() + b"\n")
            with place.open("rb") as file:
                sock.sendfile(file)
    thread.join()
    listener.close()


def _sha256sum(source: Path, target: Path) -> None:
    """A careful user's check: at both ends, in parallel."""
    hashing = 'cd "$1" && find . -type f -print0 | xargs -0 sha256sum'
    ends = [
        subprocess.Popen(["sh", "-c", hashing, "sh", str(place)], stdout=subprocess.PIPE) for place in (source, target)
    ]
    lists = [sorted(end.communicate()[0].splitlines()) for end in ends]
    if lists[0] != lists[1]:
        sys.exit(f"{target} is not {source}")


def _processor(pid: int) -> float:
    """Seconds that a process and all that it ever started have used. What has ended is counted by its parent."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    total = sum(int(each) for each in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):  # it has exited already
                total += _processor(int(child))
    return total


def measure(case: str, source: Path, room: Path, ways: dict[str, Way], base: str, rounds: int) -> None:
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    seconds: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, copy in ways.items():
            target = room / f"{number}"
            used, began = _processor(os.getpid()), time.perf_counter()
            copy(source, target)
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            time.sleep(0.5)  # the servers' processes end
            processor.setdefault(name, []).append(_processor(os.getpid()) - used)
            if not name.startswith(("midstream", "socket")):
                again = time.perf_counter()
                _sha256sum(source, target)
                verified = seconds[name][-1] + time.perf_counter() - again
                seconds.setdefault(name + VERIFIED, []).append(verified)
            shutil.rmtree(target)
    ours = statistics.median(seconds[base])
    for name, times in seconds.items():
        median = statistics.median(times)
        row = {"case": case, "way": name, "MB_per_s": round(size / median / 1e6), "time_ratio": round(median / ours, 2)}
        if name in processor:
            row["cpu_ratio"] = round(statistics.median(processor[name]) / statistics.median(processor[base]), 2)
            row["cpu_s"] = round(statistics.median(processor[name]), 2)
        print(json.dumps(row), flush=True)
    for what, chosen in (("bare", False), ("verified", True)):
        rivals = {
            name: statistics.median(times) / ours
            for name, times in seconds.items()
            if not name.startswith(NOT_SSH) and name.endswith(VERIFIED) == chosen
        }
        if not rivals:
            continue
        nearest = min(rivals, key=lambda name: rivals[name])
        row = {"case": case, "nearest ssh tool": nearest, "as": what, "time_ratio": round(rivals[nearest], 2)}
        print(json.dumps(row), flush=True)


def cases(room: Path, options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Each tree that is wanted, on the disk only while it is used."""
    mib, small = options.mib, options.small
    rng = random.Random(0)
    block = rng.randbytes(16 * MIB)
    trees: dict[str, Callable[[], dict[str, bytes]]] = {
        "one file": lambda: {cell("one"): b"".join(index.to_bytes(8, "big") + block[8:] for index in range(mib // 16))},
        "files of 16 MiB": lambda: {cell(f"{i}"): i.to_bytes(8, "big") + block[8:] for i in range(mib // 8)},
        "files of 64 KiB": lambda: {cell(f"{i % 50}/{i}"): rng.randbytes(65536) for i in range(small)},
    }
    for (case, make), short in zip(trees.items(), CASES, strict=True):
        if short in options.cases:
            write_tree(room / "source", make())
            yield case, room / "source"
            shutil.rmtree(room / "source")


def _copies(source: Host, target: Host, settings: CopySettings | None = None) -> Way:
    return lambda here, there: void(
        copy_tree(Endpoint(source, str(here)), Endpoint(target, str(there)), settings=settings)
    )


def void(_: object) -> None:
    """A copy's report is not looked at."""


def _wanted(ways: dict[str, Way], options: argparse.Namespace) -> dict[str, Way]:
    return {name: way for name, way in ways.items() if options.ways is None or name in (OURS, *options.ways)}


def on_loopback(room: Path, options: argparse.Namespace) -> None:
    with contextlib.closing(Lab(room / "lab")) as lab:
        here = LocalHost("here", LocalHostConfig(root=str(room / "root")))
        servers = [lab.host(name) for name in ("far", "near")]
        far, near = (open_host(server.name, server.config) for server in servers)
        for host in (far, near):
            host.connect()
        ways = {
            OURS: _copies(here, far),
            OVER_SSH: _copies(here, far, CopySettings(route="relay")),
            **tools(servers[0]),
            "midstream, host to host, direct": _copies(near, far, CopySettings(route="direct")),
            "midstream, host to host, relayed": _copies(near, far, CopySettings(route="relay")),
            "midstream, local": _copies(here, here),
            "cp -r": lambda source, target: _run("cp", "-r", str(source), str(target)),
            "socket": over_socket,
        }
        ways = _wanted(ways, options)
        for case, source in cases(room, options):
            measure(case, source, room, ways, OURS, options.rounds)
        for host in (far, near):
            host.close()


@contextlib.contextmanager
def over_proxy(lab: Lab, options: argparse.Namespace) -> Iterator[SshServer]:
    server = lab.host("far")
    words = server.port, options.milliseconds, options.mbit, (copy_port := free_port())
    argv = [sys.executable, link.__file__, *map(str, words)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        try:
            yield link.through(server, int(proxy.stdout.readline()), copy_port)
        finally:
            proxy.kill()


@contextlib.contextmanager
def over_cable(lab: Lab, options: argparse.Namespace) -> Iterator[SshServer]:
    with cable() as made:
        made.limit(options.mbit)
        yield lab.host("far", address=made.there, space=made.space)


def on_a_link(room: Path, options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(contextlib.closing(Lab(room / "lab")))
        server = stack.enter_context((over_cable if options.cable else over_proxy)(lab, options))
        here, far = LocalHost("here", LocalHostConfig(root=str(room / "root"))), open_host(server.name, server.config)
        far.connect()
        ways = {
            OURS: _copies(here, far),
            OVER_SSH: _copies(here, far, CopySettings(route="relay")),
            **{name: way for name, way in tools(server).items() if "gcm" not in name},
        }
        ways = _wanted(ways, options)
        for case, source in cases(room, options):
            size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
            for number in range(options.rounds):
                for name, copy in ways.items():
                    target = room / f"{number}"
                    began = time.perf_counter()
                    copy(source, target)
                    share = round(size * 8 / (time.perf_counter() - began) / (options.mbit * 1e6), 3)
                    print(json.dumps({"case": case, "way": name, "of_link": share}), flush=True)
                    shutil.rmtree(target)
        far.close()


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    flags.add_argument("--mib", type=int, default=512, help="size of the one file; the files of 16 MiB are twice that")
    flags.add_argument("--small", type=int, default=4000, help="files of 64 KiB")
    flags.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="one file, many large, many small")
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--disk", help="directory of the trees: by default with temporary files; /dev/shm is memory")
    flags.add_argument("--link", action="store_true")
    flags.add_argument(
        "--cable", action="store_true", help="with --link: the kernel limits the rate; no delay, as root"
    )
    flags.add_argument("--ways", nargs="*", metavar="NAME", help="only these beside midstream; none: midstream alone")
    flags.add_argument("--milliseconds", type=float, default=50.0)
    flags.add_argument("--mbit", type=float, default=1000.0)
    options = flags.parse_args()
    if not SSHD:
        sys.exit("no sshd: apt-get install openssh-server")
    version = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr.strip()
    about = {
        "date": f"{datetime.date.today()}",
        "cpus": os.cpu_count(),
        "python": sys.version.split()[0],
        "ssh": version,
    }
    print(json.dumps({**about, "load": os.getloadavg()[0]}), flush=True)
    with tempfile.TemporaryDirectory(prefix="midstream-bench-", dir=options.disk) as name:
        (on_a_link if options.link else on_loopback)(Path(name), options)


if __name__ == "__main__":
    main()
