"""Which device computes, in which precision. What cannot be is said; nothing falls back."""

from __future__ import annotations

from typing import Final, Literal

import torch

DTYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

BF16_CAPABILITY: Final = (8, 0)
"""Ampere; Turing (T4, 7.5) and Volta emulate bfloat16 at a fraction of the speed."""


class DeviceError(Exception):
    """The device or the precision that was asked for is not there; the text says the mend."""


def select_device(device: Literal["cuda", "cpu"], precision: str) -> tuple[torch.device, torch.dtype]:
    """The torch device and dtype to use, or `DeviceError`."""
    if device == "cpu":
        if precision != "fp32":
            raise DeviceError(f"COSYVOICE_PRECISION={precision}: a CPU computes in fp32; set it to fp32")
        return torch.device("cpu"), torch.float32
    if torch.version.cuda is None:
        raise DeviceError(
            "COSYVOICE_DEVICE=cuda: this image holds the CPU build of PyTorch; use the CUDA image, or the card CPU"
        )
    if not torch.cuda.is_available():
        raise DeviceError(
            "COSYVOICE_DEVICE=cuda: no GPU is visible in this container; request one (resource nvidia.com/gpu), "
            "check the node's driver and device plugin, or use the card CPU"
        )
    capability = torch.cuda.get_device_capability(0)
    if precision == "bf16" and capability < BF16_CAPABILITY:
        raise DeviceError(
            f"COSYVOICE_PRECISION=bf16: {torch.cuda.get_device_name(0)} has compute capability "
            f"{capability[0]}.{capability[1]} and no bfloat16; use fp16"
        )
    # cuDNN convolutions round float32 to TensorFloat-32 unless told otherwise; float32 is asked for where it matters.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device("cuda", 0), DTYPES[precision]
