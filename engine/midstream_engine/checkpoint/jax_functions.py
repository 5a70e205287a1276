"""Functions of jax whose annotations are incomplete."""

from __future__ import annotations

from typing import Any

import jax

functions: Any = jax
