"""A recording of a voice to what the models need of it. Computed once per voice, on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from cosyvoice_worker.engine.frontend.features import can_resample, flow_mel, kaldi_fbank, resample, whisper_mel
from cosyvoice_worker.engine.requests import Voice
from cosyvoice_worker.models.directory import MelConfig, ModelDirectoryError

MIN_SECONDS = 0.5
"""Below it there is nothing to imitate: a dozen speech tokens."""
MAX_SECONDS = 30.0
"""The speech tokenizer's limit."""
MIN_RATE = 16000
"""Hz; below it the speech tokenizer's upper bands would be empty."""
SILENCE = 1e-3
"""Peak below which a recording counts as silent (-60 dBFS)."""
FEATURE_RATE = 16000


class RecordingError(ValueError):
    """The recording cannot be used as a voice; the text says what is wrong with it and how to mend it."""


class RecordingFrontend:
    """Speech tokens, speaker embedding and mel of a recording. Thread-safe."""

    def __init__(self, mel: MelConfig, speech_tokenizer: Path, campplus: Path, threads: int = 1) -> None:
        """Loads both ONNX models. Raises ModelDirectoryError where a file is no ONNX model."""
        self.mel = mel
        self._tokenizer = _session(speech_tokenizer, threads)
        self._campplus = _session(campplus, threads)

    def voice(self, name: str, audio: Tensor, sample_rate: int, text: str = "") -> Voice:
        """A voice from its recording: audio (N,) float32 mono in -1..1; `text` is what is said in it.

        Raises RecordingError: sample rate below 16 kHz or none that people record at (47,999 Hz), shorter than 0.5 s or
        longer than 30 s, silent, or not finite.
        """
        check(audio, sample_rate)
        if not all(can_resample(sample_rate, rate) for rate in (FEATURE_RATE, self.mel.sample_rate)):
            raise RecordingError(f"the recording's sample rate is {sample_rate} Hz; convert it to 24000 or 48000 Hz")
        narrow = resample(audio, sample_rate, FEATURE_RATE)
        wide = resample(audio, sample_rate, self.mel.sample_rate)
        return self.voice_of(name, narrow, wide, text)

    def voice_of(self, name: str, narrow: Tensor, wide: Tensor, text: str) -> Voice:
        """The same of a checked recording that is already there at 16 kHz and at the mel's rate."""
        tokens = self.speech_tokens(narrow)
        mel = flow_mel(wide, self.mel)
        # Both count 25 tokens a second but round differently; the models want exactly two frames per token.
        count = min(mel.shape[0] // 2, tokens.shape[0])
        return Voice(
            name=name,
            embedding=self.embedding(narrow),
            prompt_text=text,
            prompt_tokens=tokens[:count].clone(),
            prompt_mel=mel[: 2 * count].clone(),
        )

    def speech_tokens(self, audio: Tensor) -> Tensor:
        """(N,) at 16 kHz -> (about 25 a second,) int64."""
        features = whisper_mel(audio)[None].numpy()
        # The exported models differ in their input names, so inputs go by position.
        feats, length = (node.name for node in self._tokenizer.get_inputs())
        lengths = np.array([features.shape[2]], dtype=np.int32)
        (ids,) = self._tokenizer.run(None, {feats: features, length: lengths})
        return torch.from_numpy(np.asarray(ids, dtype=np.int64).reshape(-1))

    def embedding(self, audio: Tensor) -> Tensor:
        """(N,) at 16 kHz -> (192,) float32."""
        features = kaldi_fbank(audio)
        features = features - features.mean(dim=0, keepdim=True)
        (node,) = self._campplus.get_inputs()
        (vector,) = self._campplus.run(None, {node.name: features[None].numpy()})
        return torch.from_numpy(np.asarray(vector, dtype=np.float32).reshape(-1))


def check(audio: Tensor, sample_rate: int) -> None:
    """Raises RecordingError for a recording that no voice can be made of."""
    if sample_rate < MIN_RATE:
        raise RecordingError(f"the recording's sample rate is {sample_rate} Hz; record it at {MIN_RATE} Hz or more")
    if audio.dim() != 1:
        raise RecordingError(f"the recording has the shape {tuple(audio.shape)}; mix it down to one channel")
    seconds = audio.shape[0] / sample_rate
    if seconds < MIN_SECONDS:
        raise RecordingError(f"the recording lasts {seconds:.2f} s; it must be {MIN_SECONDS} s or more, best 3 to 10 s")
    if seconds > MAX_SECONDS:
        raise RecordingError(f"the recording lasts {seconds:.1f} s; cut it to {MAX_SECONDS:.0f} s, best 3 to 10 s")
    if not bool(torch.isfinite(audio).all()):
        raise RecordingError("the recording holds values that are not finite; decode it again")
    if float(audio.abs().max()) < SILENCE:
        raise RecordingError("the recording is silent; record a voice")


def _session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exception classes are not public
        raise ModelDirectoryError(f"{path}: cannot be read as an ONNX model ({error}); copy the file again") from error
