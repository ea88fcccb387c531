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
    atomic_copy_file : bool
        A copy of a file is one step for readers, and so is a rename that copies it and removes the old one: they find
        nothing at the new path, or the whole file.
    hard_links : bool
        A file can have two names.
    cheap_listing : bool
        All files below a directory are listed without looking into each directory in it.
    change_marks : bool
        A directory shows when a file was added to it or removed.
    """

    name: str
    atomic_rename_file: bool = False
    atomic_rename_directory: bool = False
    atomic_copy_file: bool = False
    hard_links: bool = False
    cheap_listing: bool = False
    change_marks: bool = False

    @property
    def shows_whole_files(self) -> bool:
        """Whether readers find a renamed file at its new path wholly or not at all."""
        return self.atomic_rename_file or self.atomic_copy_file

    def __str__(self) -> str:
        return self.name


LOCAL_DISK = StorageKind(
    "local", atomic_rename_file=True, atomic_rename_directory=True, hard_links=True, change_marks=True
)
HDFS = StorageKind("hdfs", atomic_rename_file=True, atomic_rename_directory=True)
OBJECT_STORE = StorageKind("object_store", atomic_copy_file=True, cheap_listing=True)
UNKNOWN = StorageKind("unknown", cheap_listing=True)

#: The kinds that a user may name for a scheme.
KINDS: Mapping[str, StorageKind] = {kind.name: kind for kind in (HDFS, OBJECT_STORE)}
#: Of any other scheme nothing is assumed: an Azure account, for example, has atomic renames only with a hierarchical
#: namespace, which no path shows, and copies a file in the background.
_BY_SCHEME = {
    "file": LOCAL_DISK,
    **dict.fromkeys(("hdfs", "viewfs", "webhdfs", "swebhdfs"), HDFS),
    **dict.fromkeys(("s3", "s3a", "s3n", "gs"), OBJECT_STORE),
}


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
    return _BY_SCHEME.get(scheme, UNKNOWN)
