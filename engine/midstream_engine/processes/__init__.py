"""Processes of one attempt: rendezvous, messages beside collectives, and detection of the first failure."""
