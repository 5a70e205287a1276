"""Tokenization of text sources by worker processes."""
