"""Files and directories that this user may not read or write: one line that names the path and the remedy."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engines import plans
from engines.errors import LoadError
from engines.package import Package, check_target
from engines.placement import mps_runs
from schemas.errors import InvalidSpec
from schemas.spec import ModelSpec
from schemas.tables import open_tables, write_table
from tests.engines.test_plans import put
from tests.models import tiny_package
from tests.unprivileged import unprivileged
from tests.worker.test_cli import CRITEO, NO_BROKER, scorelane, write_config
from worker.cli import _expected
from worker.config import Config, ConfigError

RIGHTS = "let this user read it and search the directories above it"
TABLE = ModelSpec.parse(
    b'event = "custom"\nfeatures = [{ name = "room", table = "room.npy", shape = [4], default = 0 }]', "spec.toml"
)


@pytest.mark.parametrize(
    ("closed", "command"),
    [
        ("models", ["check"]),
        ("models/tipping", ["check"]),
        ("models/tipping/1", ["check"]),
        ("models/tipping", ["run"]),
        ("models/tipping", ["run", "--processes", 2]),
        ("models/tipping", ["replay", "--rate", 10]),
        ("models/tipping", ["produce", CRITEO, "--topic", "tips"]),
    ],
)
def test_a_directory_of_models_that_cannot_be_searched(closed: str, command: list[object], tmp_path: Path) -> None:
    tiny_package(tmp_path / "models", "tipping", name="tipping")
    config = write_config(tmp_path)
    (tmp_path / closed).chmod(0)
    ran = unprivileged(lambda: scorelane(*command, "--config", config, SCORELANE_ADMIN_PORT="0"))
    assert ran.returncode == 2, ran.stderr
    assert f"{tmp_path}/models/tipping" in ran.stderr and f"Permission denied; {RIGHTS}\n" in ran.stderr
    assert "Traceback" not in ran.stderr and "next start" not in ran.stderr


@pytest.mark.parametrize("options", [["model", "show"], ["produce", CRITEO, "--topic", "t", "--bootstrap", NO_BROKER]])
def test_a_path_of_the_command_line_that_cannot_be_searched(options: list[object], tmp_path: Path) -> None:
    tiny_package(tmp_path / "models", "tipping", name="tipping")
    (tmp_path / "models").chmod(0)
    path = tmp_path / "models/tipping"
    ran = unprivileged(lambda: scorelane(*options, *(["--model"] if options[0] == "produce" else []), path))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"{path}" in ran.stderr.splitlines()[-1] and ran.stderr.endswith(f"Permission denied; {RIGHTS}\n")
    assert "Traceback" not in ran.stderr


def closed_file(tmp_path: Path) -> Callable[[], object]:
    package = tiny_package(tmp_path)
    (package.path / "light.npz").chmod(0)
    return lambda: Package.open(package.path)


def closed_manifest(tmp_path: Path) -> Callable[[], object]:
    package = tiny_package(tmp_path)
    (package.path / "manifest.json").chmod(0)
    return lambda: Package.open(package.path)


def closed_sidecar(tmp_path: Path) -> Callable[[], object]:
    put(tmp_path).path.with_suffix(".json").chmod(0)
    return lambda: plans.found(tmp_path)


def closed_plan(tmp_path: Path) -> Callable[[], object]:
    plan = put(tmp_path)
    plan.path.chmod(0)
    return plan.read


def closed_plans(tmp_path: Path) -> Callable[[], object]:
    put(tmp_path).path.parent.chmod(0)
    return lambda: plans.found(tmp_path)


def closed_table(tmp_path: Path) -> Callable[[], object]:
    write_table(tmp_path / "room.npy", np.zeros((2, 4), np.float32))
    (tmp_path / "room.npy").chmod(0)
    return lambda: open_tables(TABLE, [tmp_path])


def closed_tables(tmp_path: Path) -> Callable[[], object]:
    (tmp_path / "model").mkdir(mode=0)
    return lambda: open_tables(TABLE, [tmp_path / "model"])


@pytest.mark.parametrize(
    "closed",
    [closed_file, closed_manifest, closed_sidecar, closed_plan, closed_plans, closed_table, closed_tables],
)
def test_the_remedy_for_what_cannot_be_read_is_the_right_to_do_so(
    closed: Callable[[Path], Callable[[], object]], tmp_path: Path
) -> None:
    read = closed(tmp_path)
    with pytest.raises((LoadError, InvalidSpec), match=rf"^{tmp_path}/.*Permission denied.*; {RIGHTS}$"):
        unprivileged(read)


def test_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    config.chmod(0)
    with pytest.raises(ConfigError, match=rf"^{config}: Permission denied; {RIGHTS}$"):
        unprivileged(lambda: Config.load(config, {}))


def test_a_place_that_cannot_be_written_is_told_before_the_training(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="needs the [train] extra")
    tmp_path.chmod(0o555)
    ran = unprivileged(lambda: scorelane("model", "train", "tipping", "--out", tmp_path / "models", "--epochs", 10_000))
    assert ran.returncode == 2
    said = f"scorelane: {tmp_path}: this user cannot write there; choose another place, or check the permissions\n"
    assert ran.stderr == said


def test_a_file_is_no_place_for_a_package(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("no directory")
    with pytest.raises(LoadError, match=rf"^{tmp_path}/models: not a directory; choose another place"):
        check_target(tmp_path / "models", "tipping", "1")


def test_a_version_that_exists_is_told_before_the_training(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="needs the [train] extra")
    tiny_package(tmp_path, "tipping", name="tipping")
    ran = scorelane("model", "train", "tipping", "--out", tmp_path, "--version", 1, "--epochs", 10_000)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"scorelane: {tmp_path}/tipping/1: this version exists; ")


def test_a_plan_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    plan = put(tmp_path)
    plan.path.parent.chmod(0o555)
    with pytest.raises(LoadError, match=r"fp16\.plan: cannot be written: .*Permission denied.*; check"):
        unprivileged(lambda: plans.write(tmp_path, plan.record, b"plan"))


def test_a_multi_process_service_of_another_user_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    tmp_path.chmod(0)
    assert not unprivileged(mps_runs)


def test_a_refusal_that_nothing_else_tells_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "timing.cache"
    path.touch(mode=0)
    with pytest.raises(PermissionError) as refused:
        unprivileged(path.read_bytes)
    assert _expected(refused.value) == 2
    problem = f"{path}: Permission denied; check its permissions and those of the directories above"
    assert capsys.readouterr().err == f"scorelane: {problem}\n"
