"""PCM becomes the format a client asked for, piece by piece."""

import io
import wave

import numpy as np
import pytest
import soundfile

from cosyvoice_worker.audio.encoders import FORMATS, pcm16

RATE = 24000
TONE = (0.4 * np.sin(2 * np.pi * 300 * np.arange(2 * RATE) / RATE)).astype(np.float32)


def encoded(name: str, piece: int = 1920) -> list[bytes]:
    encoder = FORMATS[name].encoder(RATE)
    return [encoder.encode(TONE[i : i + piece]) for i in range(0, len(TONE), piece)] + [encoder.finish()]


def decoded(data: bytes) -> np.ndarray:
    pieces = []
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        try:
            while len(piece := file.read(480, dtype="float32")):
                pieces.append(piece)
        except soundfile.LibsndfileError:  # FLAC of unknown length: no seek past the end
            pass
    return np.concatenate(pieces)


@pytest.mark.parametrize("name", ["wav", "mp3", "opus", "flac"])
def test_what_is_decoded_is_what_was_encoded(name):
    heard = decoded(b"".join(encoded(name)))
    assert len(heard) == pytest.approx(len(TONE), abs=0.12 * RATE)
    middle = heard[len(heard) // 4 : len(heard) // 2]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert spectrum.argmax() * RATE / len(middle) == pytest.approx(300, abs=3)
    assert np.sqrt((middle**2).mean()) == pytest.approx(0.4 / np.sqrt(2), rel=0.05)


@pytest.mark.parametrize("name", list(FORMATS))
def test_bytes_leave_before_half_a_second_of_audio_is_in(name):
    assert sum(map(len, encoded(name, piece=1920)[:6])) > 100


def test_wav_is_read_by_readers_that_trust_the_header():
    with wave.open(io.BytesIO(b"".join(encoded("wav")))) as file:
        assert len(file.readframes(10**9)) == 2 * len(TONE)


def test_a_wav_without_audio_is_still_a_wav():
    assert FORMATS["wav"].encoder(RATE).finish()[:4] == b"RIFF"


def test_samples_beyond_full_scale_are_clipped_not_wrapped():
    assert np.frombuffer(pcm16(np.array([2.0, -2.0, 0.0], np.float32)), "<i2").tolist() == [32767, -32767, 0]
