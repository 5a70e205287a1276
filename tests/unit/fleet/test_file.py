"""The fleet file: valid content, and the one-line errors of invalid content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from midstream.errors import Exit, UsageError
from midstream.fleet.fleet import LocalHostConfig, SshHostConfig
from midstream.fleet.fleet_file import load_fleet, parse_fleet
from midstream.fleet.ssh_address import parse_address
from support.paths import CONFIGS

EXAMPLE = CONFIGS / "fleet.example.yaml"


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_fleet(text, "fleet.yaml")
    assert caught.value.code == Exit.USAGE
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_example_fleet_file_loads() -> None:
    fleet = load_fleet(EXAMPLE)
    assert fleet.target_names == (
        "here", "a100", "h100", "node1", "node2", "login", "boxed", "pod", "pods-0", "pods-1",
        "big", "pair", "cluster", "pods", "slice", "ironwood",
    )  # fmt: skip
    assert [receiver.type for receiver in fleet.notify] == ["slack", "webhook"]
    assert fleet.target("pair").hosts == ("node1", "node2")
    assert {fleet.hosts[name].root for name in ("node1", "node2")} == {"/nfs/midstream"}
    assert fleet.target("cluster").slurm is not None
    assert fleet.target("pods").hosts == ("pods-0", "pods-1")
    assert fleet.target("big").hosts == ("h100",)
    assert fleet.target("a100").hosts == ("a100",)
    here, h100 = fleet.hosts["here"], fleet.hosts["h100"]
    assert isinstance(here, LocalHostConfig)
    assert here.devices == 4
    assert isinstance(h100, SshHostConfig)
    billed = (
        '{"gs://my-bucket/runs": {"user_project": "my-project"}, '
        '"s3://my-bucket/runs": {"endpoint": "https://s3.example.com", "region": "eu-1"}}'
    )  # of stores:, for every engine
    assert (h100.user, h100.port) == ("me", 2222)
    assert h100.env == {"NCCL_DEBUG": "WARN", "MIDSTREAM_STORES": billed}


def test_empty_file_is_an_empty_fleet() -> None:
    assert parse_fleet("").target_names == ()


def test_path_comes_from_flag_before_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, other = tmp_path / "named.yaml", tmp_path / "other.yaml"
    named.write_text("hosts: {a: {type: local}}\n")
    other.write_text("hosts: {b: {type: local}}\n")
    monkeypatch.setenv("MIDSTREAM_FLEET", str(other))
    assert list(load_fleet(named).hosts) == ["a"]
    assert list(load_fleet().hosts) == ["b"]


def test_missing_file_error_names_init(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"no fleet file at .*none\.yaml \(midstream --init --fleet .*none.yaml writes"
    ):
        load_fleet(tmp_path / "none.yaml")


def test_binary_file_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"fleet\.yaml cannot be read"):
        load_fleet(file)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hosts:\n  a: {type: local\n  b: {type: local}\n", "fleet.yaml:3: "),
        ("hosts:\n  a: 'open\n", "fleet.yaml:3: "),
        ("hosts:\n\ta: 1\n", "fleet.yaml:2: "),
    ],
)
def test_malformed_yaml_error_has_the_line(text: str, line: str) -> None:
    assert refusal(text).startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hosts:\n  a: {type: local}\n  b: {type: local}\n  a: {type: local, root: /x}\n", "fleet.yaml:4: a"),
        ("hosts: {}\nhosts: {a: {type: local}}\n", "fleet.yaml:2: hosts"),
        ("hosts:\n  a:\n    type: local\n    store: gs://b-1\n    store: gs://b-2\n", "fleet.yaml:5: store"),
        ("hosts:\n  a:\n    type: local\n    env: {A: 1, B: 2, A: 3}\n", "fleet.yaml:4: A"),
    ],
)
def test_key_that_is_there_twice_is_refused(text: str, line: str) -> None:
    assert refusal(text).startswith(f"{line} is given twice, first in line ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts:\n  a: {type: local, env: &x {a: *x}}\n", "fleet.yaml:2: *x is inside of &x"),
        ("hosts:\n  a: &x\n    type: local\n    env: [[*x]]\n", "fleet.yaml:4: *x is inside of &x"),
        ("hosts: " + "[" * 5000, "fleet.yaml: lists and mappings are nested too deeply"),
        ("hosts: " + "{a: " * 5000 + "1" + "}" * 5000, "fleet.yaml: lists and mappings are nested too deeply"),
    ],
    ids=["env of itself", "list in itself", "lists", "mappings"],
)
def test_endless_and_deep_values_are_refused(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


def test_variables_and_flags_are_texts_as_written() -> None:
    fleet = parse_fleet(
        "hosts:\n"
        "  1.10: {type: local, env: {A: no, B: 010, C: 12:30, D: 1_000, E: 3.10, F: true, G: , H: 2026-01-01}}\n"
        "  no: {type: ssh, address: b, port: &port 2222, user: 007, env: {PORT: *port}, setup: [true, 'a b']}\n"
        "targets:\n"
        "  both: {type: hosts, hosts: [no, 1.10]}\n"
        "  jobs: {type: slurm, host: no, sbatch: [-t, 12:00:00, -N, 2]}\n"
    )
    env = {"A": "no", "B": "010", "C": "12:30", "D": "1_000", "E": "3.10", "F": "true", "G": "", "H": "2026-01-01"}
    assert fleet.hosts["1.10"].env == env
    assert fleet.target("both").hosts == ("no", "1.10")
    host, jobs = fleet.hosts["no"], fleet.target("jobs").slurm
    assert isinstance(host, SshHostConfig)
    assert jobs is not None
    assert (host.port, host.user, host.env, host.setup) == (2222, "007", {"PORT": "2222"}, ["true", "a b"])
    assert (jobs.host, jobs.sbatch) == ("no", ["-t", "12:00:00", "-N", "2"])


def test_merged_mapping_may_repeat_a_key() -> None:
    fleet = parse_fleet("hosts:\n  a: &a {type: local, root: /a, env: {X: no}}\n  b: {<<: *a, root: /b}\n")
    assert (fleet.hosts["b"].root, fleet.hosts["b"].env) == ("/b", {"X": "no"})


@pytest.mark.parametrize("merged", ["*common", "[*common]", "{X: no, Y: 010}"])
def test_merged_variables_are_texts_as_written(merged: str) -> None:
    fleet = parse_fleet(
        "hosts:\n"
        "  a: {type: local, env: &common {X: no, Y: 010}}\n"
        f"  b: {{type: local, env: {{<<: {merged}, Z: 12:30}}}}\n"
    )
    assert fleet.hosts["b"].env == {"X": "no", "Y": "010", "Z": "12:30"}


def test_flag_of_null_is_a_text() -> None:
    fleet = parse_fleet("hosts: {a: {type: local}}\ntargets:\n  j: {type: slurm, host: a, sbatch: [--comment, null]}\n")
    slurm = fleet.target("j").slurm
    assert slurm is not None
    assert slurm.sbatch == ["--comment", "null"]


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ([], ""),
        (["--signal", "B:USR1@90"], ""),
        (["--nodes=1", "--signal=SIGTERM@60"], ""),
        (["--signal=KILL@60"], "--signal of KILL"),
        (["--signal"], "--signal of nothing"),
        (["-W"], "has --wait"),
    ],
)
def test_flags_of_sbatch_that_lose_steps_are_refused(flags: list[str], refused: str) -> None:
    """A target may have no flags: the cluster's defaults hold."""
    text = f"hosts: {{a: {{type: local}}}}\ntargets:\n  j: {{type: slurm, host: a, sbatch: {json.dumps(flags)}}}\n"
    for given in (text, text if flags else text.replace(", sbatch: []", "")):
        if refused:
            with pytest.raises(UsageError, match=refused):
                parse_fleet(given)
        else:
            slurm = parse_fleet(given).target("j").slurm
            assert slurm is not None
            assert slurm.sbatch == flags


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "fleet.yaml: expected hosts:, targets: and stores:, found list"),
        ("host: {}", "fleet.yaml: host is unknown (did you mean hosts?)"),
        ("hosts: [a]", "fleet.yaml: hosts is list (hosts: {NAME: {type: ...}})"),
        ("hosts: {a: local}", "fleet.yaml: hosts.a is str ({type: ..., ...})"),
        ("hosts: {a: {}}", "fleet.yaml: hosts.a has no type (type: local or ssh or kubernetes)"),
        ("hosts: {a: {type: shh}}", "fleet.yaml: hosts.a.type is 'shh' (did you mean ssh?)"),
        ("hosts: {a: {type: ssh}}", "fleet.yaml: hosts.a has no address (address: [user@]name[:port])"),
        (
            "hosts: {a: {type: ssh, adress: b}}",
            "fleet.yaml: hosts.a.adress is unknown (did you mean address?)",
        ),
        (
            "hosts: {a: {type: local, devices: 0}}",
            "fleet.yaml: hosts.a.devices is 0 (1 or more virtual CPU devices, or null)",
        ),
        (
            "hosts: {a: {type: local, devices: [0, x]}}",
            "fleet.yaml: hosts.a.devices: x is no GPU (devices: [0, 1], or GPU-... and MIG-... of nvidia-smi -L; a "
            "number creates virtual CPU devices)",
        ),
        (
            "hosts: {a: {type: local, devices: [1], env: {CUDA_VISIBLE_DEVICES: 0}}}",
            "fleet.yaml: hosts.a has both devices: and CUDA_VISIBLE_DEVICES in env: (one of them)",
        ),
        (
            "hosts: {a: {type: local, devices: [1]}}\ntargets: {t: {type: slurm, host: a}}",
            "fleet.yaml: hosts.a chooses GPUs, and is the login node of targets.t (SLURM chooses the GPUs of a job: "
            "remove devices: and CUDA_VISIBLE_DEVICES there)",
        ),
        (
            "hosts: {gpu1: {type: local}}\ntargets: {t: {type: hosts, hosts: [gpu2]}}",
            "fleet.yaml: targets.t names host 'gpu2' (did you mean gpu1?)",
        ),
        ("targets: {t: {type: hosts}}", "fleet.yaml: targets.t names no hosts (hosts: [a, b])"),
        (
            "hosts: {a: {type: local, price_per_hour: twelve}}",
            "fleet.yaml: hosts.a.price_per_hour is 'twelve' (a number)",
        ),
        (
            "hosts: {a: {type: local, env: [A=1]}}",
            "fleet.yaml: hosts.a.env is a list (names and values: {NAME: VALUE})",
        ),
        (
            "hosts: {a: {type: local}}\ntargets: {t: {type: slurm, host: a, sbatch: --nodes=2}}",
            "fleet.yaml: targets.t.sbatch is '--nodes=2' (a list: [TEXT, ...])",
        ),
    ],
)
def test_errors_name_the_field_and_the_fix(text: str, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize(
    ("fields", "visible", "order"),
    [
        ("devices: [2, 3]", ["2", "3"], "PCI_BUS_ID"),
        ("devices: [MIG-c6d4f1ef-42e4, GPU-8932f937]", ["MIG-c6d4f1ef-42e4", "GPU-8932f937"], None),
        ("env: {CUDA_VISIBLE_DEVICES: 1}", ["1"], "PCI_BUS_ID"),
        ("env: {CUDA_VISIBLE_DEVICES: '0,1', CUDA_DEVICE_ORDER: FASTEST_FIRST}", ["0", "1"], "FASTEST_FIRST"),
        ("env: {CUDA_VISIBLE_DEVICES: ''}", [], None),
        ("devices: 2", None, None),
        ("env: {A: b}", None, None),
    ],
)
def test_part_of_a_machine_is_chosen(fields: str, visible: list[str] | None, order: str | None) -> None:
    """An index means the GPU that nvidia-smi calls so, which is what is counted and watched."""
    host = parse_fleet(f"hosts: {{a: {{type: local, {fields}}}}}", "fleet.yaml").hosts["a"]
    assert host.visible == visible
    assert host.env.get("CUDA_DEVICE_ORDER") == order
    assert host.devices == (2 if fields == "devices: 2" else None)


def test_wrong_type_error_names_file_and_field() -> None:
    message = refusal("hosts: {a: {type: local, devices: many}}")
    assert message.startswith("fleet.yaml: ")
    assert "devices" in message


def test_unknown_target_error_suggests_similar_names() -> None:
    fleet = parse_fleet("hosts: {large: {type: local}, small: {type: local}}", "fleet.yaml")
    with pytest.raises(UsageError, match=r"no target 'larg' in fleet.yaml \(did you mean large\?\)"):
        fleet.target("larg")
    with pytest.raises(UsageError, match=r"known: large, small"):
        fleet.target("zzz")


def test_slice_without_lookup_has_no_hosts() -> None:
    fleet = parse_fleet("targets: {pod: {type: tpu, project: p, zone: z}}", "fleet.yaml")
    assert fleet.target_names == ("pod",)
    with pytest.raises(UsageError, match="the workers of pod are unknown"):
        fleet.target("pod")


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ("type: ssh, address: 'host:abc'", "address 'host:abc' is malformed"),
        ("type: ssh, address: 'host:99999'", "address 'host:99999': 99999 is no port"),
        ("type: ssh, address: 'host:0'", "address 'host:0': 0 is no port"),
        ("type: local, price_per_hour: -1", "price_per_hour is -1"),
        ("type: local, price_per_hour: .nan", "price_per_hour is nan"),
    ],
)
def test_wrong_address_or_price_is_refused_when_the_file_is_read(entry: str, line: str) -> None:
    """Later, a feed printed a traceback, and costs were negative."""
    assert refusal(f"hosts:\n  a: {{{entry}}}\n").startswith(f"fleet.yaml: hosts.a.{line}")


def test_price_of_a_slice_is_refused_too() -> None:
    entry = "{type: tpu, project: p, zone: z, hosts: [h], price_per_hour: -2}"
    text = refusal(f"hosts: {{h: {{type: local}}}}\ntargets:\n  pod: {entry}\n")
    assert text.startswith("fleet.yaml: targets.pod.price_per_hour is -2")


def test_address_may_be_a_url_as_ssh_takes_it() -> None:
    assert parse_address("ssh://me@host:2222/", "") == ("me", "host", 2222)
    assert parse_address("me@[::1]:65535", "") == ("me", "::1", 65535)
    with pytest.raises(UsageError, match="'host -p 2270' is not a host name"):
        parse_address("host -p 2270", "")
