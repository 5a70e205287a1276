"""Records of files, formulas, tables and clients of buckets, for all packages.

Standard library only, Python 3.8: its sources are sent to hosts where nothing is installed. The exceptions are in
``tests/unit/project/test_rooms.py``.
"""

__version__ = "0.1.0"
