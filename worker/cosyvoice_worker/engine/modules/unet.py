"""v2: estimator of the flow's velocity, a U-Net in name: all stages run at the mel's own rate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_worker.engine.modules.layers import CausalConv, Conditions, sinusoid
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


class Stage(nn.ModuleList):
    """A residual block, its transformer blocks and, in the outer stages, a last convolution that the U-Net applies."""

    def __init__(self, config: UNetConfig, inputs: int, tail: bool = False) -> None:
        size = config.channels
        blocks = (TransformerBlock(size, config.heads, config.head_dim) for _ in range(config.blocks))
        parts: list[nn.Module] = [ResnetBlock(inputs, size, 4 * size), nn.ModuleList(blocks)]
        super().__init__(parts + ([CausalConv(size, size, 3)] if tail else []))

    def forward(self, x: Tensor, time: Tensor, mask: Tensor | None) -> Tensor:
        x = self[0](x, time)
        for block in self[1]:  # type: ignore[attr-defined]
            x = block(x, mask)
        return x


class UNet(nn.Module):
    def __init__(self, config: UNetConfig, mel: int) -> None:
        super().__init__()
        size = config.channels
        self.inputs = 4 * mel
        self.time_mlp = TimeEmbedding(self.inputs, 4 * size)
        self.down_blocks = nn.ModuleList([Stage(config, self.inputs, tail=True)])
        self.mid_blocks = nn.ModuleList(Stage(config, size) for _ in range(config.mid_stages))
        self.up_blocks = nn.ModuleList([Stage(config, 2 * size, tail=True)])
        self.final_block = Block(size, size)
        self.final_proj = CausalConv(size, mel, 1)

    def forward(self, x: Tensor, t: Tensor, given: Conditions) -> Tensor:
        """Velocity (B, T, mel) of the noised mel x (B, T, mel) at time t, (1,) or (B,) in 0..1.

        All convolutions are causal, so padding to the right of a row does not reach it.
        """
        time = self.time_mlp(sinusoid(t, self.inputs).to(x.dtype))
        mask = None if given.mask is None else given.mask[:, None]
        x = torch.cat([x, given.mu, given.speaker[:, None].expand(-1, x.shape[1], -1), given.cond], dim=-1)
        down, up = self.down_blocks[0], self.up_blocks[0]
        assert isinstance(down, Stage)
        assert isinstance(up, Stage)
        skip = down(x, time, mask)
        x = down[2](skip)
        for stage in self.mid_blocks:
            x = stage(x, time, mask)
        x = up[2](up(torch.cat([x, skip], dim=-1), time, mask))
        output: Tensor = self.final_proj(self.final_block(x))
        return output
