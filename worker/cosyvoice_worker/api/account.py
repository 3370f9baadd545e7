"""What is counted and logged about one text that was taken to be spoken, however it ends."""

from __future__ import annotations

import logging
import time

from cosyvoice_worker.api.metrics import Metrics

log = logging.getLogger(__name__)


class Account:
    """Of one request, or of one text of a session.

    `started`: a time of `time.perf_counter`. `api_key`: the name of the client's. `dictated`: the client's writing sets
    the pace, so that times and gaps say nothing about this worker.
    """

    def __init__(
        self,
        metrics: Metrics,
        request_id: str,
        started: float,
        voice: str,
        audio_format: str,
        *,
        api_key: str,
        dictated: bool = False,
    ) -> None:
        self._dictated = dictated
        self._metrics = metrics
        self._started = started
        self._first: float | None = None
        self._audio_seconds = 0.0
        self._gaps = 0
        self._fields = {"request_id": request_id, "voice": voice, "format": audio_format, "api_key": api_key}

    def audio(self, seconds: float) -> None:
        """`seconds` of audio are ready for the client now."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now
            if not self._dictated:
                self._metrics.first_audio.observe(now - self._started)
        elif not self._dictated and now - self._first > self._audio_seconds:
            self._gaps += 1
            self._metrics.playback_gaps.inc()
        self._audio_seconds += seconds
        self._metrics.audio.inc(seconds)

    def ended(self, outcome: str, error: str = "") -> None:
        took = time.perf_counter() - self._started
        self._metrics.requests.labels(outcome).inc()
        if outcome == "completed" and self._audio_seconds:
            if not self._dictated:
                self._metrics.rtf.observe(took / self._audio_seconds)
            self._metrics.audio_per_request.observe(self._audio_seconds)
        fields = self._fields | {
            "outcome": outcome,
            "seconds": round(took, 3),
            "first_audio_seconds": None if self._first is None else round(self._first - self._started, 3),
            "audio_seconds": round(self._audio_seconds, 3),
            "gaps": self._gaps,
        }
        if error:
            fields["error"] = error
        log.log(logging.INFO if outcome in ("completed", "cancelled") else logging.ERROR, "spoken", extra=fields)
