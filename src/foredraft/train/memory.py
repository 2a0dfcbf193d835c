"""Keeping freed memory in the process.

glibc gives large blocks back to the kernel as soon as they are freed and takes them anew for the next
step; on virtual machines the page faults then cost more than the arithmetic.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_NEVER = 2**31 - 1
_TOP_PAD = 64 << 20


def reuse_freed_memory() -> bool:
    """Tell the C library to keep what is freed for the next allocation, in this process, for good.

    Returns:
        Whether it was told: other systems and C libraries are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_MAX, 0),
        (_M_TRIM_THRESHOLD, _NEVER),
        (_M_TOP_PAD, _TOP_PAD),
    )
    return bool(min(mallopt(name, value) for name, value in settings) == 1)
