"""The state of the work: a `Job` is an accepted request, a `Sequence` one sentence of it. No tensors are computed here.

The scheduler reads this state and decides; the runner carries the decision out and writes the state. Both work in the
engine's thread, so there are no locks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from cosyvoice_worker.engine.frontend.prompt import Prompt
from cosyvoice_worker.engine.randomness import Draws, Stage
from cosyvoice_worker.engine.requests import SynthesisRequest

TOKENS_PER_SECOND = 25
"""Speech tokens per second of audio in CosyVoice2 and 3 (`token_frame_rate`)."""
LONGEST_SILENCE = 5
"""Silent tokens in a row that are heard (official max_silent_token_num)."""
IN_FLIGHT_SENTENCES = 2
"""Sentences of one job at most that hold a slot or unfinished audio."""


class Phase(Enum):
    WAITING = auto()
    """Not begun, or put back to be computed again (then `tokens` is not empty)."""
    DECODING = auto()
    """Has a slot in the LLM batch and blocks of the KV cache."""
    FINISHING = auto()
    """All tokens are there, the slot is free; audio is still to be made."""
    DONE = auto()


@dataclass(eq=False, slots=True)
class Sequence:
    """One sentence on its way from text to audio."""

    job: Job
    index: int
    """Its place in the job; set when the job takes it."""
    text_ids: list[int]
    """The sentence's own text."""
    prompt_length: int
    """Positions of the LLM's input before the first generated token: marks, prompt and sentence text, prompt speech."""
    min_tokens: int
    """No stop before that many tokens: twice the text (official min_token_text_ratio)."""
    max_tokens: int
    """Stop there: twenty times the text (official max_token_text_ratio), or what the cache holds."""

    phase: Phase = Phase.WAITING
    tokens: list[int] = field(default_factory=list)
    """What the LLM has said."""
    heard: list[int] = field(default_factory=list)
    """Those of `tokens` that become audio: long runs of silence are cut short (Fun-CosyVoice3)."""
    silence: int = 0
    """Silent tokens at the end of `tokens`."""
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    cached: int = 0
    """Positions whose keys and values are in the cache."""
    complete_at: float = 0.0
    """When the last token came."""

    wide_speech: bool = False
    """Its tokens are computed in float32 from now on, because half precision could not hold them."""
    wide_sound: bool = False
    """So is its mel."""
    put_back: Counter[str] = field(default_factory=Counter)
    """By stage: how many times in a row there was no memory for it, not even alone."""
    retry_at: float = 0.0
    """It is left alone until then (engine's clock)."""

    boundary: int = 0
    """Heard tokens that are mel already."""
    hops: int = 0
    """Windows done; sets the size of the next one."""
    audio: Any = None
    """The audio runner's: what is carried from window to window."""

    def take(self, token: int, silent: frozenset[int]) -> None:
        """The LLM's next token. It is heard unless it prolongs a silence beyond what the official code lets pass."""
        self.tokens.append(token)
        self.silence = self.silence + 1 if token in silent else 0
        if self.silence <= LONGEST_SILENCE:
            self.heard.append(token)

    def draws(self, stage: Stage) -> Draws:
        return Draws(self.job.seed, self.index, stage)


@dataclass(eq=False, slots=True)
class Job:
    """One accepted request."""

    request: SynthesisRequest
    seed: int
    arrived: float
    """Seconds of the engine's clock."""
    prompt: Prompt
    voice_tokens: int = field(init=False)
    """Speech tokens of the voice's recording: the flow's prompt."""
    sentences: list[Sequence] = field(default_factory=list)

    open: bool = False
    """More text may come: the job does not end with the sentences that it has."""
    delivered_sentences: int = 0
    """Sentences whose audio is all out; audio of later ones waits for that."""
    delivered_seconds: float = 0.0
    first_audio: float | None = None
    """When the first audio went out: from then on the listener plays."""
    played_before: float = 0.0
    """Of `delivered_seconds`, what was played before the listener had to wait for more text."""
    ended: bool = False
    """Cancelled, failed or done: nothing more may be delivered."""

    def __post_init__(self) -> None:
        self.voice_tokens = len(self.request.voice.prompt_tokens)

    @property
    def started(self) -> bool:
        return any(s.phase is not Phase.WAITING for s in self.sentences)

    @property
    def generating(self) -> bool:
        return not self.ended and self.delivered_sentences < len(self.sentences)

    @property
    def speech_tokens(self) -> int:
        """As far as they are heard."""
        return sum(len(s.heard) for s in self.sentences)

    def in_hand(self, now: float) -> float:
        """Seconds of audio that the listener has not played yet; before the first audio, minus the time waited.

        Negative: the listener waits. The job with the least in hand is served first.
        """
        if self.first_audio is None:
            return self.arrived - now
        return self.first_audio + self.delivered_seconds - self.played_before - now

    def extend(self, sentences: list[Sequence], now: float) -> None:
        """More text has come. Where all before it is played the listener waits from now on, as at the beginning."""
        if not self.generating and self.in_hand(now) < 0:
            self.arrived, self.first_audio, self.played_before = now, None, self.delivered_seconds
        for sentence in sentences:
            sentence.index = len(self.sentences)
            self.sentences.append(sentence)

    def in_hand_at(self, sequence: Sequence, now: float) -> float:
        """The same when `sequence` comes to be played: what earlier sentences still give is in hand too."""
        ahead = (
            sum(len(s.heard) - s.boundary for s in self.sentences[self.delivered_sentences : sequence.index])
            / TOKENS_PER_SECOND
        )
        return self.in_hand(now) + ahead

    def may_start(self, sequence: Sequence) -> bool:
        return sequence.index < self.delivered_sentences + IN_FLIGHT_SENTENCES
