"""`stores:` of the fleet file: validation, and the credentials for each bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet_file import parse_fleet
from midstream.launch.launch_run import store_flags
from midstream.stores.bucket_access import Access, access_for
from midstream_core.object_store.access import VARIABLE

HOSTS = "hosts: {a: {type: local, store: runs}, b: {type: local, store: 'gs://other/x/'}, c: {type: local}}\n"


def test_bucket_access_comes_from_the_enclosing_store() -> None:
    fleet = parse_fleet(
        HOSTS + "stores:\n  runs: {url: gs://runs/p/, credentials: ~/key.json, impersonate: a@b.iam.x,"
        " user_project: us}\n"
        "  open: {url: gs://runs, credentials: anonymous}\n  mine: {url: gs://mine, project: p}\n"
        "  cloud: {url: s3://runs/p, endpoint: 'https://s3.example.com', region: eu-1, profile: lab}\n"
    )
    assert [fleet.store_of(name) for name in "abc"] == ["gs://runs/p", "gs://other/x", ""]
    key = str(Path("~/key.json").expanduser())
    assert access_for(fleet, "gs://runs/p/runs/r") == Access(key, impersonate="a@b.iam.x", user_project="us")
    assert access_for(fleet, "gs://runs/pq") == Access("anonymous")
    assert access_for(fleet, "gs://mine") == Access(project="p")
    assert access_for(fleet, "s3://runs/p/x") == Access(endpoint="https://s3.example.com", region="eu-1", profile="lab")
    engines = json.loads(fleet.hosts["a"].env[VARIABLE])
    assert engines["s3://runs/p"] == {"endpoint": "https://s3.example.com", "region": "eu-1"}, "no profile, no key"
    assert access_for(fleet, "gs://nowhere") == access_for(None, "gs://runs") == Access()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{}", "stores.s.url is ''"),
        ("{url: s4://runs}", "stores.s.url is 's4://runs'"),
        ("{url: s3://Upper}", "stores.s.url is 's3://Upper'"),
        ("{url: s3://runs, user_project: us}", "is s3:// and has user_project"),
        ("{url: gs://runs, profile: lab}", "is gs:// and has profile"),
        ("{url: s3://runs, endpoint: 's3.example.com'}", "endpoint is no URL"),
        ("{url: s3://runs, endpoint: 'https://me:SECRET@s3.example.com'}", "endpoint is no URL"),
        ("{url: s3://runs, credentials: anonymous, profile: lab}", "anonymous and has profile"),
        ("{url: gs://runs, bucket: x}", "stores.s.bucket is unknown"),
        ("{url: gs://runs, credentials: key.json}", "neither default nor anonymous nor an absolute path"),
        ('{url: gs://runs, credentials: \'{"private_key": "SECRET"}\'}', "name the key file, never its content"),
        ("{url: gs://runs, credentials: anonymous, user_project: us}", "anonymous and has user_project"),
        ("{url: gs://runs, credentials: anonymous, impersonate: a@b.c}", "anonymous and has impersonate"),
        ("{url: gs://runs, impersonate: alice}", "impersonate is 'alice'"),
        ("{url: gs://runs, credentials: [a]}", "credentials"),
        ("gs://runs", "stores.s is str"),
    ],
)
def test_invalid_store_is_refused_in_one_line(entry: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fleet(HOSTS.replace("runs", "gs://runs") + f"stores: {{s: {entry}}}\n", "fleet.yaml")
    line = f"{caught.value.message} ({caught.value.hint})"
    assert "fleet.yaml" in line
    assert message in line
    assert "\n" not in line
    assert "SECRET" not in line


def test_hosts_name_existing_stores_and_groups_share_one() -> None:
    with pytest.raises(UsageError, match=r"hosts\.a\.store is 'runs'"):
        parse_fleet(HOSTS)
    with pytest.raises(UsageError, match=r"stores\.y and stores\.x have the same url"):
        parse_fleet("stores: {x: {url: gs://runs}, y: {url: gs://runs/}}")
    with pytest.raises(UsageError, match=r"hosts of targets\.g have different stores"):
        parse_fleet(HOSTS + "stores: {runs: {url: gs://runs}}\ntargets: {g: {type: hosts, hosts: [a, b]}}")
    slice_of = "{type: tpu, project: p, zone: z, worker: {store: nothing}}"
    with pytest.raises(UsageError, match=r"targets\.t\.worker\.store is 'nothing'"):
        parse_fleet(f"targets: {{t: {slice_of}}}")


def test_new_run_uses_its_hosts_store_unless_configured() -> None:
    flag = "--trainer.checkpointer.base_path"
    assert store_flags("gs://runs/p", "trainer: {id: r}", ()) == (flag, "gs://runs/p")
    assert store_flags("gs://runs/p", "model: {type: gpt2}", ("--trainer.id", "r")) == (flag, "gs://runs/p")
    assert store_flags("", "trainer: {id: r}", ()) == ()
    assert store_flags("gs://runs/p", "trainer: {checkpointer: {base_path: null}}", ()) == ()
    assert store_flags("gs://runs/p", "trainer: {id: r}", (f"{flag}=gs://other",)) == ()
    assert store_flags("gs://runs/p", "trainer: {id: r}", (flag, "null")) == ()
