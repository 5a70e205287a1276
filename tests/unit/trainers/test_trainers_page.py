"""The page on trainers: its run files are valid, its tables are those of the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from midstream.trainers.continuation import stored_for
from midstream.trainers.library_behaviour import BEHAVIOURS, NAMES, behaviours_of
from midstream.trainers.registry import TRAINERS
from midstream.trainers.run_file_parser import parse_run_file
from midstream_host.driver.run_file import NO, UNKNOWN, YES
from support.paths import REPOSITORY

PAGES = ("how-to/trainers", "how-to/trainer-examples", "reference/trainers")
PAGE = "".join((REPOSITORY / "docs" / f"{name}.md").read_text() for name in PAGES)
EXAMPLES = [text for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "command:" in text]
RESUMES = [text for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "resume:" in text]
WORDS = {YES: "continues", NO: "begins again", UNKNOWN: "as the script stores it"}
REQUIRED = "resume: x {checkpoint}\nmetrics: {source: jsonl, path: m}\ncheckpoints: {pattern: c}\n"


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: yaml.safe_load(text)["trainer"])
def test_run_files_of_the_page_are_valid(text: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==2.3.5\n")
    given = yaml.safe_load(text)
    more = "".join(line + "\n" for line in REQUIRED.splitlines() if line.partition(":")[0] not in given)
    assert parse_run_file(text + more, tmp_path / "run.yaml").run.command


def test_checkpoint_may_be_a_variable_of_the_resume() -> None:
    assert [text for text in RESUMES if "env RESUME={checkpoint}" in text]
    run = parse_run_file(
        "trainer: script\ncommand: python train.py\nresume: 'env RESUME={checkpoint} python train.py'\n"
        "metrics: {source: jsonl, path: m}\ncheckpoints: {rule: glob, pattern: c}\n",
        Path("run.yaml"),
    ).run
    assert run.resume[:2] == ["env", "RESUME={checkpoint}"]


@pytest.mark.parametrize("name", TRAINERS)
def test_table_of_trainers_is_the_programs(name: str) -> None:
    rule = "rule: glob, " if name == "script" else ""
    text = f"trainer: {name}\ncommand: x\n{REQUIRED.replace('{pattern', '{' + rule + 'pattern')}"
    run = parse_run_file(text, Path("run.yaml")).run
    same, other = stored_for(run, 2, 2), stored_for(run, 2, 1)
    words = (same.random_state, other.random_state, same.data_position, other.data_position)
    assert f"| {TRAINERS[name].title} | {' | '.join(WORDS[word] for word in words)} |\n" in PAGE


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda each: each.what)
def test_table_of_libraries_is_the_programs(behaviour) -> None:
    kind = behaviour.kind + (", on another number of processes" if behaviour.elsewhere else "")
    row = (behaviour.library, behaviour.what, kind, behaviour.detail, behaviour.hint)
    assert f"| {' | '.join(row)} |\n" in PAGE
    assert behaviour in behaviours_of(behaviour.names[-1:], same_processes=False)
    assert (behaviour in behaviours_of(NAMES, same_processes=True)) is not behaviour.elsewhere
