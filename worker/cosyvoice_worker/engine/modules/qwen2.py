"""The speech language model: Qwen2 that reads text and writes speech tokens.

The caller owns batching and the KV cache: rows of all requests come flat, and attention is a callable that knows which
keys belong to which row. Nothing here synchronises with the host.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_worker.engine.modules.layers import in_float32
from cosyvoice_worker.models.directory import LlmConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q (N, heads, d), k (N, kv_heads, d), v (N, kv_heads, d)) -> (N, heads, d); keys come rotated, unscaled."""


class Attention(nn.Module):
    def __init__(self, config: LlmConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        width = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv_proj = nn.Linear(config.hidden, width)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        qkv = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        out = attend(self.layer, _rotate(q, rotation), _rotate(k, rotation), v)
        output: Tensor = self.o_proj(out.reshape(x.shape[0], -1))
        return output


class Mlp(nn.Module):
    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden, 2 * config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        output: Tensor = self.down_proj(F.silu(gate) * up)
        return output


class Layer(nn.Module):
    def __init__(self, config: LlmConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden, config.rms_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RmsNorm(config.hidden, config.rms_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, attend)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class SpeechLM(nn.Module):
    """Speech tokens given text: embeddings in, logits over speech tokens out. The text head is never computed.

    v2 and v3 differ in where the marks live: v2 has its own table for sos and task, v3 takes them from the speech
    table, and has more ids that mean stop.
    """

    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.config = config
        specials = 3 if config.version == 2 else 200
        self.vocab_size = config.speech_tokens + specials
        self.stop_ids = range(config.speech_tokens, self.vocab_size)
        """Any of these ends the sentence."""
        self.eos_id = config.speech_tokens if config.version == 2 else config.speech_tokens + 1
        self.fill_id = config.speech_tokens + (2 if config.version == 2 else 3)
        """Asks for more text when the text arrives as a stream (bistream)."""
        self.layer_count, self.heads = config.layers, config.heads
        self.kv_heads, self.head_dim = config.kv_heads, config.head_dim
        self.embed_tokens = nn.Embedding(config.text_vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.norm = RmsNorm(config.hidden, config.rms_eps)
        self.llm_embedding = nn.Embedding(2, config.hidden) if config.version == 2 else None
        self.speech_embedding = nn.Embedding(self.vocab_size, config.hidden)
        self.llm_decoder = nn.Linear(config.hidden, self.vocab_size, bias=config.version == 2)
        channel = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu")
        self.frequencies: Tensor
        self.register_buffer("frequencies", 1 / config.rope_theta ** (channel / config.head_dim), persistent=False)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """x (N, H) embeddings of all rows flat, positions (N,) int64 in their sequences -> hidden states (N, H).

        float32 embeddings are computed in float32, whatever the weights are.
        """
        angle = positions[:, None].float() * self.frequencies.float()
        rotation = angle.cos()[:, None], angle.sin()[:, None]
        wide = x.dtype != self.norm.weight.dtype
        for layer in self.layers:
            x = in_float32(layer, x, rotation, attend) if wide else layer(x, rotation, attend)
        output: Tensor = self.norm(x)
        return output

    def speech_logits(self, hidden: Tensor) -> Tensor:
        """(B, H) hidden states -> (B, vocab_size) float32 logits."""
        wide = hidden.dtype != self.llm_decoder.weight.dtype
        logits: Tensor = in_float32(self.llm_decoder, hidden) if wide else self.llm_decoder(hidden)
        return logits.float()

    def embed_text(self, ids: Tensor) -> Tensor:
        """(...,) int64 text ids -> (..., H)."""
        output: Tensor = self.embed_tokens(ids)
        return output

    def embed_speech(self, ids: Tensor) -> Tensor:
        """(...,) int64 speech ids -> (..., H)."""
        output: Tensor = self.speech_embedding(ids)
        return output

    def prompt(self, text_ids: Tensor, speech_ids: Tensor) -> Tensor:
        """[sos, prompt text + text, task, prompt speech]: (T,), (P,) int64 -> (T + P + 2, H)."""
        if self.llm_embedding is not None:
            marks = self.llm_embedding.weight
        else:
            first = self.config.speech_tokens
            marks = self.speech_embedding.weight[first : first + 3 : 2]
        return torch.cat([marks[:1], self.embed_text(text_ids), marks[1:], self.embed_speech(speech_ids)])


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding, halves paired (the Qwen2 and Llama layout). x (N, heads, d)."""
    cos, sin = rotation
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class DenseCache:
    """Keys and values of sequences in plain growing tensors: the simplest `Attend`, for tests and reference runs.

    One call of the model may hold any number of rows of each sequence; `rows` says whose each row is, in order.
    """

    def __init__(self, layers: int, sequences: int) -> None:
        self._keys: list[list[Tensor | None]] = [[None] * sequences for _ in range(layers)]
        self._values: list[list[Tensor | None]] = [[None] * sequences for _ in range(layers)]

    def attend(self, rows: list[int]) -> Attend:
        """rows[i] is the sequence of flat row i; rows of a sequence are adjacent and in order of position."""
        spans: list[tuple[int, int, int]] = []
        for index, sequence in enumerate(rows):
            if spans and spans[-1][0] == sequence:
                spans[-1] = (sequence, spans[-1][1], index + 1)
            else:
                spans.append((sequence, index, index + 1))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            outputs = []
            for sequence, start, stop in spans:
                keys = self._grow(self._keys[layer], sequence, k[start:stop])
                values = self._grow(self._values[layer], sequence, v[start:stop])
                new, total = stop - start, keys.shape[0]
                allowed = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
                repeat = q.shape[1] // k.shape[1]
                out = F.scaled_dot_product_attention(
                    q[start:stop].transpose(0, 1),
                    keys.repeat_interleave(repeat, dim=1).transpose(0, 1),
                    values.repeat_interleave(repeat, dim=1).transpose(0, 1),
                    attn_mask=allowed,
                )
                outputs.append(out.transpose(0, 1))
            return torch.cat(outputs)

        return attend

    @staticmethod
    def _grow(store: list[Tensor | None], sequence: int, new: Tensor) -> Tensor:
        old = store[sequence]
        grown = new if old is None else torch.cat([old, new])
        store[sequence] = grown
        return grown
