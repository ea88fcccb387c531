"""Files and directories by location: each operation goes to the file system of its scheme."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pyarrow import fs

from twophase.catalogs.files.arrow import ArrowStore, arrow_path, open_arrow
from twophase.catalogs.files.entries import Entry
from twophase.catalogs.files.hadoop import HadoopFiles, HadoopStore
from twophase.catalogs.files.interface import FileStore
from twophase.catalogs.files.kinds import StorageKind, kind_of
from twophase.catalogs.files.local import LocalStore
from twophase.catalogs.files.paths import LOCAL, join, normal, parent
from twophase.errors import CatalogError

_UMASK = "spark.hadoop.fs.permissions.umask-mode"
#: Options of a write by Spark with which Hadoop writes no ``_SUCCESS`` file.
UNMARKED = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
#: Directories in which Hadoop's ``FileOutputCommitter`` stores the attempts of a job's tasks.
_WORKING_DIRECTORIES = ("_temporary", "0", "_temporary")


class Files:
    """The file systems behind locations; one instance per catalog.

    Parameters
    ----------
    durable : bool
        Whether files written to this machine's file systems must survive a power cut.
    hadoop : HadoopFiles, optional
        The session's Hadoop client, which serves every location that is not local; without it, Arrow does.
    kinds : mapping of str to str, optional
        Names of the kinds of some schemes, as given by the user.
    arrow : callable, optional
        Opens Arrow's file system of a location; it may return None for one that needs no settings.
    """

    def __init__(
        self,
        *,
        durable: bool = True,
        hadoop: HadoopFiles | None = None,
        kinds: Mapping[str, str] | None = None,
        arrow: Callable[[str], fs.FileSystem | None] | None = None,
    ) -> None:
        self._local = LocalStore(durable=durable)
        self._hadoop = hadoop
        self._kinds = kinds or {}
        self._arrow = arrow
        self._stores: dict[tuple[str, str], FileStore] = {}

    def find(self, location: str) -> tuple[FileStore, str]:
        """The file system of a location and the path inside it.

        Raises
        ------
        CatalogError
            The file system cannot be opened.
        """
        uri = normal(location)
        scheme, _, rest = uri.partition(":")
        if uri.startswith(LOCAL):
            return self._local, rest
        authority, _, path = rest.removeprefix("//").partition("/") if rest.startswith("//") else ("", "", rest[1:])
        opened = None if self._arrow is None else self._arrow(location)
        if opened is not None:
            return ArrowStore(opened, self.kind(location)), arrow_path(scheme, authority, "/" + path)
        key = (scheme, authority)
        if key not in self._stores:
            self._stores[key] = self._open(*key)
        store = self._stores[key]
        return store, uri if isinstance(store, HadoopStore) else arrow_path(scheme, authority, "/" + path)

    def _open(self, scheme: str, authority: str) -> FileStore:
        kind = kind_of(scheme, self._kinds)
        if self._hadoop is not None:
            return HadoopStore(self._hadoop, kind)
        return open_arrow(scheme, authority, kind)

    def kind(self, location: str) -> StorageKind:
        """The guarantees of a location's file system; it is not asked."""
        return kind_of(normal(location).partition(":")[0], self._kinds)

    def is_local(self, location: str) -> bool:
        """Whether the location is on this machine's own file system, with hard links and atomic renames."""
        return normal(location).startswith(LOCAL)

    # -- looking -------------------------------------------------------------------------------------------------

    def exists(self, location: str) -> bool:
        store, path = self.find(location)
        return store.status(path) is not None

    def existing(self, locations: Iterable[str]) -> Iterator[str]:
        """Those of some files and directories of one file system that exist, in any order.

        Where a listing is cheaper than a look at each, their directories are listed.
        """
        by_path = {}
        for location in locations:
            store, path = self.find(location)
            by_path[path] = location
        return (by_path[path] for path in store.existing(by_path)) if by_path else iter(())

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
        store, path = self.find(location)
        return sorted(store.list(path, recursive=recursive, links=links), key=lambda entry: entry.name)

    def each(self, location: str) -> Iterator[Entry]:
        """Each entry directly in a directory, unsorted and perhaps without sizes; none if it does not exist."""
        store, path = self.find(location)
        return store.each(path)

    def is_empty(self, location: str) -> bool:
        """Whether the directory does not exist or has no entries."""
        store, path = self.find(location)
        found = store.status(path)
        return found is None or (not found.is_file and not store.list(path, recursive=False, links=True))

    def size(self, location: str) -> int:
        """Total bytes of all files below a location."""
        return sum(entry.size for entry in self.list(location))

    def change_mark(self, location: str) -> int | None:
        """A number that changes when a file is added to or removed from the directory itself; None if unknown."""
        store, path = self.find(location)
        return store.change_mark(path)

    def number(self, location: str) -> int | None:
        """The inode number of a directory; None if it does not exist or the number is unknown.

        Another directory renamed to the same path has another number.
        """
        store, path = self.find(location)
        return store.number(path)

    def placed(self, location: str) -> int | None:
        """When a directory last changed in any way, on the clock of change marks.

        A rename counts, too, although it leaves the times inside the directory as they are. None if unknown, -1 if the
        directory does not exist.
        """
        store, path = self.find(location)
        return store.placed(path)

    def count_directories(self, location: str) -> int:
        """Number of directories directly in a directory."""
        store, path = self.find(location)
        return store.count_directories(path)

    def touch(self, location: str) -> None:
        """Change a directory's change mark, if it has one and we may."""
        store, path = self.find(location)
        store.touch(path)

    def last_change(self, location: str) -> int | None:
        """When a location or anything below it was last created, removed or written, on the clock of change marks.

        None if unknown, -1 if it does not exist.
        """
        store, path = self.find(location)
        mark = store.placed(path)
        if mark is None or mark < 0:
            return mark
        return max([mark, *(changed for _, _, changed in store.changes(path))])

    def fingerprint(self, location: str) -> str | None:
        """A hash that changes when anything below a location is created, removed or written; None if unknown."""
        store, path = self.find(location)
        if store.change_mark(path) is None:
            return None
        found = sorted(store.changes(path))
        return hashlib.sha256(json.dumps([store.change_mark(path), found]).encode()).hexdigest()

    def owner(self, location: str) -> int | None:
        """User id of the owner of a file or directory (of a link itself, not its destination); None if unknown."""
        store, path = self.find(location)
        return store.owner(path)

    # -- documents -----------------------------------------------------------------------------------------------

    def read_json(self, location: str) -> Any | None:
        """Read a JSON document; None if it does not exist or is not JSON."""
        store, path = self.find(location)
        data = store.read(path)
        with suppress(ValueError):
            return None if data is None else json.loads(data)
        return None

    def read_document(self, location: str, key: str) -> dict[str, Any] | None:
        """Read a JSON object that has a key; None if there is no such."""
        found = self.read_json(location)
        return found if isinstance(found, dict) and key in found else None

    def write_json(self, location: str, document: Any, *, waits: bool = True) -> None:
        """Write a document atomically.

        Parameters
        ----------
        location : str
        document : Any
        waits : bool
            Whether to wait until it survives a power cut; otherwise it does so once :meth:`persist` has synced it.
        """
        store, path = self.find(location)
        store.write(path, json.dumps(document, indent=1).encode(), waits=waits)

    def write_problem(self, location: str) -> str | None:
        """Why a directory cannot be written, found out by writing a file that is removed again; None if it can.

        None, too, for one that does not exist yet, and for one that is not on a local file system.
        """
        try:
            if not self.is_local(location) or not self.exists(location):
                return None
            probe = join(location, f".twophase-doctor-{secrets.token_hex(8)}")
            self.write_json(probe, {})
            self.remove_file(probe)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            return f"{location} cannot be written: {why}. Make room on the disk, or make it writable."
        return None

    def remove_parts(self, location: str) -> None:
        """Remove what :meth:`write_json` has left directly in a directory of ours when its process was killed."""
        store, path = self.find(location)
        store.remove_parts(path)

    # -- durability ----------------------------------------------------------------------------------------------

    def persist(self, *locations: str, below: str | None = None, documents: Collection[str] = frozenset()) -> None:
        """Make files and directories, with everything in them, survive a power cut.

        Parameters
        ----------
        locations : str
            Locations that do not exist are skipped.
        below : str, optional
            The nearest directory above them that already existed: directories in between are made durable, too; and all
            above a location that is not below it. By default, the parent directory of each.
        documents : collection of str
            Names of files for which :meth:`write_json` has waited: what is in them is durable already.

        Raises
        ------
        OSError
            The disk did not write them.
        """
        for store, paths in self._by_store(locations):
            store.persist(paths, self._above(store, below), documents)

    def persist_names(self, *locations: str, below: str | None = None) -> None:
        """Make renames, creations and removals at these locations survive a power cut.

        Parameters
        ----------
        locations : str
        below : str, optional
            As in :meth:`persist`; of a location that is not below it, the parent directory.
        """
        for store, paths in self._by_store(locations):
            store.persist_names(paths, self._above(store, below))

    def _by_store(self, locations: Iterable[str]) -> Iterable[tuple[FileStore, Iterable[str]]]:
        found: dict[FileStore, list[str]] = {}
        for store, path in map(self.find, locations):
            found.setdefault(store, []).append(path)
        return found.items()

    def _above(self, store: FileStore, location: str | None) -> str | None:
        if location is None:
            return None
        other, path = self.find(location)
        return path if other is store else None

    # -- changing ------------------------------------------------------------------------------------------------

    def make_directory(self, location: str) -> None:
        store, path = self.find(location)
        store.make_directory(path)

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
        (store, path), (_, new_path) = self.find(source), self.find(target)
        if self.exists(target):
            raise _is_taken(source, target)
        self.make_directory(parent(target))
        store.rename(path, new_path)

    def place(self, source: str, target: str) -> None:
        """Rename a file, or complete a rename by copying that was stopped; no effect if the file does not exist.

        A directory is renamed as well, where that is one step.

        Raises
        ------
        CatalogError
            Another file is at the target, and stays there.
        """
        (store, path), (_, new_path) = self.find(source), self.find(target)
        try:
            store.place(path, new_path)
        except FileExistsError as error:
            raise _is_taken(source, target) from error

    def are_copies(self, source: str, target: str) -> bool:
        """Whether a rename by copying was stopped before it removed the old file."""
        (store, path), (_, new_path) = self.find(source), self.find(target)
        return store.are_copies(path, new_path)

    def can_move(self, source: str, target: str) -> bool:
        """Whether a rename from one to the other is possible: one file system, one device."""
        return self._both(source, target, lambda store: store.reaches)

    def can_link(self, source: str, target: str) -> bool:
        """Whether a hard link from one to the other is possible."""
        return self._both(source, target, lambda store: store.links)

    def _both(self, source: str, target: str, check: Callable[[FileStore], Callable[[str, str], bool]]) -> bool:
        (store, path), (other, new_path) = self.find(source), self.find(target)
        return store is other and check(store)(path, new_path)

    def link(self, source: str, target: str) -> None:
        """Make a hard link to a file. Idempotent: no effect if the target already is that file."""
        (store, path), (_, new_path) = self.find(source), self.find(target)
        store.link(path, new_path)

    def linking(self, source: str, target: str) -> Callable[[str, str], None]:
        """As :meth:`link`, for many files of one directory: by the name of each, and its name in the other one."""
        (store, path), (_, new_path) = self.find(source), self.find(target)
        return lambda name, new_name: store.link(f"{path}/{name}", f"{new_path}/{new_name}")

    def copy(self, source: str, target: str) -> None:
        """Copy a file."""
        (store, path), (new_store, new_path) = self.find(source), self.find(target)
        if store is new_store:
            store.copy(path, new_path)
            return
        with store.open(path) as content:
            new_store.put(new_path, content)

    def remove_file(self, location: str) -> None:
        """Remove one file. Idempotent."""
        store, path = self.find(location)
        with self._unless_gone(location):
            store.remove_file(path)

    def remove_files(self, location: str, names: Iterable[str]) -> None:
        """Remove files of a directory by recorded names, but only those that really are in this directory.

        A name that leads out of it, by ``..`` or a symbolic link, is ignored. Idempotent.
        """
        store, path = self.find(location)
        store.remove_files(path, set(names))

    def remove_tree(self, location: str, last: Sequence[str] = ()) -> None:
        """Remove a directory with everything in it. Idempotent; the caller has checked the owner stamp.

        Parameters
        ----------
        location : str
        last : sequence of str
            Names of files directly in it that are removed after all others, in this order: without its owner stamp
            no later attempt would complete a removal that was interrupted.
        """
        store, path = self.find(location)
        with self._unless_gone(location):
            if last:
                names = {entry.name for entry in store.list(path, recursive=True, links=False) if entry.is_file}
                for earlier in filter(None, (names.difference(last), *(names & {name} for name in last[:-1]))):
                    store.remove_listed(path, earlier)
            store.remove_tree(path)

    @contextmanager
    def _unless_gone(self, location: str) -> Iterator[None]:
        """Ignore the failure to remove what does not exist."""
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError:
            if self.exists(location):
                raise

    def remove_if_empty(self, location: str) -> bool:
        """Remove a directory if it is empty; return whether it is gone."""
        if not self.is_empty(location):
            return False
        store, path = self.find(location)
        return store.remove_if_empty(path)


def _is_taken(source: str, target: str) -> CatalogError:
    return CatalogError(f"{target} already exists; {source} was not moved there.", left_behind=[target])
