"""Flags of `--migrate PATH` that are the converter's."""

from __future__ import annotations

from typing import Any

import pytest

from midstream.errors import UsageError
from midstream.flags import parse
from midstream.headless.import_run import import_request_of
from midstream.headless.migrate_run import migrate

GIVEN = ["--gqa-layout", "interleaved", "--rms-epsilon", "outside", "--cast-parameters", "bfloat16"]


def test_flags_of_imports_go_to_the_converter() -> None:
    options, _ = parse(["--migrate", "here:/runs/llama", "--to", "pod", *GIVEN])
    assert import_request_of(options).flags == GIVEN
    options, _ = parse(["--migrate", "here:/runs/llama", "--to", "pod"])
    assert import_request_of(options).flags == []


def test_flags_of_imports_need_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--status", *GIVEN])
    assert "--gqa-layout goes with --migrate PATH" in capsys.readouterr().err
    options, engine = parse(["--migrate", "run-1", "--to", "pod", *GIVEN])
    nothing: Any = None  # the flags are checked first
    with pytest.raises(
        UsageError, match=r"--rms-epsilon outside --cast-parameters bfloat16: run-1 is a run, not the PATH"
    ):
        migrate(nothing, options, engine, nothing)
