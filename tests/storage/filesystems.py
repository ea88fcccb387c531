"""The tests' own Hadoop file systems, compiled in a session's JVM and put on its class path."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from tests.servers import Server

_SOURCES = Path(__file__).parent / "java"
_PACKAGE = "twophasetests"
#: A bucket whose client sends no request twice.
IMPATIENT = "impatient"


def conf_of(server: Server) -> dict[str, str]:
    """The settings of a session with both file systems: the buckets of a server, and what is like HDFS."""
    return {
        "spark.hadoop.fs.s3a.impl": f"{_PACKAGE}.ObjectStore",
        "spark.hadoop.fs.s3.impl": f"{_PACKAGE}.ObjectStore",
        "spark.hadoop.fs.objects.endpoint": server.url,
        f"spark.hadoop.fs.objects.bucket.{IMPATIENT}.retries": "0",
        "spark.hadoop.fs.hdfslike.impl": f"{_PACKAGE}.HdfsLike",
    }


def install(classes: Path) -> None:
    """Compile the file systems, and let this process's JVM find them; a session may be started afterwards.

    Parameters
    ----------
    classes : Path
        Receives the class files.
    """
    jvm = _compile(classes)
    jvm.java.lang.Thread.currentThread().getContextClassLoader().addURL(jvm.java.io.File(str(classes)).toURI().toURL())


def make_jar(directory: Path) -> Path:
    """Compile the file systems for other processes, which name the file in ``spark.jars``."""
    _compile(directory / "classes")
    return Path(shutil.make_archive(str(directory / "filesystems"), "zip", directory / "classes"))


def _compile(classes: Path) -> Any:
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    for source in sorted(_SOURCES.glob("*.java")):
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setSourceVersion(8)
        compiler.setTargetVersion(8)
        compiler.cook(source.read_text(encoding="utf-8"))
        for name, code in dict(compiler.getBytecodes()).items():
            file = classes / (name.replace(".", "/") + ".class")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes(code))
    return jvm
