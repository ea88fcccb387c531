"""Kinds of file systems: what each guarantees, so that a recipe is chosen by that and not by a scheme's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StorageKind:
    """The guarantees of a file system.

    Attributes
    ----------
    name : str
    atomic_rename_file : bool
        A rename of a file is one step: at no moment, nor after a crash, is it at both paths or at none.
    atomic_rename_directory : bool
        The same for a directory with everything in it.
    hard_links : bool
        A file can have two names.
    cheap_listing : bool
        All files below a directory are listed without looking into each directory in it.
    change_marks : bool
        A directory tells when a file was added to it or removed.
    """

    name: str
    atomic_rename_file: bool = False
    atomic_rename_directory: bool = False
    hard_links: bool = False
    cheap_listing: bool = False
    change_marks: bool = False

    def __str__(self) -> str:
        return self.name


LOCAL_DISK = StorageKind(
    "local", atomic_rename_file=True, atomic_rename_directory=True, hard_links=True, change_marks=True
)
HDFS = StorageKind("hdfs", atomic_rename_file=True, atomic_rename_directory=True)
OBJECT_STORE = StorageKind("object_store", cheap_listing=True)

#: The kinds that a user may name for a scheme.
KINDS: Mapping[str, StorageKind] = {kind.name: kind for kind in (HDFS, OBJECT_STORE)}
#: Any other scheme counts as an object store, the kind with the fewest guarantees: an Azure account, for example, has
#: atomic renames only with a hierarchical namespace, which no path shows.
_BY_SCHEME = {"file": LOCAL_DISK, **dict.fromkeys(("hdfs", "viewfs", "webhdfs", "swebhdfs"), HDFS)}


def kind_of(scheme: str, named: Mapping[str, str]) -> StorageKind:
    """The kind of a scheme's file systems.

    Parameters
    ----------
    scheme : str
    named : mapping of str to str
        The names of the kinds of some schemes, as given by the user; they take precedence, except for local paths.
    """
    if scheme in named and scheme != "file":
        return KINDS[named[scheme]]
    return _BY_SCHEME.get(scheme, OBJECT_STORE)
