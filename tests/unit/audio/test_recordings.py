"""Recordings that people send are decoded, or refused with what to send."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from cosyvoice_worker.audio import recordings
from cosyvoice_worker.audio.encoders import FORMATS
from cosyvoice_worker.audio.recordings import UndecodableAudio, decode_recording

PROMPTS = Path(__file__).parents[3] / "models" / "prompts"
CONTAINERS = Path(__file__).parent / "data"
"""3 s of the tone below, encoded by FFmpeg in the shapes that phones, Chrome and Safari (fragmented) record."""


def recorded(
    seconds: float = 3.0,
    rate: int = 24000,
    container: str = "WAV",
    subtype: str = "PCM_16",
    channels: int = 1,
    level: float = 0.3,
):
    tone = level * np.sin(2 * np.pi * 200 * np.arange(int(seconds * rate)) / rate)
    file = io.BytesIO()
    soundfile.write(file, np.stack([tone] * channels, axis=1), rate, format=container, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(
    ("container", "subtype", "rate"),
    [
        *(("WAV", width, 44100) for width in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")),
        ("FLAC", "PCM_16", 48000),
        ("OGG", "OPUS", 48000),
        ("OGG", "VORBIS", 22050),
        ("MP3", "MPEG_LAYER_III", 44100),
    ],
)
def test_the_formats_that_people_have(container, subtype, rate):
    recording = decode_recording(recorded(container=container, subtype=subtype, rate=rate, channels=2), 30)
    assert recording.sample_rate == rate
    assert recording.pcm.dtype == np.float32
    assert len(recording.pcm) / rate == pytest.approx(3.0, abs=0.1)
    assert np.sqrt((recording.pcm**2).mean()) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


needs_codecpod = pytest.mark.skipif(
    recordings.codecpod is None, reason="codecpod is not installed: run `make setup` (it has wheels for x86_64 only)"
)


@needs_codecpod
@pytest.mark.parametrize(
    ("name", "rate", "delay"), [("phone.m4a", 44100, 0.0), ("safari.mp4", 48000, 0.03), ("chrome.webm", 48000, 0.01)]
)
def test_what_phones_and_browsers_record(name, rate, delay):
    recording = decode_recording((CONTAINERS / name).read_bytes(), 30)
    assert recording.sample_rate == rate
    assert (recording.pcm.dtype, recording.pcm.ndim) == (np.float32, 1)
    assert len(recording.pcm) / rate == pytest.approx(3.0 + delay, abs=0.03)
    assert np.sqrt((recording.pcm**2).mean()) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


@needs_codecpod
def test_a_long_recording_of_a_browser_is_decoded_no_further_than_needed():
    recording = decode_recording((CONTAINERS / "chrome.webm").read_bytes(), max_seconds=1)
    assert 1.9 < len(recording.pcm) / recording.sample_rate <= 2


@pytest.mark.parametrize("name", ["phone.m4a", "chrome.webm"])
def test_where_ffmpegs_decoders_are_missing_it_says_what_to_send(name, monkeypatch):
    monkeypatch.setattr(recordings, "codecpod", None)
    with pytest.raises(UndecodableAudio, match="not decoded on this machine; send wav, mp3, ogg or flac"):
        decode_recording((CONTAINERS / name).read_bytes(), 30)


@needs_codecpod
@pytest.mark.parametrize(
    "data",
    [
        (CONTAINERS / "phone.m4a").read_bytes()[:600],
        (CONTAINERS / "chrome.webm").read_bytes()[:100],
        b"\x00\x00\x00\x18ftypM4A " + bytes(200),
    ],
    ids=["m4a cut", "webm cut", "m4a of zeros"],
)
def test_a_container_without_audio_is_refused_with_what_to_send(data):
    with pytest.raises(UndecodableAudio, match="send wav, mp3, m4a, webm, ogg or flac"):
        decode_recording(data, 30)


def test_a_playlist_is_not_followed_to_other_files():
    playlist = f"#EXTM3U\n#EXTINF:3,\nfile://{CONTAINERS / 'phone.m4a'}\n".encode()
    with pytest.raises(UndecodableAudio):
        decode_recording(playlist, 30)


@pytest.mark.parametrize("data", [b"", b"not audio at all", recorded()[:30]], ids=["empty", "text", "cut"])
def test_what_is_no_audio_is_refused_with_what_to_send(data):
    with pytest.raises(UndecodableAudio, match="send wav, mp3, m4a, webm, ogg or flac"):
        decode_recording(data, 30)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (recorded(seconds=0.1, rate=655_350, container="FLAC"), "655350 Hz; convert it to 24000 or 48000 Hz"),
        (recorded(seconds=0.1, channels=9), "9 channels; mix it down to one"),
    ],
    ids=["rate", "channels"],
)
def test_what_would_unfold_to_gigabytes_is_refused_before_it_is_decoded(data, complaint):
    with pytest.raises(UndecodableAudio, match=complaint):
        decode_recording(data, 30)


def test_channels_are_averaged_over_the_whole_length():
    left, right = np.linspace(-0.5, 0.5, 200_000), np.full(200_000, 0.25)
    file = io.BytesIO()
    soundfile.write(file, np.stack([left, right], axis=1), 48000, format="WAV", subtype="FLOAT")
    pcm = decode_recording(file.getvalue(), 30).pcm
    assert np.abs(pcm - (left + right) / 2).max() < 1e-6


def test_a_long_recording_is_decoded_no_further_than_needed_to_know_that_it_is_too_long():
    recording = decode_recording(recorded(seconds=20), max_seconds=5)
    assert len(recording.pcm) == 6 * recording.sample_rate


def test_the_default_prompt_is_a_usable_recording_with_its_words():
    recording = decode_recording((PROMPTS / "default.wav").read_bytes(), 30)
    assert recording.sample_rate == 24000
    assert 3.0 < len(recording.pcm) / recording.sample_rate < 6.0
    assert (PROMPTS / "default.txt").read_text().strip().endswith(".")


@pytest.mark.parametrize("frames", [12000, 1 << 16, 100_000])
def test_a_flac_that_was_streamed_and_does_not_say_its_length_is_read_to_its_end(frames):
    tone = (0.3 * np.sin(np.arange(frames) / 20)).astype(np.float32)
    encoder = FORMATS["flac"].encoder(24000)
    decoded = decode_recording(encoder.encode(tone) + encoder.finish(), 30.0)
    assert decoded.sample_rate == 24000
    np.testing.assert_allclose(decoded.pcm, tone, atol=1e-4)
