import subprocess
import sys

LOCKED = """
from worker.memory import lock_memory
lock_memory()
block = bytearray(8 << 20)
status = open("/proc/self/status").read()
print(status.split("VmLck:")[1].split()[0], status.split("VmRSS:")[1].split()[0])
"""

REFUSED = """
import os, resource
from worker.errors import WorkerError
from worker.memory import lock_memory
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
if os.geteuid() == 0:
    os.setuid(65534)
try:
    lock_memory()
except WorkerError as error:
    print(error)
"""


def run(source: str) -> str:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout


def test_what_is_touched_is_locked_later_memory_too() -> None:
    locked_kb, resident_kb = map(int, run(LOCKED).split())
    # The kernel counts whole mappings, so at least what is resident; the vdso's few pages cannot be locked.
    assert locked_kb >= resident_kb - 1024 > 8 << 10


def test_a_refusal_names_the_key_and_the_remedy() -> None:
    message = run(REFUSED)
    assert message.startswith("worker.lock_memory: mlockall: ")
    assert "LimitMEMLOCK" in message
