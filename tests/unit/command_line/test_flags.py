"""Flags: combinations, hints for mistyped words, help by task, the version."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from midstream import __version__, version
from midstream.bundled_files import config_path, engine_packages_hint
from midstream.cli import main
from midstream.errors import MEANINGS, Exit, UsageError
from midstream.flag_parser import SCREEN
from midstream.flags import EXAMPLES, parse, parser
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import HostPool
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.operations.fleet_snapshot import unknown_run
from midstream.state_directory import state_directory
from midstream.suggestions import nearest, nearest_run
from midstream.watch.snapshot import RunView, Snapshot


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line with which a command line is refused."""
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("midstream: ")
    return line


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--migrat", "webtext"], "unknown flag --migrat (did you mean --migrate?)"),
        (["--migrat=webtext"], "unknown flag --migrat (did you mean --migrate?)"),
        (["--dry_run"], "did you mean --dry-run?"),
        (["status"], "did you mean --status?"),
        (["--migrate", "a", "--to", "b", "--mode", "wrm"], "did you mean warm?"),
        (["--print-completion", "fish2"], "did you mean fish?"),
        (["--trainer.seed", "3"], "flags of the engine follow --"),
        (["--zzzzzz"], "midstream --help lists the flags"),
    ],
)
def test_mistyped_word_gets_the_nearest_one(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint in refusal(capsys, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--migrate", "a"], "--migrate needs --to TARGET"),
        (["--migrate"], "--migrate needs RUN"),
        (["--diff", "a"], "--diff needs A B"),
        (["--migrate", "", "--to", "b"], "--migrate: its value is empty"),
        (["--status", "--init"], "--status is not allowed with --init"),
        (["--status", "--to", "b"], "--to goes with --migrate RUN and --guard RUN"),
        (["--stop", "a", "--mode", "cold"], "--mode goes with --migrate RUN and --continue MIGRATION"),
        (["--readonly", "--migrate", "a", "--to", "b"], "--readonly goes with the terminal UI and --demo"),
        (["--config", "a", "--process", "1"], "--process goes with --log RUN"),
        (["--migrate", "a", "--to", "b", "--tries", "1"], "--tries goes with --guard RUN"),
        (["--guard", "a", "--to", "b", "--tries", "-1"], "'-1' is not a whole number"),
        (
            ["--status", "--", "--x.y", "1"],
            "they go with --check TARGET|RUN, --compare RUN|CONFIG, --launch CONFIG, --restart RUN and --migrate RUN",
        ),
        (["--checkpoints", "--tree"], "--tree goes with --checkpoints RUN"),
        (["--checkpoints", "--deep"], "--deep goes with"),
    ],
)
def test_wrong_combination_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(capsys, *words)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--readonly", "--ascii", "--record", "x"],
        ["--replay", "x", "--ascii"],
        ["--migrate", "lab:/data/x", "--to", "b", "--config", "x.yaml", "--cast-parameters", "float32"],
        ["--config", "a", "--attempts", "1,2"],
        ["--launch", "x", "--on", "b", "--yes", "--", "--trainer.seed", "1"],
        ["--check", "b", "--rehearse", "--", "--trainer.seed", "1"],
        ["--continue", "m", "--mode", "warm", "--json"],
        ["--clean"],
        ["--clean", "--yes"],
        ["--repair", "a", "--on", "b"],
    ],
)
def test_valid_combination_is_parsed(words: list[str]) -> None:
    parse(words)


def test_each_flag_has_help_a_known_mode_and_a_section() -> None:
    flags = parser()
    assert len(flags.modes) > 15
    for name, note in flags.notes.items():
        assert flags.texts[name], name
        assert {*note.of, *note.needs} <= {*flags.notes, SCREEN}, name
    assert len({note.section for note in flags.notes.values()}) > 6


def test_examples_of_help_are_valid_commands() -> None:
    for command, _ in EXAMPLES:
        program, *words = command.split("|")[0].split()
        assert program == "midstream"
        parse(words)
    assert all(command in parser().format_help() for command, _ in EXAMPLES)


def test_help_lists_every_flag_and_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = parser().format_help()
    assert [name for name in parser().notes if f"  {name}" not in text] == []
    assert set(MEANINGS) == set(Exit)
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_nearest_lists_what_is_known_if_nothing_is_near() -> None:
    assert nearest("webtxt", ["webtext", "nano"]) == "did you mean webtext?"
    assert nearest("zzz", ["webtext", "nano"]) == "known: webtext, nano"
    assert nearest("zzz", []) == "known: none"
    assert nearest_run("a", [], []) == "no host has a run"
    assert nearest_run("a", ["b"], ["far"]) == "known: b; not answering: far; midstream --status shows why"


# ------------------------------------------------------------------------------------------------------ --version


def test_version_has_the_commit_of_the_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("1\n")
    git("add", "file")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "--short=12", "HEAD")
    monkeypatch.setattr(version, "_PACKAGE", tmp_path / "app" / "midstream")
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"midstream {__version__} (commit {commit})\n"
    (tmp_path / "file").write_text("2\n")
    assert version.version_text() == f"{__version__} (commit {commit}, changed)"


def test_version_without_git_is_that_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "_PACKAGE", tmp_path)
    monkeypatch.setattr(version, "_STAMP", tmp_path / "commit")
    assert version.version_text() == __version__
    (tmp_path / "commit").write_text("0123456789ab\n")
    assert version.version_text() == f"{__version__} (commit 0123456789ab)"


# ------------------------------------------------------------------------------------------------------ imports


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["--migrat"], ["--print-names", "flags"]])
def test_short_answers_import_little(words: list[str]) -> None:
    code = (
        f"import sys\nfrom midstream.cli import main\ntry:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = done.stderr.splitlines()[-1].split()
    ours = [name for name in loaded if name.startswith("midstream")]
    assert len(ours) < 32, ours  # with one small module for each mode of migrations and each section of flags
    for heavy in (
        "textual",
        "paramiko",
        "google",
        "jax",
        "numpy",
        "yaml",
        "draccus",
        "asyncio",
        "midstream_core.records",
    ):
        assert heavy not in loaded


# -------------------------------------------------------------------------------------------------------- hints


def test_hint_for_engine_packages_names_an_existing_lock_file() -> None:
    words = shlex.split(engine_packages_hint())
    assert Path(words[-1]).is_file()
    assert sys.executable in words
    assert not any("midstream[" in word for word in words), "midstream is on no index"


def test_mistyped_names_get_the_nearest_one() -> None:
    with pytest.raises(UsageError, match=r"did you mean configs/gpt2_nano\.yaml"):
        config_path("configs/gpt2_nono.yaml")
    migration = state_directory() / "migrations" / "20261123-101502-webtext-3fa9"
    migration.mkdir(parents=True)
    (migration / "journal.jsonl").write_text("")
    with pytest.raises(UsageError, match="did you mean 20261123-101502-webtext-3fa9"):
        MigrationDirectory.find("20261123-101502-webtxt-3fa9")
    seen = Snapshot(1, 0.0, (), (RunView("webtext", "lab", None, None, 1, None, True),))
    assert "did you mean webtext?" in str(unknown_run("webtxt", seen))
    fleet = parse_fleet("hosts: {lab: {type: local}}")
    for wrong in (fleet.target, HostPool(fleet).lookup):
        with pytest.raises(UsageError, match="did you mean lab"):
            wrong("lba")
    with pytest.raises(UsageError, match="did you mean root"):
        parse_fleet("hosts: {lab: {type: local, rot: x}}")
