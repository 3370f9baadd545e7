"""Runs the speech language model over a mixed batch: slots, block tables, sampling. Tensors only; decides nothing.

What varies from step to step is kept in host arrays with one row per slot and goes to the device in a handful of small
copies; the sampled tokens come back in the step's only synchronisation.
"""

from __future__ import annotations

from collections.abc import Sequence as Listing

import numpy as np
import torch

from cosyvoice_worker.engine.blocks import BLOCK_SIZE, Attention, BlockPool, KVCache, blocks_for
from cosyvoice_worker.engine.decoding import Decoding, Rows
from cosyvoice_worker.engine.modules.qwen2 import SpeechLM
from cosyvoice_worker.engine.randomness import Stage
from cosyvoice_worker.engine.sequences import Sequence
from cosyvoice_worker.models.directory import SamplingConfig

V3_SILENT = frozenset((1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323))
"""Speech tokens of Fun-CosyVoice3 that are silence (official CosyVoice3Model.silent_tokens)."""
_DRAWN_AHEAD = 256
"""Tokens whose draws are made at once."""


class LlmRunner:
    def __init__(
        self,
        model: SpeechLM,
        sampling: SamplingConfig,
        *,
        slots: int,
        blocks: int,
        longest: int,
        dtype: torch.dtype,
        fixed: bool = False,
    ) -> None:
        """`longest`: positions of the longest sequence; it bounds the block table. `fixed`: a sentence's tokens do not
        depend on who else runs, not even by rounding."""
        self.model = model
        self.sampling = sampling
        self.device = model.speech_embedding.weight.device
        self.pool = BlockPool(blocks)
        self.cache = KVCache(
            layers=model.layer_count,
            blocks=blocks + 1,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            dtype=dtype,
            device=self.device,
        )
        self.half = model.norm.weight.dtype is not torch.float32
        """Whether it computes in half precision, so that float32 may hold what was not finite."""
        self._slots = list(range(slots - 1, -1, -1))
        self._tables = np.zeros((slots, blocks_for(longest) + 1), dtype=np.int64)
        self._recent = np.full((slots, sampling.window), -1, dtype=np.int64)
        self._uniforms = np.zeros((slots, _DRAWN_AHEAD, 2), dtype=np.float32)
        self._silent = V3_SILENT if model.config.version == 3 else frozenset()
        self.fixed = fixed
        self.shaped = fixed or self.device.type == "cuda"
        """Whether decoding keeps to a few shapes; on a CPU padding is work, and there is no launch to save."""
        self._decoding = Decoding(
            model, self.cache, sampling, slots=slots, columns=self._tables.shape[1], spare=blocks, fixed=fixed
        )

    def open(self, sequence: Sequence) -> None:
        """Give a sentence its slot and the blocks of its prompt and of what it has generated before (if preempted)."""
        sequence.slot = slot = self._slots.pop()
        sequence.blocks = self.pool.take(blocks_for(sequence.prompt_length + len(sequence.tokens)))
        # Beyond its own blocks a row points at its first one, so that padding never reads another sentence's values.
        self._tables[slot] = sequence.blocks[0]
        self._tables[slot, : len(sequence.blocks)] = sequence.blocks
        window = self.sampling.window
        self._recent[slot] = ([-1] * window + sequence.tokens)[-window:]
        self._draw(sequence)

    def close(self, sequence: Sequence, *, scrub: bool = False) -> None:
        """Take slot and blocks back. `scrub` blocks whose values are not finite: masked or not, they would spread."""
        if sequence.slot < 0:
            return
        if scrub:
            for block in sequence.blocks:
                self.cache.data[:, block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] = 0
        self.pool.give(sequence.blocks)
        self._slots.append(sequence.slot)
        sequence.slot, sequence.cached = -1, 0

    @torch.inference_mode()
    def step(self, prefill: Listing[Sequence], decode: Listing[Sequence]) -> list[int]:
        """The next token of each sentence (`NOT_FINITE` where there is none), in the order given.

        Every sentence must be open, and all of them `wide_speech` (computed in float32) or none. Safe to repeat for the
        same sentences, as nothing but the cache is written.
        """
        for sequence in decode:
            self._grow(sequence)
        if not self.shaped or [*prefill, *decode][0].wide_speech:
            return self._mixed(prefill, decode).tolist()
        # A prompt's length is its own, so it is no part of a shape; in a fixed batch it is computed alone.
        prompts = [[s] for s in prefill] if self.fixed else [prefill] if prefill else []
        parts = [self._mixed(prompt, []) for prompt in prompts]
        if decode:
            parts.append(self._decoding(self._rows(decode)))
        return torch.cat(parts).tolist()

    def _mixed(self, prefill: Listing[Sequence], decode: Listing[Sequence]) -> torch.Tensor:
        """Both in one pass: (n,) tokens on the device."""
        rows = [*prefill, *decode]
        lengths = [s.prompt_length + len(s.tokens) for s in prefill]
        attention, positions = self._attention(prefill, lengths, decode)
        parts = [self._prompt(s) for s in prefill]
        if decode:
            parts.append(self.model.embed_speech(self._to_device(np.array([s.tokens[-1] for s in decode]))))
        x = torch.cat(parts) if len(parts) > 1 else parts[0]
        hidden = self.model(x.float() if rows[0].wide_speech else x, positions, attention)
        if prefill:
            ends = np.cumsum([*lengths, *([1] * len(decode))]) - 1
            hidden = hidden[self._to_device(ends)]
        recent, uniforms, below = self._sampling_of(rows)
        return self._decoding.sampled(
            self.model.speech_logits(hidden),
            self._to_device(recent),
            self._to_device(uniforms),
            self._to_device(below) if below.any() else None,
        )

    def _rows(self, decode: Listing[Sequence]) -> Rows:
        past = np.array([s.cached for s in decode])
        columns = int(past.max()) // BLOCK_SIZE + 1
        tables = self._tables[np.array([s.slot for s in decode]), :columns]
        return Rows(np.array([s.tokens[-1] for s in decode]), past, tables, *self._sampling_of(decode))

    def _sampling_of(self, rows: Listing[Sequence]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(recent tokens, draws, whether it may not stop yet) of each row."""
        slots = np.array([s.slot for s in rows])
        counts = np.array([len(s.tokens) for s in rows])
        below = counts < np.array([s.min_tokens for s in rows])
        return self._recent[slots], self._uniforms[slots, counts % _DRAWN_AHEAD], below

    def accept(self, sequence: Sequence, token: int) -> None:
        """Take a token into the sentence: the next step continues from it. What the last step read is cached now."""
        sequence.cached = sequence.prompt_length + len(sequence.tokens)
        sequence.take(token, self._silent)
        recent = self._recent[sequence.slot]
        recent[:-1] = recent[1:]
        recent[-1] = token
        if len(sequence.tokens) % _DRAWN_AHEAD == 0:
            self._draw(sequence)

    def _draw(self, sequence: Sequence) -> None:
        start = len(sequence.tokens) // _DRAWN_AHEAD * _DRAWN_AHEAD
        draws = sequence.draws(Stage.SAMPLING).uniform(2 * start, 2 * _DRAWN_AHEAD)
        self._uniforms[sequence.slot] = draws.view(-1, 2).numpy()

    def _grow(self, sequence: Sequence) -> None:
        if sequence.cached == len(sequence.blocks) * BLOCK_SIZE:
            sequence.blocks += self.pool.take(1)
            self._tables[sequence.slot, len(sequence.blocks) - 1] = sequence.blocks[-1]

    def _prompt(self, sequence: Sequence) -> torch.Tensor:
        prompt = sequence.job.prompt
        text = np.array(prompt.text_ids + sequence.text_ids, dtype=np.int64)
        speech = np.array(prompt.speech_ids + sequence.tokens, dtype=np.int64)
        return self.model.prompt(self._to_device(text), self._to_device(speech))

    def _attention(
        self, prefill: Listing[Sequence], lengths: list[int], decode: Listing[Sequence]
    ) -> tuple[Attention, torch.Tensor]:
        positions = [np.arange(length) for length in lengths]
        slots = [np.full(length, s.slot) for s, length in zip(prefill, lengths, strict=True)]
        read_from = visible = None
        if decode:
            past = np.array([s.cached for s in decode])
            at = np.array([s.slot for s in decode])
            positions.append(past)
            slots.append(at)
            columns = int(past.max()) // BLOCK_SIZE + 1
            offsets = np.arange(columns * BLOCK_SIZE)
            tables = self._to_device(self._tables[at, :columns])
            read_from = (tables[:, :, None] * BLOCK_SIZE + self._to_device(offsets[:BLOCK_SIZE])).flatten(1)
            visible = (self._to_device(offsets) <= self._to_device(past)[:, None])[:, None, None]
        position = np.concatenate(positions)
        write_to = self._tables[np.concatenate(slots), position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        return (
            Attention(self.cache, self._to_device(write_to), tuple(lengths), read_from, visible),
            self._to_device(position),
        )

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)
