"""A wheel and a lock file that pins it, for building environments without network."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import zipfile
from pathlib import Path

PACKAGE = "midstream_test_parcel"


def uv_works() -> bool:
    found = shutil.which("uv")
    return found is not None and subprocess.run([found, "--version"], capture_output=True).returncode == 0


def write_wheel(directory: Path) -> str:
    """Write a wheel with one module, and return a lock file that pins it by hash."""
    directory.mkdir(exist_ok=True)
    info = f"{PACKAGE}-1.0.dist-info"
    contents = {
        f"{PACKAGE}.py": b"VALUE = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    contents[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    wheel = directory / f"{PACKAGE}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return f"{PACKAGE}==1.0 \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
