"""Requirements that travel: included files are taken in, paths and constraints are refused when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.errors import UsageError
from midstream.hosts.rpc.remote_call import RemoteError
from midstream.trainers.run_file_parser import parse_run_file

TEXT = "trainer: huggingface\ncommand: x\nenvironment: {requirements: deps/requirements.txt}\n"


def requirements_of(directory: Path, **files: str) -> str:
    (directory / "deps").mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / "deps" / f"{name}.txt").write_text(text)
    return parse_run_file(TEXT, directory / "run.yaml").run.environment.requirements


@pytest.mark.parametrize("include", ["-r base.txt", "-rbase.txt", "--requirement base.txt", "--requirement=base.txt"])
def test_included_requirements_are_taken_in(tmp_path: Path, include: str) -> None:
    (tmp_path / "shared.txt").write_text("numpy==2.3.5\n")
    found = requirements_of(
        tmp_path,
        requirements=f"{include}  # the common ones\ntorch==2.13.0 ; python_version > '3.9'\n",
        base="-r ../shared.txt\nrich==14.0.0 \\\n    --hash=sha256:abc\n",
    )
    assert found.splitlines() == [
        "numpy==2.3.5", "rich==14.0.0     --hash=sha256:abc", "torch==2.13.0 ; python_version > '3.9'",
    ]  # fmt: skip


def test_requirements_without_files_travel_as_they_are(tmp_path: Path) -> None:
    text = (
        "# pinned\n--extra-index-url https://example.org/whl\ntorch==2.13.0 \\\n    --hash=sha256:abc\n"
        "mine @ https://example.org/mine-1.0-py3-none-any.whl\nother @ git+https://example.org/a/other@v1\n"
        "-f https://example.org/links\npackage[extra]>=1,<2\n"
    )
    assert [line for line in requirements_of(tmp_path, requirements=text).splitlines() if "==" in line]
    plain = text.replace("-f https://example.org/links\n", "")
    assert requirements_of(tmp_path, requirements=plain) == plain


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("-c constraints.txt", "constraints (constraints.txt) do not travel", "uv pip compile"),
        ("--constraint=constraints.txt", "constraints (constraints.txt) do not travel", "uv pip compile"),
        ("-e .", ". is a path, which the hosts do not have", "files:"),
        ("--editable ../library", "../library is a path", "files:"),
        ("./library", "./library is a path", "files:"),
        ("/srv/library[extra]", "/srv/library[extra] is a path", "files:"),
        ("wheels/mine-1.0-py3-none-any.whl", "is a path", "files:"),
        ("mine-1.0-py3-none-any.whl", "is a path", "files:"),
        ("mine @ file:///srv/mine", "is a path", "files:"),
        ("mine@ file:///srv/mine", "is a path", "files:"),
        ("--find-links wheels", "wheels is a directory of this machine", "wheelhouse:"),
    ],
)
def test_lines_that_name_files_are_refused_by_line(tmp_path: Path, line: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        requirements_of(tmp_path, requirements=f"numpy==2.3.5\n{line}\n", constraints="numpy<3\n")
    assert "environment.requirements: deps/requirements.txt, line 2: " in raised.value.message
    assert what in raised.value.message
    assert raised.value.hint.startswith(hint)


def test_missing_and_circular_includes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"environment\.requirements: .*absent\.txt"):
        requirements_of(tmp_path, requirements="-r absent.txt\n")
    with pytest.raises(UsageError, match=r"line 1: requirements\.txt includes itself"):
        requirements_of(tmp_path, requirements="-r base.txt\n", base="-r requirements.txt\n")


def test_host_includes_files_of_its_directory_alone() -> None:
    files = {"deps/requirements.txt": "-r base.txt\n", "deps/base.txt": "numpy==2.3.5\n"}

    def read(name: str) -> str:
        if name not in files:
            raise RemoteError(f"lab: {name}: no such file")
        return files[name]

    path = Path("lab:/work/run.yaml")
    assert parse_run_file(TEXT, path, read).run.environment.requirements == "numpy==2.3.5\n"
    files["deps/base.txt"] = "-r ../../secret.txt\n"
    with pytest.raises(UsageError, match="is not below the directory"):
        parse_run_file(TEXT, path, read)
