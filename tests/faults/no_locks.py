"""A FUSE file system that passes everything on to a folder but locks: `python no_locks.py FOLDER MOUNTPOINT ERRNO`.

flock fails with that error number, or does nothing where it is 0.
"""

import os
import sys
from pathlib import Path

import mfusepy


class NoLocks(mfusepy.Operations):
    def __init__(self, folder, number):
        self.folder, self.number = folder, number

    def _below(self, path):
        return f"{self.folder}{path}"

    def getattr(self, path, fh=None):
        found = os.lstat(self._below(path))
        return {key: getattr(found, key) for key in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")}

    def readdir(self, path, fh, *flags):
        return [".", "..", *os.listdir(self._below(path))]

    def mkdir(self, path, mode):
        os.mkdir(self._below(path), mode)

    def chmod(self, path, mode):
        os.chmod(self._below(path), mode)

    def create(self, path, mode, fi=None):
        return os.open(self._below(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path, flags):
        return os.open(self._below(path), flags)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        os.truncate(self._below(path), length)

    def rename(self, old, new, *flags):
        os.rename(self._below(old), self._below(new))

    def unlink(self, path):
        os.unlink(self._below(path))

    def rmdir(self, path):
        os.rmdir(self._below(path))

    def fsync(self, path, datasync, fh):
        os.fsync(fh)

    def release(self, path, fh):
        os.close(fh)

    def flock(self, path, fh, op):
        if self.number:
            raise mfusepy.FuseOSError(self.number)
        return 0


if __name__ == "__main__":
    folder, mountpoint, number = sys.argv[1:]
    mfusepy.FUSE(NoLocks(Path(folder), int(number)), mountpoint, foreground=True, nothreads=True)
