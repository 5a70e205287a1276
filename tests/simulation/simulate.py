"""Simulate migrations: `python tests/simulation/simulate.py --seeds 0:100`; `--help` lists the flags."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.flags.hash_randomization:  # sets would have another order in each process
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
sys.path.insert(0, str(Path(__file__).parents[1]))

from simulation import cooperative, disks, operating_system

cooperative.install()  # before anything of midstream is imported
operating_system.install()
disks.install()

from simulation.runner import main  # noqa: E402

sys.exit(main())
