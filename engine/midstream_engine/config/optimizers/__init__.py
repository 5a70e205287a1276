"""The kinds of optimizers besides Adam."""
