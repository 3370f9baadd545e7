"""All voices that a worker has at this moment. The model's stay; the service's and the uploaded ones come and go."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from cosyvoice_worker.engine.frontend.recording import RecordingError
from cosyvoice_worker.engine.recorded_voices import KEPT, RecordedVoices
from cosyvoice_worker.engine.requests import Voice
from cosyvoice_worker.engine.voices import KnownVoice, VoiceBook
from cosyvoice_worker.live_files import Reloads
from cosyvoice_worker.voices.presets import PresetVoices
from cosyvoice_worker.voices.store import StoredVoice, VoiceStore


class VoiceUnavailable(Exception):
    """The voice has a name but cannot speak; the text says why."""


class VoiceCatalogue:
    """`book` is replaced as a whole; everything else reads files or computes and is for threads."""

    def __init__(
        self,
        own: Sequence[Voice],
        presets: PresetVoices,
        store: VoiceStore | None,
        recorded: RecordedVoices,
        reloads: Reloads,
    ) -> None:
        """`own` are the model's voices, at least one."""
        self.store = store
        self._own = [KnownVoice(voice.name, "model", voice) for voice in own]
        self._presets = presets
        self._recorded = recorded
        self._reloads = reloads
        self._lock = threading.Lock()
        self._used: OrderedDict[KnownVoice, Voice] = OrderedDict()
        """The uploads that were spoken in last, so that they are not read again for every request."""
        self.book = VoiceBook(self._own)

    def refresh(self) -> None:
        """Take over what has changed in the mounted files and in the store."""
        with self._lock:
            self._presets.refresh()
            if self.store is not None:
                self.store.refresh()
            self._rebuild()

    def refresh_uploads(self) -> None:
        """The same of the store alone, right after this worker has changed it."""
        assert self.store is not None
        with self._lock:
            self.store.refresh()
            self._rebuild()

    def _rebuild(self) -> None:
        """The service's voices go first: who brings voices means them, then the model's, then the uploaded ones."""
        uploaded = map(_uploaded, self.store.voices if self.store is not None else ())
        book = VoiceBook([*self._presets.voices, *self._own, *uploaded], self._presets.aliases)
        for alias, target in self._presets.aliases.items():
            if book.find(alias) is None:
                self._reloads.failed("alias", f"it leads to {target!r}, which is no voice here", alias)
        self.book = book

    def at_hand(self, known: KnownVoice) -> Voice | None:
        """The voice itself, at once; None for an upload that must be read. Raises VoiceUnavailable."""
        if known.problem:
            raise VoiceUnavailable(known.problem)
        return known.voice or self._used.get(known)

    def read(self, known: KnownVoice) -> Voice:
        """An uploaded voice, computed when it is first used. Raises VoiceUnavailable."""
        assert self.store is not None
        try:
            text, recording = self.store.read(known.name)
            voice = self._recorded.voice(recording, text, known.name)
        except FileNotFoundError:
            raise VoiceUnavailable("it was deleted just now") from None
        except RecordingError as error:
            raise VoiceUnavailable(str(error)) from None
        except (OSError, ValueError):
            raise VoiceUnavailable("its file in the voice store cannot be read; upload it again") from None
        with self._lock:
            self._used[known] = voice
            while len(self._used) > KEPT:
                self._used.popitem(last=False)
        return voice


def _uploaded(stored: StoredVoice) -> KnownVoice:
    return KnownVoice(stored.name, "uploaded", created=stored.created)
