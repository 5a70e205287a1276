"""Order of examples: permutation, packing, position of a step in the data."""
