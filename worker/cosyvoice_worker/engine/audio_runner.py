"""Runs a batch of windows through flow and vocoder: tokens in, samples out. Tensors only; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence as Listing
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from itertools import chain
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
    def __init__(self, flow: Flow, vocoder: Vocoder, lanes: int = 1) -> None:
        """`lanes`: parts of a batch that run at once, each in a thread of its own. For cores that torch leaves idle."""
        self.flow, self.vocoder = flow, vocoder
        self.sample_rate = vocoder.config.sample_rate
        self.device = flow.noise.device
        self._lanes = lanes
        self._threads = ThreadPoolExecutor(lanes, thread_name_prefix="audio") if lanes > 1 else None

    def run(self, windows: Listing[scheduler.Window]) -> list[NDArray[np.float32]]:
        """The next samples of each window's sentence. A sentence's state changes only when all of it succeeded."""
        # Neighbours in length share a lane, so that less is padding.
        order = sorted(range(len(windows)), key=lambda row: windows[row].frames)
        parts = [part.tolist() for part in np.array_split(order, min(self._lanes, len(windows)))]
        batches = [[windows[row] for row in part] for part in parts]
        run = map if self._threads is None else self._threads.map
        made = dict(zip((row for part in parts for row in part), chain(*run(self._compute, batches)), strict=True))
        for row, window in enumerate(windows):
            window.sequence.audio = None if window.final else made[row][1]
        return [made[row][0] for row in range(len(windows))]

    @torch.inference_mode()
    def _compute(self, windows: Listing[scheduler.Window]) -> list[tuple[NDArray[np.float32], Carried]]:
        """Samples, and what is carried on from there; nothing is written."""
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
        return list(zip(np.split(samples, np.cumsum([len(p) for p in pieces])[:-1]), carried, strict=True))

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
