"""Spark's own writers of files, with a committer that renames none (``java/TaskFiles.java``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from twophase.spark.jvm import values
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.java_sources import java_object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SessionFileWriter:
    """The environment's ``file_writer``.

    Hadoop's committer renames each file twice: when its task has ended, and when all have. On an object store each
    rename is a copy and some requests more. Here, each attempt of a task writes files with names of its own, and Spark
    reports which attempts count.
    """

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def write(
        self,
        df: DataFrame,
        provider: str,
        directory: str,
        *,
        partition_columns: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> list[tuple[str, int]] | None:
        """Write rows as files of one of Spark's own formats.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
        provider : str
            The format.
        directory : str
            Gets files of attempts that failed, or came too late, too: at any time, even after this call.
        partition_columns : sequence of str
        options : mapping of str to str, optional
            Of the format.

        Returns
        -------
        list of (str, int) or None
            The name below the directory, and the bytes, of each file that holds rows of the result; None if the session
            is configured with a committer of its own, which is to write them: nothing was written.

        Raises
        ------
        PySparkException
            The user's own error.
        """
        java = self._jvm.once(("TaskFiles",), lambda: java_object(self._jvm, "TaskFiles"))
        columns = values.from_json(self._jvm, "java.util.ArrayList", list(partition_columns))
        settings = values.scala_map(self._jvm, options or {})
        rows = df._jdf
        found = java.write(rows.sparkSession(), rows, provider, directory, columns, settings)
        return None if found is None else [(name, size) for name, size in json.loads(found)]
