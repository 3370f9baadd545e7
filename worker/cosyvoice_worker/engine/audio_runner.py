"""Runs a batch of windows through flow and vocoder: tokens in, samples out. Tensors only; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence as Listing
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from cosyvoice_worker.engine import scheduler
from cosyvoice_worker.engine.modules.flow import Flow, Window
from cosyvoice_worker.engine.modules.vocoder import Chunk, Noise, Vocoder, VocoderState
from cosyvoice_worker.engine.randomness import Stage
from cosyvoice_worker.engine.stretch import Stretch

if TYPE_CHECKING:
    from cosyvoice_worker.engine.sequences import Sequence


@dataclass(frozen=True, slots=True)
class Carried:
    """What a sentence carries from window to window; `Sequence.audio`."""

    stretch: Stretch
    vocoder: VocoderState


class AudioRunner:
    def __init__(self, flow: Flow, vocoder: Vocoder) -> None:
        self.flow, self.vocoder = flow, vocoder
        self.sample_rate = vocoder.config.sample_rate
        self.device = flow.noise.device

    @torch.inference_mode()
    def run(self, windows: Listing[scheduler.Window]) -> list[NDArray[np.float32]]:
        """The next samples of each window's sentence. A sentence's state changes only when all of it succeeded."""
        mels = self.flow([self._row(w) for w in windows])
        carried = [copy(w.sequence.audio or self._begin(w.sequence)) for w in windows]
        chunks: list[Chunk] = []
        for row, (window, mel) in enumerate(zip(windows, mels, strict=True)):
            new = mel[:, window.sequence.boundary * self.flow.config.ratio :]
            new, stretch = carried[row].stretch.advance(new, window.final)
            carried[row] = Carried(stretch, copy(carried[row].vocoder))
            chunks.append(Chunk(carried[row].vocoder, new, window.final))
        pieces = self.vocoder.advance(chunks)
        samples = torch.cat(pieces).float().cpu().numpy()
        for window, state in zip(windows, carried, strict=True):
            window.sequence.audio = None if window.final else state
        return np.split(samples, np.cumsum([len(p) for p in pieces])[:-1])

    def _row(self, window: scheduler.Window) -> Window:
        request = window.sequence.job.request
        return Window(
            tokens=torch.tensor(window.sequence.heard[: window.stop]),
            prompt_tokens=request.voice.prompt_tokens,
            prompt_mel=request.voice.prompt_mel,
            embedding=request.voice.embedding,
            final=window.final,
            streaming=request.streaming,
        )

    def _begin(self, sequence: Sequence) -> Carried:
        return Carried(Stretch(sequence.job.request.speed), self.vocoder.begin(self._noise(sequence)))

    def _noise(self, sequence: Sequence) -> Noise:
        draws = sequence.draws(Stage.VOCODER)
        weight = self.vocoder.m_source.l_linear.weight
        width = weight.shape[1]

        def uniform(first: int, count: int) -> torch.Tensor:
            return draws.uniform(first * width, count * width, self.device).view(count, width)

        # v2 adds normal noise to each harmonic and then mixes them by a weighted sum. A weighted sum of independent
        # normals is one normal of the weights' length, so one draw along their direction does for all of them.
        direction = weight / weight.norm()

        def normal(first: int, count: int) -> torch.Tensor:
            noise: torch.Tensor = draws.normal(first, count, self.device)[:, None] * direction
            return noise

        return normal if self.vocoder.config.version == 2 else uniform
