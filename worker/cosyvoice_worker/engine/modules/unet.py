"""v2: estimator of the flow's velocity, a U-Net in name: all stages run at the mel's own rate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_worker.engine.modules.layers import CausalConv, sinusoid
from cosyvoice_worker.models.directory import UNetConfig


class Block(nn.Module):
    """Causal convolution, layer norm, Mish."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.block = nn.Sequential(CausalConv(inputs, outputs, 3), nn.Identity(), nn.LayerNorm(outputs), nn.Mish())

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.block(x)
        return output


class ResnetBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Mish(), nn.Linear(time, outputs))
        self.block1 = Block(inputs, outputs)
        self.block2 = Block(outputs, outputs)
        self.res_conv = CausalConv(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.block1(x) + self.mlp(time)[:, None]
        output: Tensor = self.block2(h) + self.res_conv(x)
        return output


class Attention(nn.Module):
    def __init__(self, size: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        inner = heads * head_dim
        self.to_q = nn.Linear(size, inner, bias=False)
        self.to_k = nn.Linear(size, inner, bias=False)
        self.to_v = nn.Linear(size, inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, size))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (
            linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in (self.to_q, self.to_k, self.to_v)
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        output: Tensor = self.to_out(out.transpose(1, 2).flatten(2))
        return output


class Projection(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(x))


class FeedForward(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.net = nn.Sequential(Projection(size, 4 * size), nn.Identity(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.net(x)
        return output


class TransformerBlock(nn.Module):
    def __init__(self, size: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size)
        self.attn1 = Attention(size, heads, head_dim)
        self.norm3 = nn.LayerNorm(size)
        self.ff = FeedForward(size)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attn1(self.norm1(x), mask)
        output: Tensor = x + self.ff(self.norm3(x))
        return output


class TimeEmbedding(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(inputs, outputs)
        self.linear_2 = nn.Linear(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear_2(F.silu(self.linear_1(x)))
        return output


class UNet(nn.Module):
    def __init__(self, config: UNetConfig, mel: int) -> None:
        super().__init__()
        size, time = config.channels, 4 * config.channels
        self.inputs = 4 * mel

        def stage(inputs: int, *tail: nn.Module) -> nn.ModuleList:
            blocks = (TransformerBlock(size, config.heads, config.head_dim) for _ in range(config.blocks))
            return nn.ModuleList([ResnetBlock(inputs, size, time), nn.ModuleList(blocks), *tail])

        self.time_mlp = TimeEmbedding(self.inputs, time)
        self.down_blocks = nn.ModuleList([stage(self.inputs, CausalConv(size, size, 3))])
        self.mid_blocks = nn.ModuleList(stage(size) for _ in range(config.mid_stages))
        self.up_blocks = nn.ModuleList([stage(2 * size, CausalConv(size, size, 3))])
        self.final_block = Block(size, size)
        self.final_proj = CausalConv(size, mel, 1)

    def forward(self, x: Tensor, t: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, mask: Tensor | None) -> Tensor:
        """Velocity at time t.

        x, mu, cond (B, T, mel): the noised mel, the encoder's, the prompt's; speaker (B, mel); t (1,) or (B,) in 0..1;
        mask (B, T, T) bool from `layers.attention_mask`, or None where every step sees every other. -> (B, T, mel).
        All convolutions are causal, so padding to the right of a row does not reach it.
        """
        time = self.time_mlp(sinusoid(t, self.inputs).to(x.dtype))
        if mask is not None:
            mask = mask[:, None]
        x = torch.cat([x, mu, speaker[:, None].expand(-1, x.shape[1], -1), cond], dim=-1)
        skips = []
        for resnet, transformers, downsample in self.down_blocks:  # type: ignore[misc]
            x = self._stage(resnet, transformers, x, time, mask)
            skips.append(x)
            x = downsample(x)
        for resnet, transformers in self.mid_blocks:  # type: ignore[misc]
            x = self._stage(resnet, transformers, x, time, mask)
        for resnet, transformers, upsample in self.up_blocks:  # type: ignore[misc]
            x = self._stage(resnet, transformers, torch.cat([x, skips.pop()], dim=-1), time, mask)
            x = upsample(x)
        output: Tensor = self.final_proj(self.final_block(x))
        return output

    @staticmethod
    def _stage(resnet: nn.Module, transformers: nn.ModuleList, x: Tensor, time: Tensor, mask: Tensor | None) -> Tensor:
        x = resnet(x, time)
        for block in transformers:
            x = block(x, mask)
        return x
