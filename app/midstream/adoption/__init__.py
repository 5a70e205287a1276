"""Runs of other trainers: start, adopt, write a run file, advise.

A run is started with its files; a run that trains already can be adopted.
"""
