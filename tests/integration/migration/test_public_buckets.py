"""Complete migrations from and to buckets of services that nobody here wrote: moto (S3) and gcp-storage-emulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from midstream_core import records
from midstream_core.object_store.access import Access
from midstream_core.object_store.open_bucket import open_bucket
from simulators.object_stores.public_services import gcs_emulator, moto
from simulators.sshd import Lab, SshServer, environment
from support.command_line import SLOWER, TINY, Ended, Run, midstream
from support.imports.neox_run import STEP, expected_losses, write_run

pytestmark = pytest.mark.system
BUCKET = "my-bucket"
URLS = {"s3": f"s3://{BUCKET}/bucket/runs", "gs": f"gs://{BUCKET}/bucket/runs"}
TRAINING = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 20}]")
MIGRATE = ("--certify-steps", "3", "--healthy-steps", "3", "--json")


@dataclass(frozen=True)
class Service:
    """A running service, and the environment of its clients."""

    scheme: str
    variables: dict[str, str]

    @property
    def url(self) -> str:
        return URLS[self.scheme]

    def host(self, lab: Lab, name: str, devices: int) -> SshServer:
        """Create a host with the service's credentials, whose checkpoint store is its bucket."""
        host = lab.host(name, devices=devices, sshd=environment(**self.variables))
        host.config = replace(host.config, store=self.scheme)
        return host

    def checkpoints(self, run_id: str) -> dict[str, records.Manifest]:
        """Return the manifests of the complete checkpoints."""
        with open_bucket(f"{self.url}/runs/{run_id}/checkpoints", Access()) as client:
            found: dict[str, records.Manifest] = {}
            for path in client.entries():
                name, _, inner = path.partition("/")
                if inner == records.MANIFEST and not name.startswith("."):
                    with suppress(FileNotFoundError):  # a running engine deletes old ones
                        found[name] = records.Manifest.from_json(json.loads(client.get(path)[0]))
            return found

    def pins(self, run_id: str) -> list[str]:
        with open_bucket(f"{self.url}/runs/{run_id}", Access()) as client:
            return [path for path in client.entries() if "pins/" in path]


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Service]]:
    """Return a function that starts the service of a scheme, and sets its environment here."""
    with ExitStack() as stack:

        def start(scheme: str) -> Service:
            package = {"s3": "moto", "gs": "gcp_storage_emulator"}[scheme]
            pytest.importorskip(package, reason=f"needs {package.replace('_', '-')}: make setup")
            variables = stack.enter_context({"s3": moto, "gs": gcs_emulator}[scheme](BUCKET))
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            return Service(scheme, variables)

        yield start


def fleet_file(lab: Lab, **hosts: SshServer) -> Path:
    file = lab.fleet_file(**{name: host.config for name, host in hosts.items()})
    stores = ", ".join(f"{scheme}: {{url: {url}}}" for scheme, url in URLS.items())
    file.write_text(f"{file.read_text()}stores: {{{stores}}}\n")
    return file


def assert_certified(moved: Ended, source: Run, target: Run, owner: str) -> None:
    """Assert that every claim was verified and that the target trains from the checkpoint that was sealed."""
    assert moved.code == 0, (moved.stdout[-2000:], moved.stderr[-2000:])
    certificate = moved.result["certificate"]
    assert certificate["valid"], certificate
    claims = {claim["name"]: claim["verdict"] for claim in certificate["claims"]}
    assert (claims["state"], claims["data"], claims["reference losses"]) == ("verified", "verified", "verified")
    assert (target.fence.owner, source.fence.epoch) == (owner, target.fence.epoch)
    assert (source.running, target.running) == (False, True)
    restored = records.Restore.read(target.paths.attempt(target.attempt).restore)
    assert restored.checkpoint == certificate["checkpoint"]


def restored_digest(run: Run) -> str:
    """Return the root digest of the state that the newest attempt has restored."""
    return records.Restore.read(run.paths.attempt(run.attempt).restore).root_digest


@pytest.mark.parametrize(
    "scheme", [pytest.param("s3", marks=pytest.mark.drawn), pytest.param("gs", marks=pytest.mark.slow)]
)
def test_migration_from_disk_to_bucket_and_back(
    lab: Lab, services: Callable[[str], Service], runs: Callable[..., Run], scheme: str
) -> None:
    service = services(scheme)
    gpu, cloud = lab.host("gpu", devices=2), service.host(lab, "cloud", 4)
    file = fleet_file(lab, gpu=gpu, cloud=cloud)
    launched = midstream("--fleet", file, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *TRAINING)
    assert launched.code == 0, launched.stderr
    here, there = runs(gpu.root, "r"), runs(cloud.root, "r")
    here.wait_step(5)

    moved = midstream("--fleet", file, "--migrate", "r", "--to", "cloud", *MIGRATE)
    assert_certified(moved, here, there, "cloud")
    sealed = moved.result["certificate"]["checkpoint"]
    assert restored_digest(there) == here.manifest(sealed).root_digest
    assert records.Store.read(there.paths.store_file).url == service.url
    there.wait(lambda _: any("-a002" in name for name in service.checkpoints("r")), "a save of its own", timeout=180)
    assert there.checkpoints() == []

    checked = midstream("--fleet", file, "--verify", "r")
    assert checked.code == 0, checked.stderr
    assert service.url in checked.stdout

    back = midstream("--fleet", file, "--migrate", "r", "--to", "gpu", "--mode", "cold", *MIGRATE)
    assert_certified(back, there, here, "gpu")
    again = back.result["certificate"]["checkpoint"]
    assert restored_digest(here) == service.checkpoints("r")[again].root_digest, "the source's checkpoint remains"
    assert service.pins("r") == []
    for migration in (moved, back):
        rechecked = midstream("--fleet", file, "--verify", migration.result["migration"])
        assert rechecked.code == 0, (rechecked.stdout, rechecked.stderr)


@pytest.mark.slow  # a complete migration
@pytest.mark.parametrize(("source", "target"), [("gs", "s3"), ("s3", "gs")])
def test_migration_between_buckets_of_two_services(
    lab: Lab, services: Callable[[str], Service], runs: Callable[..., Run], source: str, target: str
) -> None:
    """The bytes stream from one bucket to the other; no disk has the checkpoint."""
    first, second = services(source), services(target)
    one, two = first.host(lab, "one", 2), second.host(lab, "two", 4)
    file = fleet_file(lab, one=one, two=two)
    launched = midstream("--fleet", file, "--launch", TINY, "--on", "one", "--run-id", "r", "--", *TRAINING)
    assert launched.code == 0, launched.stderr
    here, there = runs(one.root, "r"), runs(two.root, "r")
    here.wait_step(5)
    moved = midstream("--fleet", file, "--migrate", "r", "--to", "two", *MIGRATE)
    assert_certified(moved, here, there, "two")
    sealed = moved.result["certificate"]["checkpoint"]
    assert restored_digest(there) == first.checkpoints("r")[sealed].root_digest
    assert records.Store.read(there.paths.store_file).url == second.url
    assert (here.checkpoints(), there.checkpoints()) == ([], [])
    rechecked = midstream("--fleet", file, "--verify", moved.result["migration"])
    assert rechecked.code == 0, (rechecked.stdout, rechecked.stderr)


@pytest.mark.parametrize(
    "scheme", [pytest.param("s3", marks=pytest.mark.drawn), pytest.param("gs", marks=pytest.mark.slow)]
)
def test_import_from_bucket_to_target_with_bucket(
    lab: Lab, services: Callable[[str], Service], runs: Callable[..., Run], tmp_path: Path, scheme: str
) -> None:
    """Another trainer's checkpoint in a bucket is imported on a host and migrated to one whose store is a bucket."""
    service = services(scheme)
    folder = write_run(tmp_path)
    with open_bucket(f"{scheme}://{BUCKET}/lab/pythia", Access()) as client:
        for path in (path for path in folder.rglob("*") if path.is_file()):
            client.put(str(path.relative_to(folder)), path.read_bytes())
    gpu = lab.host("gpu", devices=1, sshd=environment(**service.variables))
    cloud = service.host(lab, "cloud", 2)
    file = fleet_file(lab, gpu=gpu, cloud=cloud)
    imported = midstream(
        "--fleet", file, "--migrate", f"gpu:{scheme}://{BUCKET}/lab/pythia", "--to", "cloud", "--certify-steps", "2",
        "--healthy-steps", "2", "--json",
    )  # fmt: skip
    assert imported.code == 0, (imported.stdout[-2000:], imported.stderr[-2000:])
    certificate = imported.result["certificate"]
    assert certificate["valid"], certificate
    assert certificate["step"] == STEP
    target = runs(cloud.root, "pythia")
    target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
    assert target.fence.owner == "cloud"
    found, losses = target.spliced(), expected_losses()
    assert {step: found[step]["train/loss"] for step in losses} == pytest.approx(losses, rel=1e-4)
    assert service.checkpoints("pythia"), "the target saves to its bucket"
    assert target.checkpoints() == []
