"""Speed: mel frames are stretched in time before the vocoder, so that pitch stays. Works piece by piece."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a stream carries: linear interpolation between frames at `speed` source frames per output frame.

    A sentence that comes in one piece gives what the official code gives (`interpolate` to `int(frames / speed)`). In
    pieces the rate is exactly `speed`, as the total is not known; the two differ by less than a frame at the end.
    """

    speed: float
    kept: torch.Tensor | None = None
    """(mel, k): source frames from `first` on, still needed."""
    first: int = 0
    given: int = 0
    """Output frames given so far."""

    def advance(self, mel: torch.Tensor, final: bool) -> tuple[torch.Tensor, Stretch]:
        """(mel, n) next source frames -> (mel, m) next output frames, and what to carry on with."""
        if self.speed == 1.0:
            return mel, self
        if final and self.kept is None:
            return F.interpolate(mel[None], size=int(mel.shape[1] / self.speed), mode="linear")[0], self
        frames = mel if self.kept is None else torch.cat((self.kept, mel), 1)
        total = self.first + frames.shape[1]
        # Output frame j lies at source position (j + 1/2) * speed - 1/2 and needs the frame there and the next one.
        stop = int(total / self.speed) if final else max(self.given, int((total - 0.5) / self.speed - 0.5))
        position = ((torch.arange(self.given, stop, dtype=torch.float64) + 0.5) * self.speed - 0.5).clamp(min=0)
        left = position.long().clamp(max=total - 1)
        weight = (position - left).to(mel.dtype).to(mel.device, non_blocking=True)
        right = (left + 1).clamp(max=total - 1)
        left = (left - self.first).to(mel.device, non_blocking=True)
        right = (right - self.first).to(mel.device, non_blocking=True)
        out = frames[:, left] * (1 - weight) + frames[:, right] * weight
        needed = max(self.first, min(int((stop + 0.5) * self.speed - 0.5), total))
        return out, Stretch(self.speed, frames[:, needed - self.first :], needed, stop)
