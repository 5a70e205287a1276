"""Copies of object trees between hosts, hashed in transit, verified at the target."""
