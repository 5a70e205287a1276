"""Locks of conda: what is read of them, and one clear line for what hosts do not install."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from midstream.errors import UsageError
from midstream.trainers import conda_lock
from midstream.trainers.run_file_parser import as_text, from_value, parse_run_file
from midstream_core import records

RUN = "trainer: huggingface\ncommand: x\nenvironment: {lock: LOCK}\n"
SHA, MD5 = "ab" * 32, "cd" * 16
PYTHON = "https://conda.example/forge/linux-64/python-3.12.4-h194c7f8_0_cpython.conda"
NOARCH = "https://conda.example/forge/noarch/pip-24.0-pyhd8ed1ab_0.conda"
WHEEL = "https://files.example/packages/aa/lightning-2.6.6-py3-none-any.whl"


def row(url: str, platform: str = "linux-64", **more: Any) -> dict[str, Any]:
    name = url.rpartition("/")[2].rsplit("-", 2)[0]
    return {"name": name, "version": "1", "manager": "conda", "platform": platform, "dependencies": {"python": ""},
            "url": url, "hash": {"md5": MD5, "sha256": SHA}, "category": "main", "optional": False, **more}  # fmt: skip


def lock(*rows: dict[str, Any], version: Any = 1) -> str:
    return yaml.safe_dump({"version": version, "metadata": {"platforms": ["linux-64"]}, "package": list(rows)})


def error_of(text: str) -> UsageError:
    with pytest.raises(UsageError) as raised:
        conda_lock.lists_of(text)
    assert "\n" not in raised.value.message
    assert raised.value.message.isprintable()
    return raised.value


def test_unified_lock_becomes_a_list_for_each_platform(tmp_path: Path) -> None:
    mac = PYTHON.replace("linux-64", "osx-arm64")
    pip = {"name": "lightning", "version": "2.6.6", "manager": "pip", "platform": "linux-64", "dependencies": {},
           "url": WHEEL, "hash": {"sha256": SHA}, "category": "dev", "optional": True}  # fmt: skip
    (tmp_path / "conda-lock.yml").write_text(
        lock(
            row(PYTHON),
            row(NOARCH),
            pip,
            row(mac, "osx-arm64"),
            row(PYTHON.replace("linux", "win"), "win-64"),
            row(NOARCH.replace("pip", "sphinx"), category="docs"),
            row(NOARCH),
        )
    )
    run = parse_run_file(RUN.replace("LOCK", "conda-lock.yml"), tmp_path / "run.yaml").run
    assert run.environment.requirements == ""
    assert run.environment.conda == (
        f"# platform: linux-64\n@EXPLICIT\n{PYTHON}#{SHA}\n{NOARCH}#{SHA}\n# pip lightning @ {WHEEL}#sha256={SHA}\n"
        f"# platform: osx-arm64\n@EXPLICIT\n{mac}#{SHA}\n"
    )
    assert from_value(json.loads(as_text(run)), "run.yaml") == run
    lists = conda_lock.by_platform(run.environment.conda)
    assert sorted(lists) == ["linux-64", "osx-arm64"]
    found = lists["linux-64"]
    assert found.requirements == f"lightning @ {WHEEL} --hash=sha256:{SHA}\n"
    assert found.size == "2 packages and 1 of pip for linux-64"


@pytest.mark.parametrize("digest", [SHA, f"sha256:{SHA}", MD5], ids=("sha256", "with its name", "md5"))
@pytest.mark.parametrize("heading", ["# platform: linux-64\n", ""], ids=("stated", "by its packages"))
def test_explicit_list_keeps_order_and_hashes(digest: str, heading: str) -> None:
    text = f"# made by conda\n{heading}@EXPLICIT\n{NOARCH}#{digest}\n\n{PYTHON}#{digest}\n"
    [plain] = {digest.removeprefix("sha256:")}
    lists = conda_lock.lists_of(text)
    assert lists == f"# platform: linux-64\n@EXPLICIT\n{NOARCH}#{plain}\n{PYTHON}#{plain}\n"


def test_requirements_and_environment_files_are_no_locks() -> None:
    for text in ("torch==2.13.0\n", "name: x\nchannels: [main]\ndependencies:\n- python\n", "package: torch\n", ""):
        assert conda_lock.lists_of(text) is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("file:///opt/channel/linux-64/python-3.12-0.conda", "is no address of http or https"),
        ("/opt/channel/linux-64/python-3.12-0.conda", "is no address of http or https"),
        ("ftp://conda.example/linux-64/python-3.12-0.conda", "is no address of http or https"),
        ("https:///linux-64/python-3.12-0.conda", "is no address"),
        ("https://conda.example/../linux-64/python-3.12-0.conda", "is no address of a package"),
        ("https://conda.example/%2e%2e/linux-64/python-3.12-0.conda", "is no address of a package"),
        ("https://conda.example/a%2fb/linux-64/python-3.12-0.conda", "is no address of a package"),
        ("https://conda.example//linux-64/python-3.12-0.conda", "is no address of a package"),
        ("https://conda.example/linux-64/python-3.12-0.zip", "is no package of a channel"),
        ("https://conda.example/linux-64/.conda", "is no package of a channel"),
        ("https://conda.example/linux-64/--prefix=x-1.conda", "is no package of a channel"),
        ("https://conda.example/python-3.12-0.conda", "is no address of a package"),
        ("https://conda.example/etc/python-3.12-0.conda", "is no package of a channel"),
        ("https://conda.example/linux-64/python-3.12-0.conda?x=1", "is no address of http or https"),
        ("https://conda.example/linux-64/py thon-3.12-0.conda", "is no address of http or https"),
        ("https://conda.example/linux-64/\x1b[2Jpython-3.12-0.conda", "is no address of http or https"),
        ("https://conda.example/linux-64/pythön-3.12-0.conda", "is no address of http or https"),
        ("https://conda.example/linux-64/$(id)-3.12-0.conda", "is no address of http or https"),
        ("https://conda.example/linux-64/$HOME-3.12-0.conda", "is no package of a channel"),
        ("https://conda.example/osx-64/python-3.12-0.conda", "is for 'osx-64'"),
    ],
)  # fmt: skip
def test_address_that_is_no_package_of_a_channel_is_refused(url: str, what: str) -> None:
    assert what in error_of(f"# platform: linux-64\n@EXPLICIT\n{PYTHON}#{SHA}\n{url}#{SHA}\n").message
    assert what in error_of(lock(row(PYTHON), row(url, name="python"))).message


@pytest.mark.parametrize(
    "url",
    [
        "https://alice:hunter2@conda.example/linux-64/python-3.12-0.conda",
        "https://hunter2@conda.example/linux-64/python-3.12-0.conda",
        "https://$USER:hunter2@conda.example/linux-64/python-3.12-0.conda",
        "https://conda.example/t/hunter2/get/linux-64/python-3.12-0.conda",
    ],
)
def test_credentials_are_refused_and_not_repeated(url: str) -> None:
    for text in (f"@EXPLICIT\n{url}#{SHA}\n", f"@EXPLICIT\n{url}\n", lock(row(url)), f"@EXPLICIT\n{url}x#{SHA}"):
        error = error_of(text)
        assert "hunter2" not in str(error)
    assert "has credentials" in error_of(f"@EXPLICIT\n{url}#{SHA}\n").message
    assert "$NAME" in error.hint or "CHANNEL" in error.hint


def test_variables_take_the_place_of_credentials() -> None:
    urls = ("https://$CONDA_USER:${CONDA_PASSWORD}@conda.example/linux-64/python-3.12-0.conda",
            "https://conda.example/t/$TOKEN/get/linux-64/zlib-1.3-0.conda")  # fmt: skip
    text = conda_lock.lists_of("@EXPLICIT\n" + "".join(f"{url}#{SHA}\n" for url in urls))
    assert text is not None
    found = conda_lock.explicit_list(text)
    assert found.servers == ["conda.example"]
    assert found.variables == [
        "CONDA_PASSWORD",
        "CONDA_USER",
        "TOKEN",
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"@EXPLICIT\n{PYTHON}\n", "has no hash"),
        (f"@EXPLICIT\n{PYTHON}#{SHA[:-1]}\n", "has no hash, but"),
        (f"@EXPLICIT\n{NOARCH}#{SHA}\n", "states no platform"),
        (f"# platform: ../x\n@EXPLICIT\n{NOARCH}#{SHA}\n", "is no platform of conda"),
        ("# platform: linux-64\n@EXPLICIT\n", "no package of conda is in it"),
        (f"@EXPLICIT\n{PYTHON}#{SHA}\n{PYTHON.replace('3.12.4', '3.11.9')}#{SHA}\n", "python is in it twice"),
        (f"@EXPLICIT\n{PYTHON}#{SHA}\n# pip a @ {WHEEL}\n", "is no package with address and SHA-256"),
        (f"@EXPLICIT\n{PYTHON}#{SHA}\n# pip a @ git+https://x.example/a#sha256={SHA}\n", "is no address of http"),
        (f"@EXPLICIT\n{PYTHON}#{SHA}\n# pip -r x @ {WHEEL}#sha256={SHA}\n", "is no package with address"),
        (f"@EXPLICIT\n{PYTHON}#{SHA}\n# pip a @ {WHEEL.replace('aa', '$X')}#sha256={SHA}\n", "has a variable"),
        (f"@EXPLICIT\n{PYTHON}#{SHA}\n" + f"# pip a_b @ {WHEEL}#sha256={SHA}\n# pip A.B @ {WHEEL}#sha256={SHA}\n",
         "a-b is in it twice"),
        (f"# platform: win-64\n@EXPLICIT\n{NOARCH}#{SHA}\n", "has no package for Linux or macOS"),
        (lock(row(PYTHON), version=2), "is of version 2"),
        (lock(row(PYTHON), version=None), "is of version None"),
        (lock(row(PYTHON, name="openssl")), "package 'openssl' has the file of 'python'"),
        (lock(row(PYTHON, hash={})), "has no hash"),
        (lock(row(PYTHON, hash=None)), "has no hash"),
        (lock({**row(PYTHON), "url": 7}), "url: expected a text, found 7"),
        (lock(row(PYTHON, manager="apt")), "is neither conda nor pip"),
        (lock({"name": "x", "manager": "pip", "platform": "linux-64", "url": WHEEL}), "is no package with address"),
        (lock(row(PYTHON, platform="../../x")), "is no platform of conda"),
        (lock(row(PYTHON)).replace("main", "&a main", 1).replace("'1'", "*a"), "an alias"),
        (lock(row(PYTHON)) + "x: [\n", "while parsing"),
        ("version: 1\npackage: 7\nx:\n- manager: conda\n", "expected a list of packages"),
    ],
)  # fmt: skip
def test_lock_that_hosts_do_not_install_is_refused(text: str, what: str) -> None:
    assert what in error_of(text).message


def test_lock_of_too_many_packages_is_refused() -> None:
    lines = "".join(f"https://c.example/linux-64/p{number}-1-0.conda#{MD5}\n" for number in range(5000))
    assert "more than 2000 packages" in error_of(f"@EXPLICIT\n{lines}").message
    long = "a" * 3000
    lines = "".join(f"https://c.example/{long}/linux-64/p{number}-1-0.conda#{MD5}\n" for number in range(300))
    assert "characters of packages, allowed are" in error_of(f"@EXPLICIT\n{lines}").message


def test_message_names_run_file_key_and_lock(tmp_path: Path) -> None:
    (tmp_path / "packages.lock").write_text(f"@EXPLICIT\n{PYTHON}\n")
    with pytest.raises(UsageError) as raised:
        parse_run_file(RUN.replace("LOCK", "packages.lock"), tmp_path / "run.yaml")
    assert str(raised.value).startswith(f"{tmp_path}/run.yaml: environment.lock: {tmp_path}/packages.lock: ")
    assert "conda list --explicit --sha256" in raised.value.hint


def test_list_in_a_run_file_is_written_by_a_lock_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"environment\.conda: no key of it"):
        parse_run_file("trainer: huggingface\ncommand: x\nenvironment: {conda: {linux-64: x}}\n", tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("lists", "what"),
    [
        (f"# platform: linux-64\n@EXPLICIT\nfile:///etc/linux-64/a-1-0.conda#{SHA}\n", "is no address of http"),
        (f"# platform: linux-64\n@EXPLICIT\n{PYTHON.replace('linux-64', 'osx-64')}#{SHA}\n", "is for 'osx-64'"),
        (f"# platform: ../../x\n@EXPLICIT\n{NOARCH}#{SHA}\n", "is no platform"),
        (f"# platform: linux-64\n@EXPLICIT\n{PYTHON}#{SHA}\n" * 2, "one for each platform"),
        (f"# platform: linux-64\n@EXPLICIT\nrm -rf x\n{PYTHON}#{SHA}\n", "is no address of http"),
        (f"x\n# platform: linux-64\n@EXPLICIT\n{PYTHON}#{SHA}\n", "is no sequence"),
        ("x", "is no sequence"),
        ("x" * (1 << 20), "characters, more than"),
        (f"# platform: linux-64\n@EXPLICIT\n{PYTHON}#{SHA}\ud800", "UTF-8"),
    ],
)
def test_run_file_of_a_host_has_checked_lists(tmp_path: Path, lists: str, what: str) -> None:
    (tmp_path / "a.lock").write_text(f"@EXPLICIT\n{PYTHON}#{SHA}\n")
    value = parse_run_file(RUN.replace("LOCK", "a.lock"), tmp_path / "run.yaml").run.to_json()
    value["environment"]["conda"] = lists
    with pytest.raises(records.RecordError, match=r"environment(\.conda)?: ") as raised:
        from_value(value, "run.yaml of bad")
    assert what in str(raised.value)


def test_damaged_locks_end_as_usage_errors() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    texts = (lock(row(PYTHON), row(NOARCH)), f"# platform: linux-64\n@EXPLICIT\n{PYTHON}#{SHA}\n")
    for _ in range(400):
        text = list(rng.choice(texts))
        for _ in range(rng.randrange(1, 6)):
            place = rng.randrange(len(text))
            text[place] = rng.choice(
                ("", "\n", ":", "- ", "{", "\x00", "\u202e", "&a ", "*a", "%2e", "\ud800", "9" * 40)
            )
        try:
            lists = conda_lock.lists_of("".join(text))
        except UsageError as error:
            printed = str(error)
        else:
            printed = ""
            assert lists is None or "".join(map(str, conda_lock.by_platform(lists).values())) == lists
        assert printed.isprintable() or not printed, repr(printed)
