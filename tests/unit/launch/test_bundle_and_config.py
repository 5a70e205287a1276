"""Files of a launch: the config as one text, the engine as one archive."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml

from midstream.errors import Exit, UsageError
from midstream.install.bundle import build_bundle
from midstream.launch.config_file import config_section, read_config
from midstream_host.runs import engine_archive


def test_config_without_includes_is_unchanged(tmp_path: Path) -> None:
    text = "# a comment\ntrainer: {num_train_steps: 1_000}\noptimizer:\n  learning_rate: 6e-4\n"
    (tmp_path / "run.yaml").write_text(text)
    assert read_config(tmp_path / "run.yaml") == text


def test_includes_are_inlined_relative_to_their_file(tmp_path: Path) -> None:
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    (tmp_path / "run.yaml").write_text(
        "data: !include parts/data.yaml\nlist: [1, !include parts/deep/one.yaml]\nname: ok\n"
    )
    (tmp_path / "parts" / "data.yaml").write_text("train: !include deep/one.yaml\nseq: 1024\n")
    (tmp_path / "parts" / "deep" / "one.yaml").write_text("{rate: 6e-4, on: 'yes', text: \"6e-4\"}\n")
    text = read_config(tmp_path / "run.yaml")
    one = {"rate": "6e-4", "on": "yes", "text": "6e-4"}
    assert "!include" not in text
    value = yaml.load(text, yaml.BaseLoader)
    assert value == {"data": {"train": one, "seq": "1024"}, "list": ["1", one], "name": "ok"}
    assert "rate: 6e-4" in text, "a number keeps its spelling"
    assert "'6e-4'" in text or '"6e-4"' in text, "and a string its quotes"


def test_merges_and_anchors_survive_inlining(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("{a: 1, b: 2}\n")
    (tmp_path / "run.yaml").write_text("x: &x {<<: !include base.yaml, b: 3}\ny: *x\n")
    assert yaml.safe_load(read_config(tmp_path / "run.yaml")) == {"x": {"a": 1, "b": 3}, "y": {"a": 1, "b": 3}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.yaml", "a: [1\nb: 2\n", "run.yaml:2: malformed YAML"),
        ("run.yaml", "a: 1\nb: !include none.yaml\n", "run.yaml:2: !include"),
        ("run.yaml", "a: !include run.yaml\n", "run.yaml:1: !include run.yaml leads back to the file itself"),
        ("run.yaml", "a: !include [x]\n", "run.yaml:1: !include takes the path of a file"),
        ("other.yaml", "", "run.yaml: No such file"),
        ("run.yaml", f"a: {'[' * 3000}", "run.yaml:1: nested more than 50 levels"),
        ("run.yaml", "a:\n  b: &x [*x]\n", "run.yaml:2: an alias stands for a value that contains it"),
    ],
)
def test_unreadable_config_error_has_file_and_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config(tmp_path / "run.yaml")
    assert message in str(caught.value)
    assert caught.value.code == Exit.USAGE


@pytest.mark.long
@pytest.mark.parametrize("value", ["!!int x", "2024-13-01", "1" * 5000, "!!timestamp x", "[" * 3000, "!!set {[a]}"])
def test_config_value_of_wrong_form_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="the config is malformed YAML"):
        config_section(f"trainer: {{seed: {value}}}", "trainer")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    directory = tmp_path / "packages" / "midstream_engine"
    (directory / "inner").mkdir(parents=True)
    (directory / "__init__.py").write_text("")
    (directory / "inner" / "__init__.py").write_text("VALUE = 1\n")
    return directory


def test_same_sources_make_the_same_bundle(package: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "midstream_engine"
    shutil.copytree(package, other)
    (other / "inner" / "__pycache__").mkdir()
    (other / "inner" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (other / "__init__.py").chmod(0o600)
    os.utime(other / "__init__.py", (1, 1))
    assert build_bundle(package.parent) == build_bundle(other.parent)
    (other / "inner" / "__init__.py").write_text("VALUE = 2\n")
    assert build_bundle(package.parent).digest != build_bundle(other.parent).digest


def archive(package: Path) -> tuple[str, str]:
    import base64
    import gzip

    bundle = build_bundle(package.parent)
    return bundle.digest, base64.b64encode(gzip.compress(bundle.tar)).decode()


def test_engine_is_installed_once_and_repaired_when_changed(package: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    digest, packed = archive(package)
    assert engine_archive.installed(root, digest) is None
    directory = Path(engine_archive.install(root, digest, packed))
    assert engine_archive.installed(root, digest) == str(directory)
    assert (directory / "midstream_engine/inner/__init__.py").read_text() == "VALUE = 1\n"
    before = (directory / engine_archive.STAMP).stat()
    assert engine_archive.install(root, digest, packed) == str(directory)
    assert (directory / engine_archive.STAMP).stat().st_ino == before.st_ino
    (directory / "midstream_engine/inner/__init__.py").write_text("VALUE = 3\n")
    assert engine_archive.installed(root, digest) is None
    engine_archive.install(root, digest, packed)
    assert (directory / "midstream_engine/inner/__init__.py").read_text() == "VALUE = 1\n"
    assert sorted(os.listdir(directory.parent)) == [".lock", directory.name]


def test_engine_with_extra_module_is_installed_again(package: Path, tmp_path: Path) -> None:
    """The directory of the engine is on PYTHONPATH."""
    root = str(tmp_path / "root")
    digest, packed = archive(package)
    directory = Path(engine_archive.install(root, digest, packed))
    (directory / "yaml.py").write_text("import os")
    assert engine_archive.installed(root, digest) is None
    assert engine_archive.install(root, digest, packed) == str(directory)
    assert not (directory / "yaml.py").exists()
    assert engine_archive.installed(root, digest) == str(directory)


def test_archive_with_wrong_digest_is_refused(package: Path, tmp_path: Path) -> None:
    _, packed = archive(package)
    with pytest.raises(ValueError, match="not the one that was announced"):
        engine_archive.install(str(tmp_path / "root"), "0" * 64, packed)
    assert not list((tmp_path / "root").glob("engines/*"))
