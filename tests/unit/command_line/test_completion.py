"""Shell completion: names from local files, scripts that a real shell runs."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from midstream.cli import main
from midstream.completion_names import KINDS, flag_names, local_names
from midstream.completion_scripts import script
from midstream.flags import SHELLS, parser
from midstream.fleet.fleet import Fleet, LocalHostConfig, SshHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.operations.checkpoint_argument import resolve_checkpoint
from midstream.watch.fleet_cache import FLEETS, read_entries, write_entry
from midstream.watch.known_names import names_file, read_names, remember_names
from midstream.watch.snapshot import DOWN, LIVE, HostView, RunView, Snapshot
from midstream_core.listed_checkpoint import ListedCheckpoint

FLEET = """\
hosts:
  here: {type: local}
  lab: {type: ssh, address: me@lab}
targets:
  big: {type: hosts, hosts: [here]}
"""


def run_view(run_id: str, host: str, *steps: int, store: str = "") -> RunView:
    checkpoints = tuple(ListedCheckpoint(f"step-{step}-a001", step, 1, step > 0, True) for step in steps)
    return RunView(run_id, host, None, None, 1, None, True, checkpoints, store=store)


def snapshot(*runs: RunView, **links: str) -> Snapshot:
    return Snapshot(1, 0.0, tuple(HostView(name, "ssh", link) for name, link in links.items()), runs)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A fleet file whose hosts have been seen with two runs."""
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    monkeypatch.setenv("MIDSTREAM_FLEET", str(path))
    seen = Fleet({name: SshHostConfig(root="~/m") for name in ("here", "lab")}, path=str(path))
    runs = (run_view("webtext", "lab", 100, 300, 0), run_view("nano", "here", 7, store="gs://b"))
    remember_names(seen, snapshot(*runs, here=LIVE, lab=LIVE))
    (names_file().parent / "migrations" / "20261123-101502-webtext-3fa9").mkdir(parents=True)
    return seen


@pytest.mark.usefixtures("fleet")
def test_names_are_those_of_local_files() -> None:
    assert local_names("targets") == ["here", "lab", "big"]
    assert local_names("runs") == ["nano", "webtext"]
    assert local_names("migrations") == ["20261123-101502-webtext-3fa9"]
    assert local_names("steps", ["--migrate", "webtext", "--checkpoint"]) == ["now", "latest", "300", "100"]
    assert local_names("steps", ["--checkpoint"]) == ["now", "latest"]
    checkpoints = [
        "gs://b/runs/nano/checkpoints/step-7-a001",
        "lab:~/m/runs/webtext/checkpoints/step-300-a001",
        "lab:~/m/runs/webtext/checkpoints/step-100-a001",
    ]
    assert local_names("checkpoints") == ["nano", "webtext", *checkpoints]
    assert "20261123-101502-webtext-3fa9" in local_names("checkpoints", ["--verify"])


def test_offered_checkpoint_in_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    hosts = HostPool(Fleet({"here": LocalHostConfig(root=str(tmp_path / "root"))}))
    try:
        _, directory = resolve_checkpoint(hosts.fleet, hosts, "here:~/m/runs/a/checkpoints/step-1-a001")
    finally:
        hosts.close()
    assert directory == f"{tmp_path}/m/runs/a/checkpoints/step-1-a001"


def test_flags_are_the_modes_then_those_of_the_mode() -> None:
    assert list(flag_names(parser())) == list(parser().modes)
    after = list(flag_names(parser(), ["--migrate", "webtext", "--to", "big"]))
    assert {"--mode", "--dry-run", "--json"} <= set(after)
    assert not {"--to", "--status", "--tries", "--readonly"} & set(after)


@pytest.mark.usefixtures("fleet")
def test_names_follow_the_fleet_file_of_the_command_line(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("hosts: {alone: {type: local}}\n")
    assert local_names("targets", ["--fleet", str(other)]) == ["alone"]
    assert local_names("runs", ["--fleet", str(other)]) == []


def test_names_of_targets_are_as_written(fleet: Fleet) -> None:
    Path(fleet.path).write_text("hosts: {1.10: {type: local}, no: {type: local}, 010: {type: local}}\n")
    assert local_names("targets") == ["1.10", "no", "010"]


@pytest.mark.long
@pytest.mark.parametrize("content", [b"", b"[1", b"[]", b'{"/x": 3}', b"\xff", b"[" * 100_000])
def test_damaged_files_have_no_names(fleet: Fleet, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    names_file().write_bytes(content)
    Path(fleet.path).write_bytes(content)
    for kind in KINDS:
        assert main(["--print-names", kind]) == 0
    captured = capsys.readouterr()
    assert "lab" not in captured.out.split()
    assert captured.err == ""


def test_unreachable_host_keeps_its_names_a_removed_one_does_not(fleet: Fleet) -> None:
    remember_names(fleet, snapshot(run_view("new", "here"), here=LIVE, lab=DOWN))
    assert set(read_names(fleet.path)["here"]) == {"new"}
    assert set(read_names(fleet.path)["lab"]) == {"webtext"}
    remember_names(fleet, snapshot(run_view("new", "here"), here=LIVE))
    assert set(read_names(fleet.path)) == {"here"}


def test_names_of_the_last_fleet_files_are_kept(fleet: Fleet, tmp_path: Path) -> None:
    for number in range(FLEETS + 3):
        path = tmp_path / f"{number}.yaml"
        path.write_text("")
        remember_names(Fleet(path=str(path)), snapshot(run_view(f"run-{number}", "a"), a=LIVE))
    assert len(json.loads(names_file().read_text())) == FLEETS
    assert read_names(fleet.path) == {}
    assert set(read_names(tmp_path / f"{FLEETS + 2}.yaml")["a"]) == {f"run-{FLEETS + 2}"}


def test_thousands_of_runs_have_names_beside_other_fleets(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("")
    large = Fleet({name: SshHostConfig(root="~/m") for name in ("a", "b")}, path=str(path))
    runs = [run_view(f"run-{number:05}", "a", *range(1, 21)) for number in range(6000)]
    runs = [dataclasses.replace(run, running=False) for run in runs[:-1]] + runs[-1:]
    remember_names(large, snapshot(*runs, run_view("other", "b", 1), a=LIVE, b=LIVE))
    remember_names(large, snapshot(*runs, a=LIVE, b=DOWN))
    words = ["--fleet", str(path)]
    assert local_names("runs", words) == [*(run.run_id for run in runs), "other"]
    offered = local_names("checkpoints", words)
    assert "a:~/m/runs/run-05999/checkpoints/step-20-a001" in offered, "of running runs first"
    assert set(read_names(fleet.path)) == {"here", "lab"}


@pytest.mark.long
def test_names_of_hosts_that_answer_in_turn_stay_readable(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("")
    names = "abcd"
    large = Fleet({name: SshHostConfig(root="~/m") for name in names}, path=str(path))
    for live in names:
        runs = [run_view(f"{live}-{number:05}-{'x' * 80}", live, 1) for number in range(12_000)]
        remember_names(large, snapshot(*runs, **{name: LIVE if name == live else DOWN for name in names}))
        assert live in read_names(path)
    assert set(read_names(fleet.path)) == {"here", "lab"}


def test_entries_that_were_written_first_make_room(tmp_path: Path) -> None:
    file = tmp_path / "entries.json"
    for number in range(4):
        write_entry(file, f"/{number}.yaml", ["x" * (1 << 20)] * 2)
    assert list(read_entries(file)) == ["/3.yaml"]


def test_names_that_cannot_be_written_are_ignored(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", "/dev/null/state")
    remember_names(fleet, snapshot(run_view("new", "here"), here=LIVE))


def test_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-names"]) == main(["--print-names", "x"]) == 2
    assert capsys.readouterr().out == ""


# ------------------------------------------------------------------------------------------------------- scripts


@pytest.mark.parametrize("shell", SHELLS)
def test_script_is_printed_and_has_every_flag(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert [name for name in parser().notes if name.lstrip("-") not in text] == []


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell}: apt-get install {shell}")
    file = tmp_path / "script"
    file.write_text(script(parser(), shell))
    done = subprocess.run([shell, "-n", file], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put this midstream first on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "midstream").write_text(f'#!/bin/sh\nexec {sys.executable} -m midstream "$@"\n')
    (folder / "midstream").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


LINES = [
    ("--mig", ["--migrate"]),
    ("--migrate ", ["nano", "webtext"]),
    ("--migrate webtext --to b", ["big"]),
    ("--migrate webtext --to big --mode ", ["cold", "live", "warm"]),
    ("--migrate webtext --to big --checkpoint 3", ["300"]),
    ("--launch configs/gpt2_n", ["configs/gpt2_nano.yaml"]),
    ("--continue 2", ["20261123-101502-webtext-3fa9"]),
]


@pytest.mark.usefixtures("fleet", "program")
def test_bash_completes_flags_values_and_names(tmp_path: Path) -> None:
    lines = [f"midstream {line}".split(" ") for line, _ in LINES]
    tries = "".join(f"try {' '.join(map(repr, words))}\n" for words in lines)
    text = (
        f"{script(parser(), 'bash')}\n"
        'try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_midstream; echo "${COMPREPLY[*]}"; }\n' + tries
    )
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""
    assert [sorted(line.split()) for line in done.stdout.splitlines()] == [expected for _, expected in LINES]


@pytest.mark.usefixtures("program")
def test_bash_does_not_execute_what_a_host_sent(fleet: Fleet, tmp_path: Path) -> None:
    created = tmp_path / "executed"
    store = f"gs://b/$(touch${{IFS}}{created})"
    remember_names(fleet, snapshot(run_view("nano", "here", 7, store=store), here=LIVE, lab=LIVE))
    assert str(created) in names_file().read_text()
    assert local_names("checkpoints") == ["nano"]
    words = "COMP_WORDS=(midstream --verify ''); COMP_CWORD=2; _shtab_midstream; echo ${COMPREPLY[*]}\n"
    text = f"{script(parser(), 'bash')}\n{words}"
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "nano" in done.stdout.split()
    assert not created.exists()


@pytest.mark.usefixtures("fleet", "program")
def test_fish_completes_flags_values_and_names() -> None:
    if not shutil.which("fish"):
        pytest.skip("no fish: apt-get install fish")
    shown = r"| string replace -r '\t.*' '' | string join ' '"
    asks = "".join(f"complete -C 'midstream {line}' {shown}\n" for line, _ in LINES)
    text = script(parser(), "fish") + asks
    done = subprocess.run(["fish"], input=text, capture_output=True, text=True)
    assert [sorted(line.split()) for line in done.stdout.splitlines()] == [expected for _, expected in LINES]
