"""GPU readings through the real nvidia-ml-py, on a small libnvidia-ml.so.1 that is compiled here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

READ = """
import dataclasses, json, sys
from cosyvoice_worker.device.nvml import Gpu, NvmlError
try:
    gpu = Gpu("1234")
except NvmlError as error:
    print(json.dumps({"error": str(error)})); sys.exit()
fixed = {"product": gpu.product, "driver": gpu.driver, "total": gpu.memory_total}
print(json.dumps(fixed | dataclasses.asdict(gpu.read())))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


def read(library: Path | None, **environment: str) -> dict[str, object]:
    path = {"LD_LIBRARY_PATH": str(library)} if library else {}
    done = subprocess.run(
        [sys.executable, "-c", READ],
        env=os.environ | {"PYTHONPATH": "worker:contract", "FAKE_MEMORY_GIB": "16"} | path | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_all_that_a_gpu_tells(library):
    assert read(library) == {
        "product": "Tesla T4",
        "driver": "550.54.15",
        "total": 16 << 30,
        "utilization": 0.73,
        "memory_used": 4 << 30,
        "temperature": 61,
        "power": 70.5,
        "throttle_reasons": ["SwPowerCap", "SwThermalSlowdown"],
    }


def test_under_mig_utilisation_is_unknown_and_the_rest_still_told(library):
    reading = read(library, FAKE_UUID="MIG-1234", FAKE_UTILIZATION="3", FAKE_NAME="NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    assert reading["utilization"] is None
    assert reading["memory_used"] == 4 << 30


def test_missing_permissions_are_unknown_not_zero(library):
    reading = read(library, FAKE_UTILIZATION="4", FAKE_TEMPERATURE="4", FAKE_POWER="4", FAKE_THROTTLE="4")
    assert [reading[name] for name in ("utilization", "temperature", "power", "throttle_reasons")] == [None] * 4


def test_a_driver_that_does_not_start_or_does_not_know_the_gpu_is_an_error_with_the_mend(library):
    assert "NVIDIA_DRIVER_CAPABILITIES" in str(read(library, FAKE_INIT="9")["error"])
    assert "does not know the GPU 1234" in str(read(library, FAKE_UUID="GPU-other")["error"])


def test_a_gpu_that_may_not_be_asked_its_name_is_an_error_and_not_a_crash(library):
    said = str(read(library, FAKE_NAME_STATUS="4")["error"])
    assert "does not tell what the GPU 1234 is" in said
    assert "Insufficient Permissions" in said or "fake error" in said


def verified(library: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from cosyvoice_worker.verify import print_versions; print_versions()"],
        env=os.environ
        | {"PYTHONPATH": "worker:contract", "FAKE_MEMORY_GIB": "16", "LD_LIBRARY_PATH": str(library)}
        | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return " ".join(done.stdout.split())


def test_verify_prints_torch_cuda_driver_and_card(library):
    said = verified(library)
    assert all(name in said for name in ("python", "torch", "cuda", "cudnn"))
    assert "driver 550.54.15 gpu 0 Tesla T4, 16 GiB" in said


def test_verify_never_fails_for_what_it_may_not_see(library):
    assert "driver 550.54.15 gpu 0 not told" in verified(library, FAKE_NAME_STATUS="4")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has the driver's own library")
def test_without_the_drivers_library_it_says_what_the_container_needs():
    assert "libnvidia-ml.so.1" in str(read(None)["error"])
