"""Files and directories accessed through :mod:`pyarrow.fs`, addressed by Hadoop path strings.

Only the operations that the recipes need: list, stamp, move, link, remove. A *location* is a Hadoop path string
(``file:/a/b``, ``s3a://bucket/a``, ``/a/b``), never percent-encoded.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyarrow import fs

from twophase.catalogs import fsync
from twophase.catalogs.location_identity import Identities, are_same
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.redaction import redact

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*):")
#: A document that is being written: see :meth:`Files.write_json`.
_PART = re.compile(r"\.[0-9a-f]{32}\.part")
#: Arrow's names of Hadoop's schemes.
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfss", "gs": "gs", "hdfs": "hdfs", "viewfs": "viewfs"}

#: Option that allows writes to tables on other, untested file systems.
UNTRIED = "spark.twophase.storage.untested"

_UMASK = "spark.hadoop.fs.permissions.umask-mode"
#: Options of a write by Spark with which Hadoop writes no ``_SUCCESS`` file.
UNMARKED = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
#: Directories in which Hadoop's ``FileOutputCommitter`` stores the attempts of a job's tasks.
_WORKING_DIRECTORIES = ("_temporary", "0", "_temporary")


@dataclass(frozen=True)
class Entry:
    """A file or directory below a location.

    Attributes
    ----------
    name : str
        Path relative to the listed location, with ``/``.
    is_file : bool
    size : int
        Bytes; 0 for a directory.
    modified : int
        When it was last written, in milliseconds since the epoch; 0 if that was not looked up.
    """

    name: str
    is_file: bool
    size: int
    modified: int = 0

    @property
    def base(self) -> str:
        """Last part of the name."""
        return posixpath.basename(self.name)


def join(location: str, *parts: str) -> str:
    """A location below another one."""
    return "/".join([location.rstrip("/"), *parts])


def parent(location: str) -> str:
    """The directory that holds a location."""
    return location.rstrip("/").rpartition("/")[0]


def base_name(location: str) -> str:
    """Last part of a location."""
    return location.rstrip("/").rpartition("/")[2]


def normal(location: str) -> str:
    """The canonical spelling of a location: local paths as ``file:/...``, no slash at the end."""
    scheme = _SCHEME.match(location)
    if scheme is None or scheme[1].lower() == "file":
        rest = location[scheme.end() :] if scheme else location
        return "file:" + posixpath.normpath("/" + rest.lstrip("/"))
    return location.rstrip("/")


def same(one: str | None, other: str | None) -> bool:
    """Whether two locations are the same directory, however they are spelled."""
    return one is not None and other is not None and are_same(normal(one), normal(other))


def is_below(location: str, root: str) -> bool:
    """Whether a location is the root or inside it; use :class:`Root` for many locations."""
    return Root(root).holds(location)


def refuse_untried(path: object, *locations: str | None, allowed: bool) -> None:
    """Refuse to write a table stored on a file system that twophase was not tested on. Accesses no file system.

    Parameters
    ----------
    path : ObjectPath
        The table.
    *locations : str or None
        Locations of its rows, present or future.
    allowed : bool
        Whether the user allows it nevertheless.

    Raises
    ------
    AtomicityNotSupportedError
    """
    if allowed:
        return
    for location in locations:
        if location and not normal(location).startswith("file:"):
            raise AtomicityNotSupportedError(
                f"{path} was not written: it is stored at {redact(location)}, and twophase was tried on local file "
                "systems only. Nothing was started.",
                path=str(path),
                hint=f"Call detach(), set {UNTRIED}=allow, and attach again, to have it written there all the same.",
            )


class Root:
    """A directory, for checking many locations whether they are inside it.

    Parameters
    ----------
    location : str
    """

    def __init__(self, location: str) -> None:
        self._text = normal(location)
        self._identities = Identities()

    def holds(self, location: str) -> bool:
        """Whether a location is this directory or inside it, however it is spelled."""
        text = normal(location)
        if text == self._text or text.startswith(self._text.rstrip("/") + "/"):
            return True
        # Looked up by directory, so that the files of one directory share the result.
        known = self._identities
        return known.key(self._text) in known.chain(text)

    def really_holds(self, location: str) -> bool:
        """Same as :meth:`holds`, but with symbolic links resolved: their destination must be inside, too."""
        uri = normal(location)
        if not uri.startswith("file:"):
            return self.holds(uri)
        return self.holds(join("file:" + os.path.realpath(parent(uri).removeprefix("file:")), base_name(uri)))

    def name_of(self, location: str) -> str | None:
        """The path of a location relative to this directory; None if it is not inside."""
        text, top = normal(location), self._text.rstrip("/") + "/"
        if text.startswith(top):
            return text.removeprefix(top)
        key, names = self._identities.key(self._text), [base_name(text)]
        while "/" in (text := parent(text)):
            if self._identities.key(text) == key:
                return "/".join(reversed(names))
            names.append(base_name(text))
        return None


class Files:
    """The file systems behind locations; one instance per catalog.

    Parameters
    ----------
    durable : bool
        Whether files written to this machine's file systems must survive a power cut.
    """

    def __init__(self, *, durable: bool = True) -> None:
        self._durable = durable
        self._synced = fsync.SyncedDirectories()
        self._filesystems: dict[str, fs.FileSystem] = {"file": fs.LocalFileSystem()}

    def resolve(self, location: str) -> tuple[fs.FileSystem, str]:
        """The file system of a location and the path inside it.

        Raises
        ------
        CatalogError
            Arrow does not support the scheme, or the file system cannot be opened.
        """
        uri = normal(location)
        scheme, _, rest = uri.partition(":")
        if scheme == "file":
            return self._filesystems["file"], rest
        rest = rest.lstrip("/")
        authority = rest.partition("/")[0]
        name = f"{_ARROW_SCHEMES.get(scheme, scheme)}://{authority}"
        if name not in self._filesystems:
            self._filesystems[name] = self._open(name, location)
        within = rest if name.startswith(("s3:", "gs:")) else "/" + rest.partition("/")[2]
        return self._filesystems[name], within

    def _open(self, name: str, location: str) -> fs.FileSystem:
        try:
            return fs.FileSystem.from_uri(name + "/")[0]
        except Exception as error:
            raise CatalogError(
                f"The filesystem of {location} cannot be opened: {error}",
                hint="Is its scheme known to pyarrow.fs, and are its credentials in the environment?",
            ) from error

    def is_local(self, location: str) -> bool:
        """Whether the location is on this machine's own file system, with hard links and atomic renames."""
        return normal(location).startswith("file:")

    # -- looking -------------------------------------------------------------------------------------------------

    def exists(self, location: str) -> bool:
        filesystem, path = self.resolve(location)
        return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)

    def list(self, location: str, *, recursive: bool = True, links: bool = True) -> list[Entry]:
        """List everything below a location, sorted by name; empty if it does not exist.

        Parameters
        ----------
        location : str
        recursive : bool
        links : bool
            Whether symbolic links are followed. A list for removal must not follow them, as a link may lead anywhere;
            a link is then listed as a file.
        """
        filesystem, path = self.resolve(location)
        if not links and self.is_local(location):
            return sorted(_without_links(path, recursive), key=lambda entry: entry.name)
        selector = fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        top = path.rstrip("/") + "/"
        entries = [
            Entry(
                info.path[len(top) :] if info.path.startswith(top) else posixpath.relpath(info.path, path),
                info.type == fs.FileType.File,
                info.size or 0,
                (info.mtime_ns or 0) // 1_000_000,
            )
            for info in filesystem.get_file_info(selector)
        ]
        return sorted(entries, key=lambda entry: entry.name)

    def each(self, location: str) -> Iterator[Entry]:
        """Each entry directly in a local directory, unsorted and without sizes; none if it does not exist."""
        _, path = self.resolve(location)
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as found:
            for entry in found:
                yield Entry(entry.name, not entry.is_dir(), 0)

    def is_empty(self, location: str) -> bool:
        """Whether the directory does not exist or has no entries."""
        filesystem, path = self.resolve(location)
        info = filesystem.get_file_info(path)
        return bool(info.type == fs.FileType.NotFound) or (
            not info.is_file and not self.list(location, recursive=False)
        )

    def size(self, location: str) -> int:
        """Total bytes of all files below a location."""
        return sum(entry.size for entry in self.list(location))

    def file_size(self, location: str) -> int | None:
        """Bytes of a file; None for anything else, or if it does not exist."""
        filesystem, path = self.resolve(location)
        info = filesystem.get_file_info(path)
        return int(info.size) if info.type == fs.FileType.File else None

    def change_mark(self, location: str) -> int | None:
        """A number that changes when a file is added to or removed from the directory itself; None if unknown."""
        _, path = self.resolve(location)
        if not self.is_local(location):
            return None
        try:
            return os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return -1

    def number(self, location: str) -> int | None:
        """The inode number of a local directory; None if it does not exist or the number is unknown.

        Another directory renamed to the same path has another number.
        """
        _, path = self.resolve(location)
        if not self.is_local(location):
            return None
        try:
            return os.stat(path).st_ino or None
        except FileNotFoundError:
            return None

    def placed(self, location: str) -> int | None:
        """When a directory last changed in any way, on the clock of change marks.

        A rename counts, too, although it leaves the times inside the directory as they are. None if unknown, -1 if the
        directory does not exist.
        """
        _, path = self.resolve(location)
        if not self.is_local(location):
            return None
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return -1
        return max(found.st_mtime_ns, found.st_ctime_ns)

    def count_directories(self, location: str) -> int:
        """Number of directories directly in a directory; cheap if a local file system counts them itself."""
        if self.is_local(location):
            with suppress(FileNotFoundError):
                links = os.stat(self.resolve(location)[1]).st_nlink
                if links >= 2:  # Its name and its ".", then the ".." of each directory in it.
                    return links - 2
        return sum(not entry.is_file for entry in self.list(location, recursive=False))

    def touch(self, location: str) -> None:
        """Change a directory's change mark, if it has one and we may."""
        _, path = self.resolve(location)
        if self.is_local(location):
            with suppress(OSError):
                os.utime(path)

    def last_change(self, location: str) -> int | None:
        """When a location or anything below it was last created, removed or written, on the clock of change marks.

        None if unknown, -1 if it does not exist.
        """
        mark = self.placed(location)
        if mark is None or mark < 0:
            return mark
        return max([mark, *(changed for _, _, changed in self._entries(location))])

    def fingerprint(self, location: str) -> str | None:
        """A hash that changes when anything below a location is created, removed or written; None if unknown."""
        if self.change_mark(location) is None:
            return None
        found = sorted(self._entries(location))
        return hashlib.sha256(json.dumps([self.change_mark(location), found]).encode()).hexdigest()

    def _entries(self, location: str) -> Iterator[tuple[str, int, int]]:
        """Name, bytes and change time of everything below a local location; 0 bytes for directories."""
        _, top = self.resolve(location)
        for directory, names, files in os.walk(top):
            for name in (*names, *files):
                with suppress(FileNotFoundError):
                    facts = os.lstat(os.path.join(directory, name))
                    size = 0 if name in names else facts.st_size
                    yield os.path.relpath(os.path.join(directory, name), top), size, facts.st_mtime_ns

    def owner(self, location: str) -> int | None:
        """User id of the owner of a file or directory (of a link itself, not its destination); None if unknown."""
        _, path = self.resolve(location)
        if not self.is_local(location):
            return None
        try:
            return os.lstat(path).st_uid
        except FileNotFoundError:
            return None

    # -- documents -----------------------------------------------------------------------------------------------

    def read_json(self, location: str) -> Any | None:
        """Read a JSON document; None if it does not exist or is not JSON."""
        filesystem, path = self.resolve(location)
        try:
            with filesystem.open_input_stream(path) as stream:
                return json.loads(stream.read())
        except (FileNotFoundError, ValueError):
            return None
        except OSError:
            if self.exists(location):
                raise
            return None

    def write_json(self, location: str, document: Any) -> None:
        """Write a document atomically."""
        filesystem, path = self.resolve(location)
        data = json.dumps(document, indent=1).encode()
        if not self.is_local(location):
            with filesystem.open_output_stream(path) as stream:
                stream.write(data)
            return
        part = f"{posixpath.dirname(path)}/.{uuid.uuid4().hex}.part"
        try:
            with filesystem.open_output_stream(part) as stream:
                stream.write(data)
            if self._durable:
                fsync.sync([part])  # Otherwise a power cut may keep the name and lose the content.
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise

    def remove_parts(self, location: str) -> None:
        """Remove what :meth:`write_json` has left directly in a directory of ours when its process was killed."""
        if not self.is_local(location):
            return
        for entry in list(self.each(location)):
            if entry.is_file and _PART.fullmatch(entry.name):
                self.remove_file(join(location, entry.name))

    # -- durability ----------------------------------------------------------------------------------------------

    def persist(self, *locations: str, below: str | None = None, documents: Collection[str] = frozenset()) -> None:
        """Make local files and directories, with everything in them, survive a power cut; no effect on remote ones.

        Parameters
        ----------
        locations : str
            Locations that do not exist are skipped.
        below : str, optional
            The nearest directory above them that already existed: directories in between are made durable, too. By
            default, the parent directory of each.
        documents : collection of str
            Names of files that only :meth:`write_json` writes: what is in them is durable already.

        Raises
        ------
        OSError
            The disk did not write them.
        """
        local = self._local_paths(locations)
        within = (name for path in local for name in fsync.tree(path) if posixpath.basename(name) not in documents)
        self._synced.sync((name for path in local for name in _leading_to(path, self._above(below))), within)

    def persist_names(self, *locations: str, below: str | None = None) -> None:
        """Make renames, creations and removals at these locations survive a power cut: sync their parent directories.

        Parameters
        ----------
        locations : str
        below : str, optional
            As in :meth:`persist`.
        """
        local = self._local_paths(locations)
        self._synced.sync((name for path in local for name in _leading_to(path, self._above(below))), ())

    def _local_paths(self, locations: Iterable[str]) -> tuple[str, ...]:
        if not self._durable:
            return ()
        return tuple(self.resolve(place)[1] for place in locations if self.is_local(place))

    def _above(self, location: str | None) -> str | None:
        return None if location is None or not self.is_local(location) else self.resolve(location)[1]

    # -- changing ------------------------------------------------------------------------------------------------

    def make_directory(self, location: str) -> None:
        filesystem, path = self.resolve(location)
        filesystem.create_dir(path, recursive=True)

    def make_ready(self, location: str, conf: Any) -> None:
        """On a local file system, create the directory that Spark will write to, with Hadoop's working directories.

        Without its native library Hadoop starts a process for each directory that it creates itself, to set its
        permissions: milliseconds each. It uses existing working directories as they are, and removes them at the end of
        the write. If they cannot be created, the write itself reports that.

        Parameters
        ----------
        location : str
        conf : pyspark.sql.conf.RuntimeConfig
            If it configures the permissions that Hadoop sets, creating the directories is left to Hadoop.
        """
        if self.is_local(location) and conf.get(_UMASK, "") == "":
            with suppress(OSError):
                self.make_directory(join(location, *_WORKING_DIRECTORIES))

    def move(self, source: str, target: str) -> None:
        """Rename a file or directory; atomic on a local file system, and never onto an existing one."""
        filesystem, path = self.resolve(source)
        _, new_path = self.resolve(target)
        if self.exists(target):
            raise CatalogError(f"{target} already exists; {source} was not moved there.", left_behind=[target])
        self.make_directory(parent(target))
        if self.is_local(source):
            os.rename(path, new_path)
        else:
            filesystem.move(path, new_path)

    def can_move(self, source: str, target: str) -> bool:
        """Whether a rename from one to the other is possible: one file system, one device."""
        if self.is_local(source) and self.is_local(target):
            return self._device(source) == self._device(target)
        return self.resolve(source)[0] is self.resolve(target)[0]

    def can_link(self, source: str, target: str) -> bool:
        """Whether a hard link from one to the other is possible (both local, one device)."""
        if not (self.is_local(source) and self.is_local(target)):
            return False
        return self._device(source) == self._device(target)

    def _device(self, location: str) -> int | None:
        _, path = self.resolve(location)
        while path and not os.path.exists(path):
            path = os.path.dirname(path)
        return os.stat(path or "/").st_dev

    def link(self, source: str, target: str) -> None:
        """Make a hard link to a file. Idempotent: no effect if the target already is that file."""
        _, path = self.resolve(source)
        _, new_path = self.resolve(target)
        try:
            os.link(path, new_path)
        except FileExistsError:
            if not os.path.samefile(path, new_path):
                raise

    def link_names(self, source: str, target: str, names: Iterable[tuple[str, str]]) -> None:
        """Make hard links to files of one directory in another one: many in the time of a few. Idempotent.

        Parameters
        ----------
        source, target : str
            The directories.
        names : iterable of (str, str)
            The name of each file, and its new name.
        """
        (_, path), (_, new_path) = self.resolve(source), self.resolve(target)
        for name, new_name in names:
            try:
                os.link(f"{path}/{name}", f"{new_path}/{new_name}")
            except FileExistsError:
                if not os.path.samefile(f"{path}/{name}", f"{new_path}/{new_name}"):
                    raise

    def copy(self, source: str, target: str) -> None:
        """Copy a file."""
        (filesystem, path), (new_filesystem, new_path) = self.resolve(source), self.resolve(target)
        fs.copy_files(path, new_path, source_filesystem=filesystem, destination_filesystem=new_filesystem)

    def remove_file(self, location: str) -> None:
        """Remove one file. Idempotent."""
        filesystem, path = self.resolve(location)
        try:
            filesystem.delete_file(path)
        except FileNotFoundError:
            pass
        except OSError:
            if self.exists(location):
                raise

    def remove_files(self, location: str, names: Iterable[str]) -> None:
        """Remove files of a directory by recorded names, but only those that really are in this directory.

        A name that leads out of it, by ``..`` or a symbolic link, is ignored. Idempotent.
        """
        wanted = set(names)
        if not self.is_local(location):
            there = {entry.name for entry in self.list(location) if entry.is_file}
            for name in sorted(wanted & there):
                self.remove_file(join(location, name))
            return
        _, top = self.resolve(location)
        if os.path.islink(top):
            return
        for root, _, files, directory in os.fwalk(top):
            below = posixpath.relpath(root, top)
            for name in files:
                if (name if below == "." else f"{below}/{name}") in wanted:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)

    def remove_tree(self, location: str) -> None:
        """Remove a directory with everything in it. Idempotent; the caller has checked the owner stamp."""
        filesystem, path = self.resolve(location)
        try:
            if self.is_local(location):
                _remove_local_tree(path)
            else:
                filesystem.delete_dir(path)
        except FileNotFoundError:
            pass
        except OSError:
            if self.exists(location):
                raise

    def remove_if_empty(self, location: str) -> bool:
        """Remove a directory if it is empty; return whether it is gone."""
        _, path = self.resolve(location)
        if not self.is_empty(location):
            return False
        if self.is_local(location):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            return True
        self.remove_tree(location)
        return True


def _remove_local_tree(path: str) -> None:
    """Remove a directory with ``shutil.rmtree``, which follows no link, not even one created while it runs."""
    while True:
        try:
            shutil.rmtree(path)
            return
        except FileNotFoundError:  # Another process removes it, too, or a task that is ending removes something in it.
            if not os.path.lexists(path):
                return


def _without_links(top: str, recursive: bool) -> Iterator[Entry]:
    """Everything below a local directory; a symbolic link is listed as a file."""
    try:
        found = os.scandir(top)
    except (FileNotFoundError, NotADirectoryError):
        return
    with found:
        for entry in found:
            is_directory = entry.is_dir(follow_symlinks=False)
            size = 0 if is_directory else entry.stat(follow_symlinks=False).st_size
            yield Entry(entry.name, not is_directory, size)
            if is_directory and recursive:
                for below in _without_links(entry.path, recursive):
                    yield replace(below, name=f"{entry.name}/{below.name}")


def _leading_to(path: str, above: str | None) -> list[str]:
    """The directories above a path, up to and including ``above``; only its parent if there is no such directory."""
    found = [posixpath.dirname(path)]
    if above is None or not path.startswith(above.rstrip("/") + "/"):
        return found
    while found[-1] != above.rstrip("/") and found[-1] != "/":
        found.append(posixpath.dirname(found[-1]))
    return found


def data_entries(entries: list[Entry]) -> Iterator[Entry]:
    """Files that hold (or belong to) rows, without our stamps, and without markers and staging of Spark and Hive."""
    for entry in entries:
        if entry.is_file and not any(is_hidden(part) for part in entry.name.split("/")):
            yield entry


def data_files(entries: list[Entry]) -> list[Entry]:
    """Files that hold rows, without their checksums: the files that a metastore counts."""
    return [entry for entry in data_entries(entries) if not entry.name.endswith(".crc")]


def is_hidden(part: str) -> bool:
    """Whether a name is bookkeeping of twophase, Spark or Hive. A checksum ``.x.crc`` belongs to its data file."""
    if part.endswith(".crc"):
        return part.startswith(("._", ".."))
    return part.startswith(".") or (part.startswith("_") and "=" not in part)
