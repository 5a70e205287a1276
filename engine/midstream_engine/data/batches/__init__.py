"""Batches of examples: of one dataset or a mixture, with prefetch."""
