"""`--report`: the page of a run of a real host, this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from midstream.cli import main
from midstream_core import records
from support.html_page import HtmlPage
from support.run_directory import RunDirectory

SECRET = "hf_0123456789abcdefghij"
LOG = (
    "2026-11-21T10:00:00Z I resolved configuration:\n"
    f"seed: {{}}\nhub_token: {SECRET}\nnote: <script>alert(1)</script>\nflags: [--seed, '1', --api-key, s3cret]\n"
    "2026-11-21T10:00:01Z I begins\n"
)


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    run = RunDirectory(tmp_path / "root")
    run.fence(2, sealed=4, seals=[records.Seal(1, 4).to_json()])
    run.lineage(
        {"attempt": 1, "epoch": 1, "last_step": 3}, {"attempt": 2, "epoch": 2, "first_step": 4, "migration": "m-1"}
    )
    run.status(2, records.TRAINING, 5)
    run.rows(1, 0, 1, 2, 3)
    run.rows(2, 4, 5)
    for attempt in (1, 2):
        run.log(attempt, LOG.format(attempt))
    run.checkpoint(4)
    file = tmp_path / "fleet.yaml"
    file.write_text(f"hosts:\n  here: {{type: local, root: {tmp_path / 'root'}, price_per_hour: 2}}\n")
    return str(file)


def test_report_is_a_page_with_what_the_run_shows(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.html"
    assert main(["--report", "run", str(path), "--fleet", fleet, "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["run"], last["file"], last["migrations"]) == ("run", str(path), 0)
    assert last["not_known"] == ["migration m-1: its journal is not on this machine"]
    text = path.read_text()
    found = HtmlPage(text)
    assert found.problems == []
    for words in ("attempt 1: here, 1 x cpu", "attempt 2: here, 1 x cpu", "~ seed 1 → 2", "<script>alert(1)</script>"):
        assert words in found.text, words
    assert "step-4-a001" in found.text
    assert text.count("hidden: it looks like a secret") == 2
    assert SECRET not in text
    assert "s3cret" not in text
    assert main(["--report", "run", str(path), "--fleet", fleet]) == 0, "a report is written again"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("report.txt", "a report is a .html file"),
        ("mine.html", "exists and is no report of midstream"),
        ("folder.html", "is a directory"),
        ("missing/report.html", "cannot be written: No such file or directory"),
    ],
)
def test_a_report_replaces_no_file_of_the_user(
    fleet: str, tmp_path: Path, file: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    (tmp_path / "folder.html").mkdir()
    before = sorted(tmp_path.iterdir())
    assert main(["--report", "run", str(tmp_path / file), "--fleet", fleet]) == 2
    assert words in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"


def test_a_run_that_is_not_there_has_no_report(fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--report", "rum", str(tmp_path / "r.html"), "--fleet", fleet]) == 2
    assert "no run 'rum' (did you mean run?)" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()
