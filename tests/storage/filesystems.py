"""The tests' own Hadoop file systems, compiled in a session's JVM and put on its class path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark import SparkContext

_SOURCES = Path(__file__).parent / "java"
_PACKAGE = "twophasetests"


def conf_of(root: Path) -> dict[str, str]:
    """The settings of a session with both file systems; the objects are stored below a directory."""
    return {
        "spark.hadoop.fs.objs.impl": f"{_PACKAGE}.ObjectStore",
        "spark.hadoop.fs.objs.root": str(root),
        "spark.hadoop.fs.hdfslike.impl": f"{_PACKAGE}.HdfsLike",
    }


def install(classes: Path) -> None:
    """Compile the file systems, and let this process's JVM find them; a session may be started afterwards.

    Parameters
    ----------
    classes : Path
        Receives the class files.
    """
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
    jvm.java.lang.Thread.currentThread().getContextClassLoader().addURL(jvm.java.io.File(str(classes)).toURI().toURL())
