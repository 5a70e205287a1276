"""Numbers and texts in readable form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from midstream.listing.run_facts import short_kind
from midstream.tui.style import number_format


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (number_format.size, 0, "0 B"),
        (number_format.size, 999, "999 B"),
        (number_format.size, 14_200_000, "14.2 MB"),
        (number_format.size, 999_600, "1.0 MB"),
        (number_format.size, 120e9, "120 GB"),
        (number_format.size, 5e15, "5000 TB"),
        (number_format.size, None, "-"),
        (number_format.short, 12_345.6, "12.3k"),
        (number_format.short, 940, "940"),
        (number_format.short, 1.2e6, "1.2M"),
        (number_format.short, math.nan, "nan"),
        (number_format.loss, 2.34561, "2.3456"),
        (number_format.loss, math.inf, "inf"),
        (number_format.loss, 123456.0, "1.23e+05"),
        (number_format.seconds, 0.42, "0.4s"),
        (number_format.seconds, 12.3, "12s"),
        (number_format.seconds, 200, "3m20"),
        (number_format.seconds, 7500, "2h05"),
        (number_format.age, 0.3, "0s"),
        (number_format.age, 119, "119s"),
        (number_format.age, 180, "3m"),
        (number_format.age, 3 * 86400, "3d"),
        (number_format.age, -2, "0s"),
        (number_format.percent, 0.643, "64%"),
        (number_format.digest, "", "-"),
    ],
)
def test_number_format(function: Callable[[Any], str], value: float | None, text: str) -> None:
    assert function(value) == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("TPU v4", "TPU v4"),
        ("NVIDIA RTX 4090", "RTX 4090"),
        ("cpu", "cpu"),
        ("", ""),
    ],
)
def test_accelerator_kind_is_abbreviated(kind: str, text: str) -> None:
    assert short_kind(kind) == text


def test_fold_indents_lines_and_breaks_only_long_words() -> None:
    text = "compare the fingerprint, then: ssh-keyscan -p 53507 127.0.0.1 >> /home/me/.ssh/known_hosts"
    lines = number_format.folded(text, 44, 4).split("\n")
    assert len(lines) > 1
    assert all(len(line) <= 44 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])
    assert " ".join(line.strip() for line in lines) == text
    assert number_format.folded("", 44, 4) == ""
