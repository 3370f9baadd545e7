"""PCM -> what the client asked for, a piece at a time, so that a stream is heard while it is made."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import soundfile
from numpy.typing import NDArray

from cosyvoice_worker.audio import aac

Pcm = NDArray[np.float32]
"""(n,) mono, -1..1."""


class Encoder(Protocol):
    """One stream. After `finish` it is spent; bytes may come late, all of them by then."""

    def encode(self, pcm: Pcm) -> bytes: ...

    def finish(self) -> bytes: ...


def pcm16(pcm: Pcm) -> bytes:
    """16-bit little-endian samples."""
    return (np.clip(pcm, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


class PcmEncoder:
    """Headerless 16-bit little-endian mono."""

    def __init__(self, sample_rate: int) -> None:
        del sample_rate

    def encode(self, pcm: Pcm) -> bytes:
        return pcm16(pcm)

    def finish(self) -> bytes:
        return b""


_UNKNOWN_LENGTH: Final = 0xFFFFFFFF
"""Both sizes of a WAV whose end is not known, as ffmpeg writes them into a pipe; players read until the end."""


def wav_header(sample_rate: int) -> bytes:
    """44 bytes: mono, 16 bit, length unknown."""
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", _UNKNOWN_LENGTH, b"WAVE"),
        *(b"fmt ", 16, 1, 1, sample_rate, sample_rate * 2, 2, 16),
        *(b"data", _UNKNOWN_LENGTH),
    )


class WavEncoder:
    """A WAV header of unknown length with the first samples, then samples."""

    def __init__(self, sample_rate: int) -> None:
        self._header = wav_header(sample_rate)

    def encode(self, pcm: Pcm) -> bytes:
        header, self._header = self._header, b""
        return header + pcm16(pcm)

    def finish(self) -> bytes:
        return self._header


class _Pipe(io.RawIOBase):
    """A file for libsndfile whose bytes leave at once; going back to complete a header is past, and ignored."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = bytearray()
        self._position = 0
        self._end = 0

    def take(self) -> bytes:
        taken = bytes(self._bytes)
        self._bytes.clear()
        return taken

    def write(self, data: object) -> int:
        raw = bytes(data)  # type: ignore[call-overload]
        if self._position == self._end:
            self._bytes += raw
            self._end += len(raw)
        self._position += len(raw)
        return len(raw)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class SoundfileEncoder:
    """MP3, Ogg Opus and FLAC by libsndfile."""

    def __init__(self, sample_rate: int, container: str, subtype: str) -> None:
        self._pipe = _Pipe()
        # MP3 at a constant 64 kb/s: without a complete header, players tell the length from the rate.
        rate = {"bitrate_mode": "CONSTANT", "compression_level": 0.6} if container == "MP3" else {}
        self._file = soundfile.SoundFile(self._pipe, "w", sample_rate, 1, subtype=subtype, format=container, **rate)
        if container == "OGG":
            _set_ogg_page_latency(self._file, milliseconds=100.0)

    def encode(self, pcm: Pcm) -> bytes:
        self._file.write(np.clip(pcm, -1.0, 1.0))
        return self._pipe.take()

    def finish(self) -> bytes:
        self._file.close()
        return self._pipe.take()


def _set_ogg_page_latency(file: soundfile.SoundFile, milliseconds: float) -> None:
    """libsndfile gathers a second of audio into a page; python-soundfile has no public name for the command."""
    set_page_latency = 0x1302  # SFC_SET_OGG_PAGE_LATENCY_MS, libsndfile >= 1.0.29
    value = soundfile._ffi.new("double *", milliseconds)
    soundfile._snd.sf_command(file._file, set_page_latency, value, soundfile._ffi.sizeof("double"))


class AacEncoder:
    """AAC-LC in ADTS frames, which say their own rate and length, so that a player may join at any of them."""

    def __init__(self, sample_rate: int) -> None:
        self._stream = aac.AacStream(sample_rate)

    def encode(self, pcm: Pcm) -> bytes:
        return self._stream.encode(pcm16(pcm))

    def finish(self) -> bytes:
        return self._stream.finish()


@dataclass(frozen=True, slots=True)
class Format:
    content_type: str
    encoder: Callable[[int], Encoder]
    """sample rate -> a new encoder"""
    cheap: bool
    """Encoding a piece takes microseconds; otherwise it belongs in a thread."""


FORMATS: Final[dict[str, Format]] = {
    "mp3": Format("audio/mpeg", lambda rate: SoundfileEncoder(rate, "MP3", "MPEG_LAYER_III"), cheap=False),
    "opus": Format("audio/ogg; codecs=opus", lambda rate: SoundfileEncoder(rate, "OGG", "OPUS"), cheap=False),
    "flac": Format("audio/flac", lambda rate: SoundfileEncoder(rate, "FLAC", "PCM_16"), cheap=False),
    "wav": Format("audio/wav", WavEncoder, cheap=True),
    "pcm": Format("audio/pcm", PcmEncoder, cheap=True),
}
"""What this machine can make: the worker images have all that OpenAI names."""
if aac.is_installed():
    FORMATS["aac"] = Format("audio/aac", AacEncoder, cheap=False)
