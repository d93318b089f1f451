"""How Spark's JVM writes to a local disk: without starting a process for each file.

Hadoop's local file system changes the permissions of everything that it makes, and without its native library, which
Spark does not bring along, it starts `chmod` for that: 5 ms of processor time for each file, a dozen files in a small
batch (state, logs, rows). It also writes a hidden .crc file beside each file, for which it starts another.

Java can change permissions itself. So the part of Hadoop's file system that touches the disk is replaced by one that
does: a class of a few lines, compiled by the compiler that Spark has for its generated code. Nothing depends on it:
where it cannot be had, `chmod` is started as before.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from pyspark.sql import SparkSession

__all__ = ["write_without_processes"]

_PLAIN: Final = "org.apache.hadoop.fs.RawLocalFileSystem"
_NAME: Final = "StrobeLocalFileSystem"
# A mode above 0777 has bits that Java knows nothing of. They are rare, so a process may see to them.
_SOURCE: Final = f"""
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

public class {_NAME} extends {_PLAIN} {{
    public void setPermission(Path path, FsPermission mode) throws java.io.IOException {{
        if (mode.toShort() > 0777) {{
            super.setPermission(path, mode);
        }} else {{
            Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(mode.toString()));
        }}
    }}
}}
"""

_log = logging.getLogger("strobe.session")


def write_without_processes(session: SparkSession) -> None:
    """From now on, for everything in this JVM that writes to a local disk."""
    jvm: Any = session._jvm
    settings: Any = session._jsc.hadoopConfiguration()
    local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(settings)
    local.setWriteChecksum(False)
    plain = local.getRaw().getClass()
    replaced = plain.getName() != _PLAIN  # by us, or by somebody else
    if replaced or os.name != "posix" or jvm.org.apache.hadoop.util.NativeCodeLoader.isNativeCodeLoaded():
        return
    try:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(plain.getClassLoader())
        compiler.cook(_SOURCE)
        made = jvm.org.apache.hadoop.util.ReflectionUtils.newInstance(
            compiler.getClassLoader().loadClass(_NAME), settings
        )
        made.initialize(local.getUri(), settings)
        inner = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FilterFileSystem").getDeclaredField("fs")
        inner.setAccessible(True)
        inner.set(local, made)
    except Exception as error:  # whatever a Spark with another Hadoop says
        _log.debug("Hadoop starts a process for each file that it writes: %s", error)
