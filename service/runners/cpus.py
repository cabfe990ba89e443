"""How many cores this process may really use: affinity and cgroup quota, never the host's count."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")
_CPUINFO = Path("/proc/cpuinfo")


# Each thread of the model keeps memory of its own, and past this many a machine is better used by another process.
MAX_DEFAULT_THREADS = 32


def default_threads() -> int:
    """How many threads the model gets when nobody says: the usable CPUs, at most MAX_DEFAULT_THREADS."""
    return min(usable_cpus(), MAX_DEFAULT_THREADS)


def usable_cpus() -> int:
    """At least 1: the least of the affinity mask and the cgroup's CPU quota, rounded up."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def may_saturate(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether products of int8 may overflow: on x86 without VNNI two of them are added up in 16 bits.

    False where it is not known.
    """
    try:
        flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    except OSError:
        return False
    return bool(flags) and not {"avx512_vnni", "avx_vnni"} & set(flags.split())


def cgroup_quota(v2: Path = _CGROUP_V2, v1: Path = _CGROUP_V1) -> float | None:
    """CPUs granted by the cgroup, or None when there is no limit."""
    try:
        if v2.exists():
            quota, period = v2.read_text().split()
        else:
            quota = (v1 / "cpu.cfs_quota_us").read_text().strip()
            period = (v1 / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None
