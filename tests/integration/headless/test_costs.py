"""`--cost` on this machine and an unreachable host."""

from __future__ import annotations

from pathlib import Path

from support.command_line import midstream, refused


def test_cost_flag_prints_this_machine_and_names_unreachable(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        f"hosts:\n  here: {{type: local, root: {tmp_path}/root, price_per_hour: 2}}\n"
        "  lost: {type: ssh, address: '127.0.0.1:1'}\n"
    )
    command = ("--fleet", fleet, "--cost", "--since", "1h")
    done = midstream(*command)
    assert done.code == 0
    assert "here" in done.stdout
    assert "not known: lost: " in done.stdout
    found = midstream(*command, "--json")
    assert [line["host"] for line in found.of("host_cost")] == ["here"]
    assert found.of("total_cost")[0]["cost"] > 0
    refused(midstream("--fleet", fleet, "--cost", "--since", "soon"), 2, "30m, 6h, 2d")
    refused(midstream("--fleet", fleet, "--status", "--since", "1h"), 2, "--since goes with --cost")
