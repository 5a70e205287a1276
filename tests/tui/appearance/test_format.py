"""Numbers and texts in readable form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from midstream import format
from midstream.listing.run_facts import short_kind


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (format.size, 0, "0 B"),
        (format.size, 999, "999 B"),
        (format.size, 14_200_000, "14.2 MB"),
        (format.size, 999_600, "1.0 MB"),
        (format.size, 120e9, "120 GB"),
        (format.size, 5e15, "5000 TB"),
        (format.size, None, "-"),
        (format.short, 12_345.6, "12.3k"),
        (format.short, 940, "940"),
        (format.short, 1.2e6, "1.2M"),
        (format.short, math.nan, "nan"),
        (format.loss, 2.34561, "2.3456"),
        (format.loss, math.inf, "inf"),
        (format.loss, 123456.0, "1.23e+05"),
        (format.seconds, 0.42, "0.4s"),
        (format.seconds, 12.3, "12s"),
        (format.seconds, 200, "3m20"),
        (format.seconds, 7500, "2h05"),
        (format.age, 0.3, "0s"),
        (format.age, 119, "119s"),
        (format.age, 180, "3m"),
        (format.age, 3 * 86400, "3d"),
        (format.age, -2, "0s"),
        (format.percent, 0.643, "64%"),
        (format.digest, "", "-"),
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
    lines = format.folded(text, 44, 4).split("\n")
    assert len(lines) > 1
    assert all(len(line) <= 44 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])
    assert " ".join(line.strip() for line in lines) == text
    assert format.folded("", 44, 4) == ""
