"""PCM becomes the format a client asked for, piece by piece."""

import io
import shutil
import subprocess
import wave

import numpy as np
import pytest
import soundfile

from cosyvoice_worker.audio import aac
from cosyvoice_worker.audio.encoders import FORMATS, pcm16

RATE = 24000
TONE = (0.4 * np.sin(2 * np.pi * 300 * np.arange(2 * RATE) / RATE)).astype(np.float32)


def encoded(name: str, piece: int = 1920) -> list[bytes]:
    encoder = FORMATS[name].encoder(RATE)
    return [encoder.encode(TONE[i : i + piece]) for i in range(0, len(TONE), piece)] + [encoder.finish()]


needs_aac = pytest.mark.skipif(
    not aac.is_installed(), reason=f"{aac.LIBRARY} is not installed (Debian: apt-get install libvo-aacenc0)"
)
AAC = pytest.param("aac", marks=needs_aac)


def decoded(name: str, data: bytes) -> np.ndarray:
    """By FFmpeg, which is what most players are made of, where it is installed; else by the libraries that we use."""
    if shutil.which("ffmpeg"):
        command = ["ffmpeg", "-v", "error", "-i", "-", "-f", "f32le", "-ac", "1", "-ar", str(RATE), "-"]
        done = subprocess.run(command, input=data, capture_output=True, check=True)
        assert not done.stderr, done.stderr.decode()
        return np.frombuffer(done.stdout, "<f4")
    if name == "aac":
        codecpod = pytest.importorskip("codecpod", reason="neither ffmpeg nor codecpod can decode AAC here")
        return codecpod.load(data, mono=True)[0]
    pieces = []
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        try:
            while len(piece := file.read(480, dtype="float32")):
                pieces.append(piece)
        except soundfile.LibsndfileError:  # FLAC of unknown length: no seek past the end
            pass
    return np.concatenate(pieces)


@pytest.mark.parametrize("name", ["wav", "mp3", "opus", "flac", AAC])
def test_what_is_decoded_is_what_was_encoded(name):
    heard = decoded(name, b"".join(encoded(name)))
    assert len(heard) == pytest.approx(len(TONE), abs=0.12 * RATE)
    middle = heard[len(heard) // 4 : len(heard) // 2]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert spectrum.argmax() * RATE / len(middle) == pytest.approx(300, abs=3)
    assert np.sqrt((middle**2).mean()) == pytest.approx(0.4 / np.sqrt(2), rel=0.05)


@pytest.mark.parametrize("name", list(FORMATS))
def test_bytes_leave_before_half_a_second_of_audio_is_in(name):
    assert sum(map(len, encoded(name, piece=1920)[:6])) > 100


@needs_aac
def test_every_aac_frame_can_be_the_first_that_a_player_gets_and_pieces_of_any_size_make_the_same():
    stream = b"".join(encoded("aac"))
    position = frames = 0
    while position < len(stream):
        assert stream[position] == 0xFF
        assert stream[position + 1] & 0xF6 == 0xF0  # ADTS, MPEG-4 or 2
        position += (stream[position + 3] & 3) << 11 | stream[position + 4] << 3 | stream[position + 5] >> 5
        frames += 1
    assert position == len(stream)
    assert frames * 1024 >= len(TONE) + 1024
    assert b"".join(encoded("aac", piece=333)) == stream


@needs_aac
def test_aac_of_no_audio_is_empty():
    assert FORMATS["aac"].encoder(RATE).finish() == b""


def test_wav_is_read_by_readers_that_trust_the_header():
    with wave.open(io.BytesIO(b"".join(encoded("wav")))) as file:
        assert len(file.readframes(10**9)) == 2 * len(TONE)


def test_a_wav_without_audio_is_still_a_wav():
    assert FORMATS["wav"].encoder(RATE).finish()[:4] == b"RIFF"


def test_samples_beyond_full_scale_are_clipped_not_wrapped():
    assert np.frombuffer(pcm16(np.array([2.0, -2.0, 0.0], np.float32)), "<i2").tolist() == [32767, -32767, 0]
