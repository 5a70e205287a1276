"""Programs for hosts without installation: standard library only, Python 3.8.

The app sends the sources of the functions it calls (`midstream.hosts.rpc`). The driver of other trainers and the
supervisor of each attempt are in the engine's archive.
"""
