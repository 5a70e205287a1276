"""Containers in which the engines of a host run."""
