"""Engine flags after ``--``: values, and those that name a run or its directory."""

from __future__ import annotations

import pytest

from midstream.errors import Exit, UsageError
from midstream.launch.engine_flags import checked_flags, engine_flags, named_run, without_id


def test_flags_are_read_as_the_engine_reads_them() -> None:
    words = ("--a", "1", "--b=2", "--c", "--d", "--b", "3", "--last")
    assert engine_flags(words) == {"a": "1", "b": "3", "c": "--d"}


@pytest.mark.parametrize(
    ("run_id", "words", "named"),
    [
        (None, (), None),
        ("web", (), "web"),
        (None, ("--trainer.id", "web"), "web"),
        (None, ("--trainer.id=first", "--trainer.id", "web"), "web"),
        ("web", ("--trainer.seed", "1", "--trainer.id=web"), "web"),
        ("web", ("--trainer.id", "null"), "web"),
        ("", ("--trainer.id", "~"), None),
        (None, ("--trainer.seed", "--trainer.id"), None),
    ],
)
def test_run_is_named_by_its_flag_or_the_engines(run_id: str | None, words: tuple[str, ...], named: str | None) -> None:
    assert named_run(run_id, words) == named


@pytest.mark.parametrize(
    ("run_id", "words", "message"),
    [
        ("web", ("--trainer.id", "other"), r"--run-id web and --trainer.id other name different runs \(leave"),
        (None, ("--trainer.id", "../x"), "run id '../x': use 1 to 128"),
        (None, ("--trainer.id", "--x"), "run id '--x': use 1 to 128"),
        ("web", ("--trainer.root=/elsewhere",), "--trainer.root /elsewhere: midstream would not find the run there"),
    ],
)
def test_flags_of_another_run_or_root_are_refused(run_id: str | None, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        named_run(run_id, words)
    assert caught.value.code == Exit.USAGE


def test_run_that_moves_keeps_its_id() -> None:
    checked_flags("web", ("--trainer.id", "web", "--trainer.seed", "2"))
    with pytest.raises(UsageError, match=r"--trainer\.id other: run web keeps its id"):
        checked_flags("web", ("--trainer.id", "other"))


def test_launcher_takes_the_id_out_of_the_flags() -> None:
    words = ("--a", "--trainer.id", "--trainer.id", "web", "--b=1", "--trainer.id=web", "--c")
    assert without_id(words) == ("--a", "--trainer.id", "--b=1", "--c")
