"""`stores:` of the fleet file: what makes sense, and whose credentials ask where."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet_file import parse_fleet
from midstream.launch.launch_run import store_flags
from midstream.stores.bucket_access import Access, access_for

HOSTS = "hosts: {a: {type: local, store: runs}, b: {type: local, store: 'gs://other/x/'}, c: {type: local}}\n"


def test_the_store_that_a_place_lies_in_says_who_asks_there() -> None:
    fleet = parse_fleet(
        HOSTS + "stores:\n  runs: {url: gs://runs/p/, credentials: ~/key.json, impersonate: a@b.iam.x,"
        " user_project: us}\n"
        "  open: {url: gs://runs, credentials: anonymous}\n  mine: {url: gs://mine, project: p}\n"
    )
    assert [fleet.store_of(name) for name in "abc"] == ["gs://runs/p", "gs://other/x", ""]
    key = str(Path("~/key.json").expanduser())
    assert access_for(fleet, "gs://runs/p/runs/r") == Access(key, "a@b.iam.x", "", "us")
    assert access_for(fleet, "gs://runs/pq") == Access("anonymous")
    assert access_for(fleet, "gs://mine") == Access(project="p")
    assert access_for(fleet, "gs://nowhere") == access_for(None, "gs://runs") == Access()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{}", "stores.s.url is ''"),
        ("{url: s3://runs}", "stores.s.url is 's3://runs'"),
        ("{url: gs://runs, bucket: x}", "stores.s.bucket is not known"),
        ("{url: gs://runs, credentials: key.json}", "neither default nor anonymous nor a whole path"),
        ('{url: gs://runs, credentials: \'{"private_key": "SECRET"}\'}', "name the key file, never its content"),
        ("{url: gs://runs, credentials: anonymous, user_project: us}", "anonymous and has user_project"),
        ("{url: gs://runs, credentials: anonymous, impersonate: a@b.c}", "anonymous and has impersonate"),
        ("{url: gs://runs, impersonate: somebody}", "impersonate is 'somebody'"),
        ("{url: gs://runs, credentials: [a]}", "credentials"),
        ("gs://runs", "stores.s is str"),
    ],
)
def test_a_store_that_makes_no_sense_is_refused_in_one_line(entry: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fleet(HOSTS.replace("runs", "gs://runs") + f"stores: {{s: {entry}}}\n", "fleet.yaml")
    line = f"{caught.value.message} ({caught.value.hint})"
    assert "fleet.yaml" in line
    assert words in line
    assert "\n" not in line
    assert "SECRET" not in line


def test_hosts_name_stores_that_are_there_and_a_group_has_one() -> None:
    with pytest.raises(UsageError, match=r"hosts\.a\.store is 'runs'"):
        parse_fleet(HOSTS)
    with pytest.raises(UsageError, match=r"stores\.y and stores\.x have the same url"):
        parse_fleet("stores: {x: {url: gs://runs}, y: {url: gs://runs/}}")
    with pytest.raises(UsageError, match=r"hosts of targets\.g have different stores"):
        parse_fleet(HOSTS + "stores: {runs: {url: gs://runs}}\ntargets: {g: {type: hosts, hosts: [a, b]}}")
    slice_of = "{type: tpu, project: p, zone: z, worker: {store: nothing}}"
    with pytest.raises(UsageError, match=r"targets\.t\.worker\.store is 'nothing'"):
        parse_fleet(f"targets: {{t: {slice_of}}}")


def test_a_new_run_keeps_its_checkpoints_where_its_host_does_unless_it_says_otherwise() -> None:
    flag = "--trainer.checkpointer.base_path"
    assert store_flags("gs://runs/p", "trainer: {id: r}", ()) == (flag, "gs://runs/p")
    assert store_flags("gs://runs/p", "model: {type: gpt2}", ("--trainer.id", "r")) == (flag, "gs://runs/p")
    assert store_flags("", "trainer: {id: r}", ()) == ()
    assert store_flags("gs://runs/p", "trainer: {checkpointer: {base_path: null}}", ()) == ()
    assert store_flags("gs://runs/p", "trainer: {id: r}", (f"{flag}=gs://other",)) == ()
    assert store_flags("gs://runs/p", "trainer: {id: r}", (flag, "null")) == ()
