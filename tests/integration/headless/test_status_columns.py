"""`--status --columns`: a table of runs with chosen fields, also of their configurations."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream_core import records
from support.local_fleet import Fleet, stopped_run

LOG = """2026-11-30T03:00:00 starting
2026-11-30T03:00:01 resolved configuration:
optimizer: {learning_rate: 3.0e-4, type: adam}
2026-11-30T03:00:02 step 0
"""


@pytest.fixture
def fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Fleet:
    made = Fleet(tmp_path, capsys, "here")
    for name in ("solo", "other"):
        stopped_run(made.roots["here"], name)
        paths = records.RunPaths(str(made.roots["here"]), name).attempt(1)
        Path(paths.log(0)).write_text(LOG.replace("3.0e-4", "1.0e-2" if name == "other" else "3.0e-4"))
    return made


def test_chosen_fields_are_a_table(fleet: Fleet) -> None:
    code, out, err = fleet("--status", "--columns", "run,state,config.optimizer.learning_rate,config.nothing")
    assert code == 0, err
    heading, *rows = [line.split() for line in out.splitlines()]
    assert heading == ["RUN", "STATE", "LEARNING_RATE", "NOTHING"]
    assert rows == [["other", "stopped", "0.01"], ["solo", "stopped", "0.0003"]]


def test_filter_reads_configurations(fleet: Fleet) -> None:
    words = ("--status", "--columns", "run", "--filter", "config.optimizer.learning_rate<1e-3")
    assert fleet(*words)[1].split() == ["RUN", "solo"]
    code, out, _ = fleet("--status", "--json", "--filter", "config.optimizer.learning_rate>1e-3")
    assert code == 0
    assert '"run": "other"' in out
    assert '"run": "solo"' not in out


def test_unknown_fields_are_refused_in_one_line(fleet: Fleet) -> None:
    code, out, err = fleet("--status", "--columns", "run,lose")
    assert (code, out) == (2, "")
    assert "--columns: no such field 'lose'" in err
    assert fleet("--status", "--columns", "run", "--json")[0] == 2
