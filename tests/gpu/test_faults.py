"""A kernel that never ends and one that destroys the context: what the engine's users see."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engines
from engines.base import run
from engines.errors import RunError
from engines.package import Package
from engines.plans import PlanFile
from engines.runner import serve
from tests.engines.test_ort import direct
from tests.engines.test_runner import PATIENCE, Answers
from tests.gpu.conftest import Build
from tests.models import random_batch

PTX = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 flag) {
  .reg .u64 %address; .reg .u32 %value; .reg .pred %unset;
  ld.param.u64 %address, [flag];
LOOP:
  ld.volatile.global.u32 %value, [%address];
  setp.eq.u32 %unset, %value, 0;
  @%unset bra LOOP;
  ret;
}
.visible .entry wild() {
  .reg .u64 %address; .reg .u32 %value;
  mov.u64 %address, 64;
  mov.u32 %value, 1;
  st.global.u32 [%address], %value;
  ret;
}
"""
"""spin: waits until the word at `flag` is set, as a hung device would. wild: writes to no memory, a sticky error."""


@pytest.fixture
def model(build: Build) -> tuple[Package, PlanFile]:
    return build("tipping", "mlp", (1, 8, 32, 64))


@pytest.fixture
def hang() -> Iterator[tuple[Any, Any]]:
    """(enqueue a kernel that hangs on a pycuda stream, let it end). Ends at the test's end at the latest."""
    import pycuda.driver as cuda

    from engines import cuda as device_module

    with device_module.current(0):
        flag = cuda.pagelocked_empty(
            1, np.uint32, mem_flags=cuda.host_alloc_flags.DEVICEMAP | cuda.host_alloc_flags.PORTABLE
        )
        flag[0] = 0
        kernel = cuda.module_from_buffer(PTX).get_function("spin")
        address = np.uintp(flag.base.get_device_pointer())

        def start(stream: Any) -> None:
            with device_module.current(0):
                kernel(address, block=(1, 1, 1), grid=(1, 1), stream=stream)

        def end() -> None:
            flag[0] = 1

        yield start, end
        end()
        cuda.Context.synchronize()


def test_a_hung_lane_is_left_behind_and_the_others_go_on(
    model: tuple[Package, PlanFile], hang: tuple[Any, Any]
) -> None:
    package, _ = model
    start, end = hang
    engine = engines.load("trt", package, max_batch=64)
    hung, healthy = engine.open_session(), engine.open_session()
    runner, answers = serve(hung, name="hung"), Answers()
    batch = random_batch(package.spec, 20)
    expected = direct(package, batch).reshape(-1)
    start(hung._stream)  # type: ignore[attr-defined]
    runner.submit(batch, answers.done("hung"))
    runner.retire()
    assert isinstance(answers.next()[2], RunError)
    for _ in range(50):
        np.testing.assert_allclose(run(healthy, batch), expected, atol=2e-5)
    # As a station replaces it: what opens a session must not wait for the hang.
    replacement = ThreadPoolExecutor(1).submit(engine.open_session).result(PATIENCE)
    np.testing.assert_allclose(run(replacement, batch), expected, atol=2e-5)
    assert runner.close(0.0) is False, "the session still hangs"
    end()
    assert runner.close(PATIENCE), "its thread closes it once the device comes back"
    assert answers.queue.empty()
    np.testing.assert_allclose(run(healthy, batch), expected, atol=2e-5)
    for session in (healthy, replacement):
        session.close()
    engine.close()


LOST = """
import faulthandler
import sys
from pathlib import Path
import pycuda.driver as driver
import engines
from engines import cuda
from engines.base import run
from engines.errors import DeviceLost
from engines.package import Package
from tests.gpu.test_faults import PTX
from tests.models import random_batch

faulthandler.dump_traceback_later(20, exit=True)
package = Package.open(Path(sys.argv[1]))
engine = engines.load("trt", package, max_batch=64)
first, second = engine.open_session(), engine.open_session()
batch = random_batch(package.spec, 20)
run(first, batch)
with cuda.current(0):
    driver.module_from_buffer(PTX).get_function("wild")(block=(1, 1, 1), grid=(1, 1), stream=first._stream)
said = []
for session in (first, second):
    for call in (lambda: run(session, batch), lambda: session.submit(batch)):
        try:
            call()
            said.append("scored")
        except DeviceLost:
            said.append("lost")
        print(said, file=sys.stderr, flush=True)
for call in (engine.open_session, lambda: engines.load("trt", package)):
    try:
        call()
        said.append("opened")
    except DeviceLost:
        said.append("lost")
print(said, "closing", file=sys.stderr, flush=True)
first.close()
second.close()
engine.close()
print(",".join(said), flush=True)
"""


def test_a_sticky_error_loses_the_device_for_the_process_and_a_fresh_process_has_it_back(
    model: tuple[Package, PlanFile],
) -> None:
    package, _ = model
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", LOST, str(package.path)], capture_output=True, text=True, cwd=root, timeout=45
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == "lost,lost,lost,lost,lost,lost"
    engine = engines.load("trt", package, max_batch=64)
    session = engine.open_session()
    assert run(session, random_batch(package.spec, 3)).shape == (3,)
    session.close()
    engine.close()


def test_a_process_with_open_sessions_ends_cleanly(model: tuple[Package, PlanFile]) -> None:
    """pycuda aborts where a context is left pushed; daemon threads inside the driver must not make it so."""
    code = """
import sys
from pathlib import Path
import engines
from engines.package import Package
from engines.runner import serve
from tests.models import random_batch
package = Package.open(Path(sys.argv[1]))
engine = engines.load("trt", package, max_batch=64)
lanes = [serve(engine.open_session(), name=str(index)) for index in range(4)]
for lane in lanes:
    lane.submit(random_batch(package.spec, 3), lambda scores, error: None)
print("done")
"""
    package, _ = model
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(package.path)], capture_output=True, text=True, cwd=root, timeout=45
    )
    assert (done.returncode, done.stdout.split()) == (0, ["done"]), done.stderr[-3000:]
