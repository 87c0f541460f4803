"""The jars of a real Apache Kafka, resolved by Maven once and kept in the user's cache."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION = "4.1.1"
_POM = Path(__file__).with_name("pom.xml")


def missing() -> str | None:
    """Why no broker can be started on this machine, in one line; None when it can."""
    java = shutil.which("java")
    if java is None:
        return "Apache Kafka needs Java 17 or newer and there is no `java`; install a JRE (openjdk-17-jre-headless)"
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', answer)
    if found is None or int(found[1]) < 17:
        version = answer.splitlines()[0] if answer else "no answer to `java -version`"
        return f"Apache Kafka needs Java 17 or newer, found {version}; install a newer JRE (openjdk-17-jre-headless)"
    if shutil.which("mvn") is None and not _cached().exists():
        return "Apache Kafka is resolved by Maven and there is no `mvn`; install maven"
    return None


def classpath() -> str:
    """The class path of the broker. Resolves the jars when the cache has none; raises RuntimeError when Maven fails."""
    directory = _cached()
    if not directory.exists():
        _resolve(directory)
    return f"{directory}/*"


def _cached() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "scorelane" / f"kafka-{VERSION}"


def _resolve(directory: Path) -> None:
    """Fill a directory of our own, then rename: two runs may do this at once, and the first to finish wins."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as scratch:
        jars = Path(scratch) / "jars"
        command = [
            *("mvn", "-q", "-B", "-f", str(_POM), f"-Dkafka.version={VERSION}"),
            *("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            output = result.stdout[-2000:] + result.stderr[-2000:]
            raise RuntimeError(f"Maven could not resolve Apache Kafka {VERSION}:\n{output}")
        try:
            jars.rename(directory)
        except OSError:
            if not directory.exists():
                raise
