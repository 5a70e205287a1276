"""Folders that stay open between objects which are near one another."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from midstream_host.object_files import LastFolder, NotPlainError


@pytest.mark.parametrize("seed", [1, 2])
def test_last_folder_names_each_object_in_its_place(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    paths = [
        "/".join([*(rng.choice("ab") for _ in range(rng.randrange(4))), f"object-{number}"]) for number in range(200)
    ]
    folder = LastFolder(str(tmp_path), create=True)
    for path in paths:
        parent, name = folder.parent(path)
        os.close(os.open(name, os.O_CREAT | os.O_EXCL, dir_fd=parent))
    folder.close()
    found = sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file())
    assert found == sorted(paths), f"seed {seed}"
    links = [os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd")]
    assert not [link for link in links if os.path.lexists(link) and os.readlink(link).startswith(str(tmp_path))]


def test_last_folder_follows_no_link_beside_an_open_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "elsewhere")
    folder = LastFolder(str(tmp_path), create=True)
    folder.parent("a/b/object")
    with pytest.raises(NotPlainError, match="a/link/object"):
        folder.parent("a/link/object")
    parent, _ = folder.parent("a/b/object")  # it is still of use
    assert os.fstat(parent).st_ino == (tmp_path / "a" / "b").stat().st_ino
    folder.close()


def test_last_folder_without_create_leaves_the_disk_alone(tmp_path: Path) -> None:
    folder = LastFolder(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        folder.parent("a/b/object")
    assert list(tmp_path.iterdir()) == []
    folder.close()
