"""The location of an SQLite timeline, and the permissions of its file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from twophase.errors import TimelineError

#: File systems that share files between machines, while SQLite's log (WAL) needs the shared memory of one machine.
#: All user-space file systems (``fuse.sshfs``, ``fuse.gcsfuse``) count as such, except local disks (``fuseblk``).
_NETWORK = frozenset(
    "9p acfs afs beegfs ceph cifs coda davfs drvfs gfs gfs2 glusterfs gpfs lustre ncpfs ocfs2 orangefs prl_fs pvfs2 "
    "smb2 smb3 smbfs vboxsf virtiofs vmhgfs wekafs".split()
)
_READ_ONLY = "Even a reader writes to the log beside it: mount it writable, or set spark.twophase.timeline."
_MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(place: Path) -> str | None:
    """Return the type of a path's file system if it may be shared with other machines; None if it is not or unknown."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None  # Not Linux.
    place, kind, longest = Path(os.path.realpath(place)), "", -1
    for line in lines:
        before, _, after = line.partition(" - ")
        root = Path(_unescaped(before.split()[4]))
        # Of two mounts on the same path, the later one is effective.
        if len(root.parts) >= longest and place.is_relative_to(root):
            longest, kind = len(root.parts), after.split()[0]
    is_network = kind in _NETWORK or kind.startswith(("nfs", "fuse.")) or kind == "fuse"
    return kind if is_network else None


def _unescaped(text: str) -> str:
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text


def make_file(file: Path) -> None:
    """Create the timeline's file, for its owner only, or also for the group if it may write to the directory.

    SQLite gives its companion files (``-wal``, ``-shm``) the same mode. The mode of an existing file is not changed.

    Raises
    ------
    TimelineError
        It cannot be created, or this user may not write to the existing one.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _make(file)
    except OSError as error:
        hint = _READ_ONLY if error.errno == errno.EROFS else _sharing(file)
        raise TimelineError(f"Cannot make the timeline {file}: {error.strerror}.", hint=hint) from error
    check_access(file)


def _make(file: Path) -> None:
    directory = file.parent.stat()
    # A directory for everyone (/tmp) does not count as shared with the group.
    shared = directory.st_mode & stat.S_IWGRP and not directory.st_mode & stat.S_ISVTX
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return
    try:
        if shared:
            os.fchown(descriptor, -1, directory.st_gid)
            os.fchmod(descriptor, 0o660)
    except OSError:
        pass  # Not a member of that group: for the owner only.
    finally:
        os.close(descriptor)


def check_access(file: Path) -> None:
    """Refuse a timeline that this user may not use, with a hint.

    Raises
    ------
    TimelineError
    """
    if not file.is_file() or os.access(file, os.R_OK | os.W_OK):
        return
    if os.statvfs(file).f_flag & os.ST_RDONLY:
        raise TimelineError(f"The timeline {file} is on a file system that is mounted read-only.", hint=_READ_ONLY)
    raise TimelineError(
        f"The timeline {file} belongs to {_owner(file)}, and this user may not write it.", hint=_sharing(file)
    )


def _owner(file: Path) -> str:
    try:
        return f"user {file.owner()}"
    except (KeyError, OSError):
        return "another user"


def _sharing(file: Path) -> str:
    return (
        f"Users who share it need a group: chgrp GROUP {file.parent} {file}*; chmod g+rwxs {file.parent}; "
        f"chmod 660 {file}*. Or set spark.twophase.timeline, for instance to postgresql+psycopg://user@host/database."
    )
