"""Providers of machines that are created and deleted on request.

`provider` is their interface.
"""
