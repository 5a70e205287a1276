"""Processes of one attempt: rendezvous, messages beside collectives, failures.

The first failure is detected.
"""
