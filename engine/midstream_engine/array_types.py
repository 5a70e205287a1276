"""Types of arrays, and of what has arrays, that jax, haliax and optax lack."""

from __future__ import annotations

from typing import Any

Device = Any  # jax.Device, which has no types
PyTree = Any  # modules, tuples and mappings, nested, with arrays as leaves
Leaf = Any  # a leaf of a PyTree, or a node that counts as one: a NamedArray, an array, or what stands for it
PathKey = Any  # a key of a leaf's path: an attribute, an index or a name
OptimizerState = Any  # a PyTree of optax
Index = Any  # of a part of an array: numbers, slices, an ellipsis
Ref = Any  # memory that a kernel of Pallas reads or writes
Carry = Any  # a PyTree that a loop passes on
Compiled = Any  # jax.stages.Compiled, whose analyses have no types
Lowered = Any  # jax.stages.Lowered
