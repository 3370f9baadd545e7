"""Bytes of a recording, as clients and images bring them -> PCM. Whether it can be a voice is the engine's to say."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import soundfile

from cosyvoice_worker.audio.encoders import Pcm

try:
    import codecpod
except ImportError:  # it has no wheel for ARM
    codecpod = None  # type: ignore[assignment, unused-ignore]

MAX_RATE = 192_000
"""Hz; no recorder has more. FLAC's header can say 655,350."""
MAX_CHANNELS = 8
"""7.1 surround; FLAC's own limit."""
_BLOCK = 1 << 16
"""Frames decoded at once: their channels are averaged before the next ones are decoded."""

_UNKNOWN_LENGTH = (1 << 63) - 1
"""libsndfile's SF_COUNT_MAX."""


class UndecodableAudio(ValueError):
    """The bytes are no audio that can be read here; the text says why and what to send."""


@dataclass(frozen=True, slots=True)
class Recording:
    pcm: Pcm
    """(n,) float32, mono, -1..1."""
    sample_rate: int


def decode_recording(data: bytes, max_seconds: float) -> Recording:
    """wav, flac, ogg (opus, vorbis), mp3, m4a and webm of any width and number of channels; channels are averaged.

    At most a second more than `max_seconds` is decoded, whatever the bytes unfold to: no more than 24 MB for 30 s.
    Raises UndecodableAudio.
    """
    try:
        return _in_container(data, max_seconds) if _is_mp4_or_webm(data) else _by_libsndfile(data, max_seconds)
    except (soundfile.LibsndfileError, MemoryError) as error:
        raise _undecodable(error) from None


def _by_libsndfile(data: bytes, max_seconds: float) -> Recording:
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        rate = int(file.samplerate)
        _check(rate, file.channels)
        return Recording(_averaged(file, int((max_seconds + 1) * rate)), rate)


def _is_mp4_or_webm(data: bytes) -> bool:
    """By their first bytes. Nothing else reaches FFmpeg, which knows playlists that name other files and addresses."""
    return data[4:8] == b"ftyp" or data[:4] == b"\x1aE\xdf\xa3"


def _in_container(data: bytes, max_seconds: float) -> Recording:
    """m4a (AAC) and webm (Opus), as phones and browsers record them, by FFmpeg's decoders."""
    if codecpod is None:
        raise UndecodableAudio("m4a and webm are not decoded on this machine; send wav, mp3, ogg or flac")
    try:
        info = codecpod.info(data)
        _check(info.sample_rate, info.channels)
        most = int((max_seconds + 1) * info.sample_rate)
        decoded = codecpod.load(data, num_frames=most, return_buffer=True)
    except codecpod.CodecpodError as error:
        raise _undecodable(error) from None
    assert isinstance(decoded, codecpod.AudioBuffer)  # as asked for: (channels, frames), or (frames,) of one channel
    samples = decoded.samples.astype(np.float32, copy=False)
    pcm: Pcm = samples if samples.ndim == 1 else samples.mean(axis=0)
    return Recording(pcm[:most], decoded.sample_rate)


def _check(rate: int, channels: int) -> None:
    if rate > MAX_RATE:
        raise UndecodableAudio(f"the recording's sample rate is {rate} Hz; convert it to 24000 or 48000 Hz")
    if channels > MAX_CHANNELS:
        raise UndecodableAudio(f"the recording has {channels} channels; mix it down to one")


def _undecodable(error: Exception) -> UndecodableAudio:
    return UndecodableAudio(f"the recording cannot be decoded ({error}); send wav, mp3, m4a, webm, ogg or flac")


def _averaged(file: soundfile.SoundFile, most: int) -> Pcm:
    """At most `most` frames of the file, mono."""
    blocks: list[Pcm] = []
    while most > 0 and len(block := _block(file, min(_BLOCK, most))):
        blocks.append(block.mean(axis=1))
        most -= len(block)
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def _block(file: soundfile.SoundFile, most: int) -> Pcm:
    """The next frames, (n, channels); none at the end. A FLAC that was streamed does not say how long it is: soundfile
    reads its last frames, but fails to seek to its end after them."""
    frames: Pcm = np.full((most, file.channels), np.nan, np.float32)
    try:
        return frames[: len(file.read(out=frames))]
    except soundfile.LibsndfileError:
        if file.frames != _UNKNOWN_LENGTH:
            raise
        return frames[~np.isnan(frames[:, 0])]
