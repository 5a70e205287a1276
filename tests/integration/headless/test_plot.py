"""`--metrics RUN --plot FILE`: charts of runs from the command line."""

from __future__ import annotations

import csv
from pathlib import Path

from support.command_line import midstream, refused
from support.run_directory import RunDirectory


def test_plot_of_two_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        RunDirectory(tmp_path / "root", name).rows(1, *range(30))
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts:\n  here: {{type: local, root: {tmp_path}/root}}\n")
    command = ("--fleet", fleet, "--metrics", "one,two", "--plot")
    done = midstream(*command, tmp_path / "a.csv", "--smoothing", "0.6", "--x-range", ":9", "--json")
    assert done.code == 0, done.stderr
    assert done.of("plot")[0]["points"] == 60
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["run"] for row in rows] == ["one"] * 10 + ["two"] * 10
    assert set(rows[0]) == {"run", "attempt", "step", "train/loss", "smoothed"}
    assert midstream(*command, tmp_path / "a.svg", "--log-x", "--log-y", "--y-range", "1:").code == 0
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    refused(midstream(*command, tmp_path / "a.csv", "--metric", "train/los"), 2, "no points", "train/loss")


def test_plot_refuses_invalid_flags_before_it_reaches_a_host(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("hosts:\n  lost: {type: ssh, address: '127.0.0.1:1'}\n")
    command = ("--fleet", fleet, "--metrics", "one")
    refused(midstream(*command, "--plot", "a.pdf"), 2, ".csv, .svg or .png")
    refused(midstream(*command, "--plot", "a.csv", "--smoothing", "1"), 2, "is no factor")
    refused(midstream(*command, "--plot", "a.csv", "--y-range", "3:2"), 2, "--y-range '3:2' is not LOW:HIGH")
    refused(midstream(*command, "--log-x"), 2, "--log-x goes with --metrics RUN --plot FILE")
