"""Search for other trainers' checkpoints: bounded, and read again only after a change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_host.driver.checkpoints import checkpoint_finder, huggingface
from midstream_host.driver.checkpoints.checkpoint_finder import CheckpointFinder, find_checkpoints
from midstream_host.driver.checkpoints.search import SearchError, search
from support.trainers.checkpoint_cases import CASES, Case, refused


def test_a_checkpoint_is_read_again_only_after_a_change(
    copy: Callable[[Case], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["huggingface"]
    path = copy(case)
    looked: list[str] = []
    check = huggingface.check

    def counted(tree, ranks):
        looked.append(tree.name)
        return check(tree, ranks)

    monkeypatch.setitem(checkpoint_finder.RULES, "huggingface", huggingface.RULE._replace(check=counted))
    finder = CheckpointFinder(case.rule, str(path.parent), "", 2)
    first = finder.find()
    assert [each.path for each in first] == ["checkpoint-3", "checkpoint-6"]
    assert finder.find() == first
    assert sorted(looked) == ["checkpoint-3", "checkpoint-6"]
    os.truncate(path / "optimizer.pt", 100)
    assert [each.complete for each in finder.find()] == [True, False]
    assert looked[2:] == ["checkpoint-6"]


def test_a_checkpoint_that_changes_while_read_is_incomplete(
    copy: Callable[[Case], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(CASES["huggingface"])
    check = huggingface.check

    def slow(tree, ranks):
        step = check(tree, ranks)
        (path / "optimizer.pt").write_bytes(b"other")
        return step

    monkeypatch.setitem(checkpoint_finder.RULES, "huggingface", huggingface.RULE._replace(check=slow))
    assert "changed" in refused(CASES["huggingface"], path)


def test_a_checkpoint_deleted_in_the_same_time_is_no_error(
    copy: Callable[[Case], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(CASES["huggingface"])

    def removed(tree, ranks):
        shutil.rmtree(path)
        return huggingface.check_weights(tree)

    monkeypatch.setitem(checkpoint_finder.RULES, "huggingface", huggingface.RULE._replace(check=removed))
    assert "disappeared" in refused(CASES["huggingface"], path)


def test_no_directory_has_no_checkpoints(tmp_path: Path) -> None:
    assert find_checkpoints("huggingface", str(tmp_path / "none")) == []
    with pytest.raises(ValueError, match="no rule"):
        find_checkpoints("other", str(tmp_path))


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a//b", "a/./b", "", "a\0"])
def test_a_pattern_outside_of_the_directory_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(SearchError):
        search(str(tmp_path), pattern)


def test_search_is_bounded_and_follows_no_circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.ckpt").write_text("")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "y.ckpt").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert search(str(tmp_path), "**/*.ckpt") == ["a/b/x.ckpt"]
    assert search(str(tmp_path), "a/*/*.ckpt") == ["a/b/x.ckpt"]
    monkeypatch.setattr("midstream_host.driver.checkpoints.search.MAX_ENTRIES", 2)
    with pytest.raises(SearchError, match="more than 2 entries"):
        search(str(tmp_path), "**/*.ckpt")


def test_folder_of_checkpoints_that_is_a_link_is_followed_once(tmp_path: Path, copy: Callable[[Case], Path]) -> None:
    scratch, out = copy(CASES["huggingface"]).parent, tmp_path / "linked"
    out.mkdir()
    (out / "checkpoints").symlink_to(scratch)
    (out / "again").symlink_to(scratch / "checkpoint-6")
    (scratch / "back").symlink_to(out)
    for pattern in ("checkpoints/*", "**/checkpoint-*"):
        found = find_checkpoints("huggingface", str(out), pattern, 2)
        names = [each.path for each in found if each.complete]
        assert names == ["checkpoints/checkpoint-3", "checkpoints/checkpoint-6"]


def test_checkpoint_that_is_a_link_to_elsewhere_is_named(tmp_path: Path, copy: Callable[[Case], Path]) -> None:
    path, out = copy(CASES["huggingface"]), tmp_path / "linked"
    out.mkdir()
    (out / path.name).symlink_to(path)
    (out / "checkpoint-9").symlink_to(path.name)
    (out / "checkpoint-8").symlink_to("nowhere")
    [found] = find_checkpoints("huggingface", str(out), "", 2)
    assert (found.path, found.complete, found.step) == (path.name, False, 6)
    assert found.reason.startswith(f"it is a link to '{path}'")


def test_newest_of_many_without_numbers_are_those_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_finder, "MAX_CHECKPOINTS", 2)
    for day, changed in ((27, 30), (28, 10), (29, 20)):
        path = tmp_path / f"checkpoint_2026-11-{day}"
        path.mkdir()
        os.utime(path, (changed, changed))
    found = find_checkpoints("glob", str(tmp_path), "checkpoint_*")
    assert sorted(each.path[-2:] for each in found) == ["27", "29"]


def test_only_the_newest_of_many_checkpoints_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_finder, "MAX_CHECKPOINTS", 2)
    for step in (5, 10, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert [each.step for each in find_checkpoints("huggingface", str(tmp_path))] == [10, 100]
