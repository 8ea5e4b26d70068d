"""A results folder that is gone for a minute, as network file systems are: what is to be done there waits."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench.common.errors import say

PATIENCE_S = 120.0
POLL_S = 0.2
# What a file system says that is not there, beside its files being missing.
AWAY = (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH)
MISSING = (errno.ENOENT, errno.ENOTDIR)

Result = TypeVar("Result")


def patiently(action: Callable[[], Result], landmark: Path) -> Result:
    """Do something in a results folder; while that is gone, wait, and do it again.

    Args:
        action: makes no folder that a sweep finds there, for it might make one in place of that which comes back.
        landmark: a folder in it that is there as long as it is. Where a disk was unmounted, an empty folder is left.

    Raises:
        OSError: of the action, for another reason or after two minutes.
    """
    deadline = None
    while True:
        try:
            return action()
        except OSError as error:
            away = error.errno in AWAY or (error.errno in MISSING and not os.path.lexists(landmark))
            if not away or (deadline is not None and time.monotonic() > deadline):
                raise
            if deadline is None:
                deadline = time.monotonic() + PATIENCE_S
                say(f"{landmark.parent}: {error.strerror}; waiting for it, {PATIENCE_S:.0f} s at most")
        time.sleep(POLL_S)
