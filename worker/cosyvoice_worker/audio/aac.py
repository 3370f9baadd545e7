"""AAC-LC in ADTS frames by vo-aacenc (Apache-2.0, Debian's libvo-aacenc0): its C interface, as it has no package."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_int, c_int32, c_int64, c_short, c_uint32, c_void_p
from functools import cache
from typing import Any, Final

LIBRARY: Final = "libvo-aacenc.so.0"
BIT_RATE: Final = 64_000
"""As our MP3: clear speech in one channel."""

_FRAME: Final = 1024
"""Samples of a frame; the decoder's first one is the encoder's delay."""
_LARGEST_FRAME: Final = 8192
"""Bytes; the standard's limit for one channel is 768."""
_CODING_AAC: Final = 8
_ENCODER_PARAMETERS: Final = 0x42211040
"""voAAC.h: VO_PID_AAC_ENCPARAM"""
_MEMORY_FUNCTIONS: Final = ("Alloc", "Free", "Set", "Copy", "Check", "Compare", "Move")


class _Buffer(Structure):
    _fields_ = [("buffer", c_void_p), ("length", c_uint32), ("time", c_int64)]


class _OutputInfo(Structure):
    _fields_ = [(name, c_int32) for name in ("rate", "channels", "bits", "input_used", "reserved")]


class _Parameters(Structure):
    _fields_ = [("rate", c_int), ("bit_rate", c_int), ("channels", c_short), ("adts", c_short)]


class _Memory(Structure):
    _fields_ = [(name, c_void_p) for name in _MEMORY_FUNCTIONS]


class _UserData(Structure):
    _fields_ = [("flag", c_int), ("memory", c_void_p), ("reserved1", c_uint32), ("reserved2", c_uint32)]


class _Api(Structure):
    _fields_ = [
        ("init", CFUNCTYPE(c_uint32, POINTER(c_void_p), c_int, c_void_p)),
        ("set_input", CFUNCTYPE(c_uint32, c_void_p, c_void_p)),
        ("get_output", CFUNCTYPE(c_uint32, c_void_p, c_void_p, c_void_p)),
        ("set_parameter", CFUNCTYPE(c_uint32, c_void_p, c_int32, c_void_p)),
        ("get_parameter", CFUNCTYPE(c_uint32, c_void_p, c_int32, c_void_p)),
        ("end", CFUNCTYPE(c_uint32, c_void_p)),
    ]


@cache
def _library() -> tuple[Any, _Memory] | None:
    """The functions of the encoder and the memory functions that it is to use; None where it is not installed."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    api = _Api()
    library.voGetAACEncAPI(byref(api))
    memory = _Memory(*(ctypes.cast(getattr(library, f"cmnMem{name}"), c_void_p) for name in _MEMORY_FUNCTIONS))
    return api, memory


def is_installed() -> bool:
    return _library() is not None


class AacStream:
    """16-bit mono samples in, ADTS frames out. Raises RuntimeError for a sample rate that AAC does not have."""

    def __init__(self, sample_rate: int) -> None:
        library = _library()
        if library is None:
            raise RuntimeError(f"{LIBRARY} is not installed")
        self._api, memory = library
        self._handle = c_void_p()
        user = _UserData(0, ctypes.addressof(memory), 0, 0)
        self._checked(self._api.init(byref(self._handle), _CODING_AAC, byref(user)))
        parameters = _Parameters(sample_rate, BIT_RATE, 1, 1)
        self._checked(self._api.set_parameter(self._handle, _ENCODER_PARAMETERS, byref(parameters)))
        self._output = ctypes.create_string_buffer(_LARGEST_FRAME)
        self._samples = 0

    def encode(self, samples: bytes) -> bytes:
        """Frames that are complete with these samples (16 bit, little-endian, native)."""
        if not samples:
            return b""
        self._samples += len(samples) // 2
        # The encoder reads the buffer while it gives frames, and keeps what is left over in memory of its own.
        held = ctypes.create_string_buffer(samples, len(samples))
        self._checked(self._api.set_input(self._handle, byref(_Buffer(ctypes.addressof(held), len(samples), 0))))
        frames: list[bytes] = []
        while True:
            output = _Buffer(ctypes.addressof(self._output), _LARGEST_FRAME, 0)
            if self._api.get_output(self._handle, byref(output), byref(_OutputInfo())) != 0:
                return b"".join(frames)  # it wants more input
            frames.append(self._output.raw[: output.length])

    def finish(self) -> bytes:
        """What is left: silence fills the last frame, and one more brings out what overlaps into it."""
        if not self._samples:
            return b""
        return self.encode(bytes(2 * (-self._samples % _FRAME + _FRAME)))

    def __del__(self) -> None:
        if self._handle:
            self._api.end(self._handle)

    @staticmethod
    def _checked(code: int) -> None:
        if code != 0:
            raise RuntimeError(f"vo-aacenc answers {code:#x}")
