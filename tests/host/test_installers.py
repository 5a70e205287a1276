"""Lines of installers without secrets."""

from __future__ import annotations

import pytest

from midstream_host.machine import installers


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Looking in indexes: https://me:pw@pypi.example/simple", "Looking in indexes: https://***@pypi.example/simple"),
        ("GET https://conda.example/t/tk-77/get/x.conda 403", "GET https://conda.example/t/***/get/x.conda 403"),
        ("a http://c.example/t/tk-1/x and http://d.example/t/tk-2/y", "a http://c.example/t/***/x and http://d.example/t/***/y"),
        ("/home/t/project/file.txt", "/home/t/project/file.txt"),
        ("me@example.com wrote https://conda.example/a@b", "me@example.com wrote https://conda.example/a@b"),
        ("token s3cr%40t and s3cr@t", "token *** and ***"),
    ],
)  # fmt: skip
def test_credentials_are_hidden_in_lines(line: str, shown: str) -> None:
    assert installers.hiding(["s3cr%40t"])(line) == shown


def test_longer_secret_is_hidden_before_its_part() -> None:
    assert installers.hiding(["abc", "abcdef", ""])("x abcdef abc y") == "x *** *** y"


def test_installers_do_not_get_another_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.setenv(name, "/elsewhere")
    found = installers.environment_with({"PATH": "/x"})
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX"} & found.keys()
    assert found["PATH"] == "/x"
