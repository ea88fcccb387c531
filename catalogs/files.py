"""Files and directories through :mod:`pyarrow.fs`, addressed by Hadoop path strings.

Only what the recipes need: list, stamp, move, link, remove. A *location* is a Hadoop path string
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
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyarrow import fs

from twophase.catalogs import fsync
from twophase.catalogs.location_identity import Identities, are_same
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.redaction import redact

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*):")
#: Hadoop's schemes by the name that Arrow knows.
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfss", "gs": "gs", "hdfs": "hdfs", "viewfs": "viewfs"}

#: The option that lets tables on other file systems be written.
UNTRIED = "spark.twophase.storage.untested"

_UMASK = "spark.hadoop.fs.permissions.umask-mode"
#: The option of a write by Spark after which Hadoop leaves no ``_SUCCESS``.
UNMARKED = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
#: Where Hadoop's ``FileOutputCommitter`` puts the tries of a job's tasks.
_WORKING_DIRECTORIES = ("_temporary", "0", "_temporary")


@dataclass(frozen=True)
class Entry:
    """A file or directory below a location.

    Attributes
    ----------
    name : str
        Path relative to the location that was listed, with ``/``.
    is_file : bool
    size : int
        Bytes; 0 for a directory.
    """

    name: str
    is_file: bool
    size: int

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
    """One spelling for a location: local paths as ``file:/...``, no slash at the end."""
    scheme = _SCHEME.match(location)
    if scheme is None or scheme[1].lower() == "file":
        rest = location[scheme.end() :] if scheme else location
        return "file:" + posixpath.normpath("/" + rest.lstrip("/"))
    return location.rstrip("/")


def same(one: str | None, other: str | None) -> bool:
    """Whether two locations are the same directory, however they are spelled."""
    return one is not None and other is not None and are_same(normal(one), normal(other))


def is_below(location: str, root: str) -> bool:
    """Whether a location is the root or inside it; :class:`Root` for many locations."""
    return Root(root).holds(location)


def refuse_untried(path: object, *locations: str | None, allowed: bool) -> None:
    """Refuse to write a table that is stored where no file system was tried; asks no file system.

    Parameters
    ----------
    path : ObjectPath
        The table.
    *locations : str or None
        Where rows of it are or will be.
    allowed : bool
        Whether the user wants it all the same.

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
    """A directory, to ask of many locations whether they are in it.

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
        # Asked of the directory: the files of one share the answer.
        known = self._identities
        return known.key(self._text) in known.chain(text)

    def really_holds(self, location: str) -> bool:
        """The same, whatever symbolic links there are on the way: where they lead to must be inside, too."""
        uri = normal(location)
        if not uri.startswith("file:"):
            return self.holds(uri)
        return self.holds(join("file:" + os.path.realpath(parent(uri).removeprefix("file:")), base_name(uri)))

    def name_of(self, location: str) -> str | None:
        """The path of a location relative to this directory; None where it is not inside."""
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
    """The filesystems behind locations; one instance a catalog.

    Parameters
    ----------
    durable : bool
        Whether what is written to this machine's file systems shall survive a power cut.
    """

    def __init__(self, *, durable: bool = True) -> None:
        self._durable = durable
        self._filesystems: dict[str, fs.FileSystem] = {"file": fs.LocalFileSystem()}

    def resolve(self, location: str) -> tuple[fs.FileSystem, str]:
        """The filesystem of a location and the path inside it.

        Raises
        ------
        CatalogError
            A scheme that Arrow does not know, or a filesystem that cannot be opened.
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
        """Whether the location is on this machine's own filesystem: hard links and atomic renames work."""
        return normal(location).startswith("file:")

    # -- looking -------------------------------------------------------------------------------------------------

    def exists(self, location: str) -> bool:
        filesystem, path = self.resolve(location)
        return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)

    def list(self, location: str, *, recursive: bool = True, links: bool = True) -> list[Entry]:
        """Everything below a location, sorted by name; empty where it does not exist.

        Parameters
        ----------
        location : str
        recursive : bool
        links : bool
            Whether symbolic links are followed. What is to be removed is listed without: a link may lead anywhere, and
            stands in the list as a file.
        """
        filesystem, path = self.resolve(location)
        if not links and self.is_local(location):
            return sorted(_without_links(path, recursive), key=lambda entry: entry.name)
        selector = fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        entries = [
            Entry(posixpath.relpath(info.path, path), info.type == fs.FileType.File, info.size or 0)
            for info in filesystem.get_file_info(selector)
        ]
        return sorted(entries, key=lambda entry: entry.name)

    def is_empty(self, location: str) -> bool:
        """Whether there is nothing at all: no such directory, or one without entries."""
        filesystem, path = self.resolve(location)
        info = filesystem.get_file_info(path)
        return bool(info.type == fs.FileType.NotFound) or (
            not info.is_file and not self.list(location, recursive=False)
        )

    def size(self, location: str) -> int:
        """Bytes of all files below."""
        return sum(entry.size for entry in self.list(location))

    def file_size(self, location: str) -> int | None:
        """Bytes of a file; None for anything else, and for what is not there."""
        filesystem, path = self.resolve(location)
        info = filesystem.get_file_info(path)
        return int(info.size) if info.type == fs.FileType.File else None

    def change_mark(self, location: str) -> int | None:
        """A number that changes when a file is added to or removed from this very directory; None where unknown."""
        _, path = self.resolve(location)
        if not self.is_local(location):
            return None
        try:
            return os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return -1

    def count_directories(self, location: str) -> int:
        """How many directories lie in a directory; cheap where a local file system counts them itself."""
        if self.is_local(location):
            with suppress(FileNotFoundError):
                links = os.stat(self.resolve(location)[1]).st_nlink
                if links >= 2:  # Itself, and the two dots of each.
                    return links - 2
        return sum(not entry.is_file for entry in self.list(location, recursive=False))

    def touch(self, location: str) -> None:
        """Give a directory another change mark, where it has one and may be given one."""
        _, path = self.resolve(location)
        if self.is_local(location):
            with suppress(OSError):
                os.utime(path)

    def last_change(self, location: str) -> int | None:
        """When something below a location last came, went or was written, on the clock of change marks.

        None where that is unknown, -1 where there is nothing.
        """
        mark = self.change_mark(location)
        if mark is None or mark < 0:
            return mark
        return max([mark, *(changed for _, _, changed in self._entries(location))])

    def fingerprint(self, location: str) -> str | None:
        """What differs once something below a location came, went or was written; None where that is unknown."""
        if self.change_mark(location) is None:
            return None
        found = sorted(self._entries(location))
        return hashlib.sha256(json.dumps([self.change_mark(location), found]).encode()).hexdigest()

    def _entries(self, location: str) -> Iterator[tuple[str, int, int]]:
        """Name, bytes and change time of all that lies below a local location; of directories no bytes."""
        _, top = self.resolve(location)
        for directory, names, files in os.walk(top):
            for name in (*names, *files):
                with suppress(FileNotFoundError):
                    facts = os.lstat(os.path.join(directory, name))
                    size = 0 if name in names else facts.st_size
                    yield os.path.relpath(os.path.join(directory, name), top), size, facts.st_mtime_ns

    def owner(self, location: str) -> int | None:
        """Number of the user whom a file or directory belongs to, not what a link leads to; None where unknown."""
        _, path = self.resolve(location)
        if not self.is_local(location):
            return None
        try:
            return os.lstat(path).st_uid
        except FileNotFoundError:
            return None

    # -- documents -----------------------------------------------------------------------------------------------

    def read_json(self, location: str) -> Any | None:
        """A JSON document; None where it does not exist or is none."""
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
        """Write a document so that it is there wholly or not at all."""
        filesystem, path = self.resolve(location)
        data = json.dumps(document, indent=1).encode()
        if not self.is_local(location):
            with filesystem.open_output_stream(path) as stream:
                stream.write(data)
            return
        part = f"{posixpath.dirname(path)}/.{uuid.uuid4().hex}.part"
        with filesystem.open_output_stream(part) as stream:
            stream.write(data)
        if self._durable:
            fsync.sync([part])  # Else a power cut may keep the name and lose the content.
        os.replace(part, path)

    # -- durability ----------------------------------------------------------------------------------------------

    def persist(self, *locations: str, below: str | None = None) -> None:
        """Make files and directories survive a power cut, with all that is in them; on other machines nothing.

        Parameters
        ----------
        locations : str
            What does not exist is passed over.
        below : str, optional
            The nearest directory above them that was there before: those between are made durable, too. Without it,
            the one that holds each of them.

        Raises
        ------
        OSError
            The disk did not take them.
        """
        local = self._local_paths(locations)
        fsync.sync(name for path in local for name in (*_leading_to(path, self._above(below)), *fsync.tree(path)))

    def persist_names(self, *locations: str, below: str | None = None) -> None:
        """Make what was renamed, made or removed at these locations survive a power cut: their directories' entries.

        Parameters
        ----------
        locations : str
        below : str, optional
            As in :meth:`persist`.
        """
        local = self._local_paths(locations)
        fsync.sync(name for path in local for name in _leading_to(path, self._above(below)))

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
        """Make, on a local file system, the directory that Spark is to write to, and those in it that it works in.

        Without its native library Hadoop starts a process for each directory that it makes itself, to set its
        permissions: milliseconds each. It removes its working directories with the end of the write, and takes them as
        they are where they exist. Where they cannot be made, the write says so.

        Parameters
        ----------
        location : str
        conf : pyspark.sql.conf.RuntimeConfig
            Where it says which permissions Hadoop is to set, Hadoop is left to it.
        """
        if self.is_local(location) and conf.get(_UMASK, "") == "":
            with suppress(OSError):
                self.make_directory(join(location, *_WORKING_DIRECTORIES))

    def move(self, source: str, target: str) -> None:
        """Rename a file or directory; on a local filesystem in one step, and never onto something that is there."""
        filesystem, path = self.resolve(source)
        _, new_path = self.resolve(target)
        if self.exists(target):
            raise CatalogError(f"{target} exists already; {source} was not moved there.", left_behind=[target])
        self.make_directory(parent(target))
        if self.is_local(source):
            os.rename(path, new_path)
        else:
            filesystem.move(path, new_path)

    def can_move(self, source: str, target: str) -> bool:
        """Whether a rename goes from one to the other: one filesystem, one device."""
        if self.is_local(source) and self.is_local(target):
            return self._device(source) == self._device(target)
        return self.resolve(source)[0] is self.resolve(target)[0]

    def can_link(self, source: str, target: str) -> bool:
        """Whether a hard link from one to the other can be made (both local, one device)."""
        if not (self.is_local(source) and self.is_local(target)):
            return False
        return self._device(source) == self._device(target)

    def _device(self, location: str) -> int | None:
        _, path = self.resolve(location)
        while path and not os.path.exists(path):
            path = os.path.dirname(path)
        return os.stat(path or "/").st_dev

    def link(self, source: str, target: str) -> None:
        """One more name for a file; nothing happens where the target is that file already."""
        _, path = self.resolve(source)
        _, new_path = self.resolve(target)
        try:
            os.link(path, new_path)
        except FileExistsError:
            if not os.path.samefile(path, new_path):
                raise

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
        """Remove files of a directory by names that somebody wrote down: only those that are in this very directory.

        A name that leads out of it, by ``..`` or by a symbolic link, names nothing. Idempotent.
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
        """Remove a directory with all that is in it. Idempotent; the caller has checked the owner stamp."""
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
        """Remove a directory that holds nothing; True when it is gone."""
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
    """Remove a directory by a library that follows no link, not even one that comes while it works."""
    while True:
        try:
            shutil.rmtree(path)
            return
        except FileNotFoundError:  # Somebody else removes it, too, or a task that ends something in it.
            if not os.path.lexists(path):
                return


def _without_links(top: str, recursive: bool) -> Iterator[Entry]:
    """Everything below a local directory, a symbolic link as the file that it is."""
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
    """The directories whose entries lead to a path, up to one above it; that which holds it where there is none."""
    found = [posixpath.dirname(path)]
    if above is None or not path.startswith(above.rstrip("/") + "/"):
        return found
    while found[-1] != above.rstrip("/") and found[-1] != "/":
        found.append(posixpath.dirname(found[-1]))
    return found


def data_entries(entries: list[Entry]) -> Iterator[Entry]:
    """Files that hold (or belong to) rows: neither our stamps, nor marks and staging of Spark and Hive."""
    for entry in entries:
        if entry.is_file and not any(is_hidden(part) for part in entry.name.split("/")):
            yield entry


def data_files(entries: list[Entry]) -> list[Entry]:
    """Files that hold rows, without their checksums: what a metastore counts."""
    return [entry for entry in data_entries(entries) if not entry.name.endswith(".crc")]


def is_hidden(part: str) -> bool:
    """Whether a name is bookkeeping of ours, Spark's or Hive's. A checksum ``.x.crc`` goes with its data file."""
    if part.endswith(".crc"):
        return part.startswith(("._", ".."))
    return part.startswith(".") or (part.startswith("_") and "=" not in part)
