"""The Python interpreter of an honest host: runs the real one and notes how much memory it took at most.

measure.py CONTROL REAL_PYTHON [interpreter arguments...]
"""

import os
import resource
import subprocess
import sys

control, python, *arguments = sys.argv[1:]
if "-c" not in arguments:  # an engine, or another long program
    os.execv(python, [python, *arguments])
code = subprocess.call([python, *arguments])
with open(os.path.join(control, "peaks"), "a") as file:
    file.write(f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}\n")
sys.exit(code if code >= 0 else 128 - code)
