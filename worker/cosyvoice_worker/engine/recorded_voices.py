"""Voices made of recordings, whoever brings them; each is computed once and kept, by its content, while it is used."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import Final

import torch

from cosyvoice_worker.audio.recordings import UndecodableAudio, decode_recording
from cosyvoice_worker.engine.frontend.recording import MAX_SECONDS, RecordingError, RecordingFrontend
from cosyvoice_worker.engine.frontend.text import without_control_tokens
from cosyvoice_worker.engine.requests import Voice

KEPT: Final = 128
"""Voices kept at most. A recording of 30 s is 0.5 MB of features, so 64 MB together."""


class RecordedVoices:
    """Thread-safe. What it does is the CPU's: tens of milliseconds for a new recording, nothing for a known one."""

    def __init__(self, frontend: RecordingFrontend, kept: int = KEPT) -> None:
        self._frontend = frontend
        self._kept = kept
        self._voices: OrderedDict[str, Voice] = OrderedDict()
        self._lock = threading.Lock()

    def voice(self, recording: bytes, text: str, name: str = "") -> Voice:
        """The voice of an encoded recording; `text` is what is said in it, empty for its sound alone (cross-lingual).

        Raises RecordingError, which says what is wrong with the recording and what to send.
        """
        text = without_control_tokens(text).strip()
        key = hashlib.sha256(hashlib.sha256(recording).digest() + text.encode()).hexdigest()
        with self._lock:
            known = self._voices.get(key)
            if known is not None:
                self._voices.move_to_end(key)
                return known if name in ("", known.name) else replace(known, name=name)
        try:
            decoded = decode_recording(recording, MAX_SECONDS)
        except UndecodableAudio as error:
            raise RecordingError(str(error)) from None
        voice = self._frontend.voice(
            name or f"recording-{key[:8]}", torch.from_numpy(decoded.pcm), decoded.sample_rate, text
        )
        with self._lock:
            self._voices[key] = voice
            while len(self._voices) > self._kept:
                self._voices.popitem(last=False)
        return voice
