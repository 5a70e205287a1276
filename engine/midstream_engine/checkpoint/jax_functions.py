"""Functions of jax whose annotations are incomplete: with a type that pyright does not call unknown."""

from __future__ import annotations

from typing import Any

import jax

functions: Any = jax
