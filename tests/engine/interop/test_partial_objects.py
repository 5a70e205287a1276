"""Checkpoints of other programs in a bucket whose last object is there, and not complete.

gcsfs and s3torchconnector commit what was written when the block that writes raises: an object that is there may end
anywhere. No such checkpoint is imported, nor an older one in its place.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.migrate.planning.import_plan import read_survey
from midstream_core.object_store.open_bucket import close_clients
from midstream_engine import convert
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.levanter.importer import open_levanter
from simulators.object_stores.bucket import BucketServer, bucket_server
from support.imports.levanter_checkpoints import as_format_a
from support.paths import FIXTURES

HERE = LocalHost("here", LocalHostConfig())
URL = "gs://my-bucket/"
LEVANTER, NEOX, HUGGINGFACE = "levanter/data/run", "neox/pythia-fp32-z1-dp2", "hf/gpt2"
OCDBT = "step-3/manifest.ocdbt"
STATES = "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with bucket_server("my-bucket") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        close_clients()
        yield server
        close_clients()


def upload(server: BucketServer, name: str) -> str:
    for path in (FIXTURES / name).rglob("*"):
        if path.is_file():
            server.put("my-bucket", f"{name}/{path.relative_to(FIXTURES / name)}", path.read_bytes())
    return URL + name


def converted(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Convert a checkpoint, which is refused; return the line that says why."""
    target = tmp_path / "out"
    flags = [] if HUGGINGFACE in url else ["--without-data"]
    assert convert.main([url, str(target), *flags]) == 1
    assert not target.exists()
    [line] = capsys.readouterr().err.strip().splitlines()[-1:]
    return line


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        (LEVANTER, "step-3/metadata.json", "metadata.json: not JSON, perhaps truncated"),
        (LEVANTER, OCDBT, "its OCDBT store cannot be read"),
        (NEOX, STATES, "optim_states.pt"),
        (HUGGINGFACE, "model.safetensors", "model.safetensors"),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_object_that_ends_early_is_never_imported(
    server: BucketServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    path: str,
    said: str,
    share: float,
) -> None:
    url = upload(server, name)
    data = (FIXTURES / name / path).read_bytes()
    server.put("my-bucket", f"{name}/{path}", data[: int(len(data) * share)])
    assert said in converted(url, tmp_path, capsys)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (LEVANTER, "step-3/d/b2a3add5c57a5c33dc79e1951a610d11"),
        (LEVANTER, "step-3/d/4438593f317ba0f6dbebe378297e277d"),
        (LEVANTER, "config.yaml"),
        (NEOX, "global_step3/mp_rank_00_model_states.pt"),
        (NEOX, "global_step3/configs/pythia-fp32-z1-dp2.yml"),
        (HUGGINGFACE, "config.json"),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_no_object_of_a_checkpoint_may_be_a_part(
    server: BucketServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, path: str, share: float
) -> None:
    url = upload(server, name)
    data = (FIXTURES / name / path).read_bytes()
    server.put("my-bucket", f"{name}/{path}", data[: int(len(data) * share)])
    assert converted(url, tmp_path, capsys).startswith("midstream: ")


def test_values_that_a_cut_configuration_has_lost_are_named(
    server: BucketServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = upload(server, LEVANTER)
    lines = (FIXTURES / LEVANTER / "config.yaml").read_bytes().splitlines(keepends=True)
    server.put("my-bucket", f"{LEVANTER}/config.yaml", b"".join(lines[:-1]))
    assert convert.main([url, str(tmp_path / "out"), "--without-data"]) == 0
    assert "note: trainer.num_train_steps 400000: Levanter's defaults" in capsys.readouterr().err


@pytest.mark.parametrize("text", [b"", b'{"step": 9, "timesta'])
def test_newest_step_with_a_cut_metadata_is_named(
    server: BucketServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes
) -> None:
    url = upload(server, LEVANTER)
    for path in (FIXTURES / LEVANTER / "step-3").rglob("*"):
        if path.is_file():
            place = path.relative_to(FIXTURES / LEVANTER / "step-3")
            server.put("my-bucket", f"{LEVANTER}/step-9/{place}", path.read_bytes())
    server.put("my-bucket", f"{LEVANTER}/step-9/metadata.json", text)
    with pytest.raises(MidstreamError, match=r"step-9/metadata\.json"):
        read_survey(Fleet(), HERE, url, "")
    assert "step-9/metadata.json: not JSON" in converted(url, tmp_path, capsys)


@pytest.mark.parametrize("text", [b"", b"global_st", b"global_step", b"global_step3"])
def test_cut_name_of_the_newest_step_is_refused(
    server: BucketServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes
) -> None:
    url = upload(server, NEOX)
    server.put("my-bucket", f"{NEOX}/global_step30/mp_rank_00_model_states.pt", b"of the newest")
    server.put("my-bucket", f"{NEOX}/latest", text)
    with pytest.raises(MidstreamError, match="latest"):
        read_survey(Fleet(), HERE, url, "")
    assert "latest" in converted(url, tmp_path, capsys)


@pytest.mark.parametrize("missing", [True, False])
def test_zarr_chunk_that_was_not_written_is_not_zeros(tmp_path: Path, missing: bool) -> None:
    as_format_a(FIXTURES / "levanter/llama", tmp_path / "a")
    assert open_levanter(str(tmp_path / "a")).step == 3
    chunk = max((tmp_path / "a/step-3/model").rglob("0.0"), key=lambda path: path.stat().st_size)
    shutil.copy(chunk, tmp_path / "copy")
    if missing:
        chunk.unlink()
    else:
        chunk.write_bytes(b"")
    with pytest.raises(ConversionError, match=r"0\.0: missing"):
        open_levanter(str(tmp_path / "a"))
    shutil.copy(tmp_path / "copy", chunk)
    assert open_levanter(str(tmp_path / "a")).step == 3
