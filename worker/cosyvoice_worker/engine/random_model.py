"""Writes a model directory with random weights in the official format: for tests and benchmarks, it says no words.

The same size, seed and version give the same files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from cosyvoice_worker.engine.modules.build import FUSED
from cosyvoice_worker.engine.modules.flow import Flow
from cosyvoice_worker.engine.modules.qwen2 import SpeechLM
from cosyvoice_worker.engine.modules.vocoder import Vocoder
from cosyvoice_worker.models.directory import ModelDirectory, ModelDirectoryError, Version, open_directory
from cosyvoice_worker.models.special_tokens import SPECIAL_TOKENS


@dataclass(frozen=True, slots=True)
class Size:
    """The dimensions that differ between sizes; head sizes and everything else are the official ones."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    encoder: int
    encoder_heads: int
    encoder_linear: int
    encoder_layers: int
    unet: int
    unet_heads: int
    unet_blocks: int
    unet_mid: int
    head_dim: int
    dit: int
    dit_depth: int
    vocoder: int


SIZES: Final[Mapping[str, Size]] = {
    # As the models of the golden recordings.
    "Tiny": Size(64, 2, 4, 2, 160, 64, 2, 128, 2, 32, 2, 1, 2, 32, 64, 2, 32),
    # A sixth of the official models: language model 83 M, flow 25 M, vocoder 5 M parameters.
    "Medium": Size(768, 10, 12, 2, 2560, 256, 4, 1024, 3, 256, 8, 2, 3, 64, 384, 12, 256),
    # As the official models of 0.5 B parameters.
    "Full": Size(896, 24, 14, 2, 4864, 512, 8, 2048, 6, 256, 8, 4, 12, 64, 1024, 22, 512),
}


def write(path: Path, size: str, seed: int, version: Version = 2) -> ModelDirectory:
    """Makes `path` a model directory. Raises ModelDirectoryError for an unknown size."""
    if size not in SIZES:
        raise ModelDirectoryError(f"there is no random model of size {size!r}; there are {', '.join(SIZES)}")
    dims = SIZES[size]
    qwen = path / "CosyVoice-BlankEN"
    qwen.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(qwen, dims, version)
    (path / f"cosyvoice{version}.yaml").write_text(_yaml(dims, version), encoding="utf-8")
    _write_onnx(path, version)
    for name in ("llm.pt", "flow.pt", "hift.pt"):
        (path / name).touch()
    directory = open_directory(path)
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        lm, flow, vocoder = (
            SpeechLM(directory.config.llm),
            Flow(directory.config.flow),
            Vocoder(directory.config.vocoder),
        )
    torch.save(_official_llm(_fill(lm, generator)), directory.llm)
    torch.save(_official_flow(_fill(flow, generator)), directory.flow)
    torch.save(_official_vocoder(_fill(vocoder, generator)), directory.vocoder)
    voice = {"random": {"embedding": torch.randn(1, directory.config.flow.speaker, generator=generator)}}
    torch.save(voice, path / "spk2info.pt")
    return open_directory(path)


# --- weights --------------------------------------------------------------------------------------------------------

_GAINS = {
    "f0_predictor.classifier.weight": 180.0,  # a pitch that moves between unvoiced and some hundred Hz
    "llm_decoder.weight": 4.4,  # peaked enough for a nucleus of some tokens
    "estimator.final_proj.weight": 1.5,
}
_STOP_BIAS = 7.0
"""v2: added to the stop ids' logits, so that a sentence ends by itself after some tokens (logits spread by 4.4)."""


def _fill(module: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Random weights that keep the scale of what flows through."""
    tables = {f"{name}.weight" for name, part in module.named_modules() if isinstance(part, nn.Embedding)}
    state: dict[str, Tensor] = {}
    for name, weight in module.state_dict().items():
        noise = torch.randn(weight.shape, generator=generator)
        if name in tables:
            state[name] = noise
        elif weight.dim() > 1:
            state[name] = noise * (_GAINS.get(name, 1.0) / math.sqrt(weight[0].numel()))
        elif name.endswith(("bias", "pos_bias_u", "pos_bias_v")):
            state[name] = noise * 0.02
        else:  # norms and Snake's alpha
            state[name] = 1 + noise * 0.02
    if isinstance(module, SpeechLM) and "llm_decoder.bias" in state:
        state["llm_decoder.bias"][module.stop_ids.start :] += _STOP_BIAS
    return state


def _official_llm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    for name, tensor in state.items():
        own = name.startswith(("llm_embedding", "llm_decoder", "speech_embedding"))
        official = name if own else f"llm.model.model.{name}"
        fused = next((fused for fused in FUSED if f".{fused}." in name), None)
        if fused is None:
            named[official] = tensor
            continue
        parts = FUSED[fused]
        if len(parts) == 3:  # queries, keys and values: kv rows are what the hidden size leaves of the rest
            total, width = tensor.shape[0], state["norm.weight"].shape[0]
            rows = [width, (total - width) // 2, (total - width) // 2]
        else:
            rows = [tensor.shape[0] // 2] * 2
        for part, piece in zip(parts, torch.split(tensor, rows), strict=True):
            named[official.replace(fused, part)] = piece.clone()
    named["llm.model.lm_head.weight"] = named["llm.model.model.embed_tokens.weight"]
    return named


def _official_flow(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace("estimator.", "decoder.estimator.", 1): tensor for name, tensor in state.items()}


def _official_vocoder(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of the convolutions that officially have weight norm, as magnitude and direction."""
    named: dict[str, Tensor] = {}
    for name, tensor in state.items():
        plain = not name.endswith(".weight") or name.startswith(("m_source.", "source_downs.", "f0_predictor.class"))
        if plain:
            named[name] = tensor
            continue
        base = name.removesuffix("weight") + "parametrizations.weight.original"
        named[base + "0"] = torch.linalg.vector_norm(tensor, dim=(1, 2), keepdim=True)
        named[base + "1"] = tensor
    return named


# --- the other files ------------------------------------------------------------------------------------------------


def _write_tokenizer(qwen: Path, dims: Size, version: Version) -> None:
    """A byte-level vocabulary without merges: a token is a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(256 - len(printable))]
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    added = {str(256 + index): {"content": token, "special": True} for index, token in enumerate(specials)}
    (qwen / "vocab.json").write_text(json.dumps({letter: index for index, letter in enumerate(letters)}))
    (qwen / "merges.txt").write_text("#version: 0.2\n")
    (qwen / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    config = {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": dims.hidden,
        "num_hidden_layers": dims.layers,
        "num_attention_heads": dims.heads,
        "num_key_value_heads": dims.kv_heads,
        "intermediate_size": dims.intermediate,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "vocab_size": 256 + len(SPECIAL_TOKENS[version]),
    }
    (qwen / "config.json").write_text(json.dumps(config))


def _write_onnx(path: Path, version: Version) -> None:
    """A speaker encoder and a speech tokenizer of a few operations each, with the official shapes."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save_model

    random = np.random.default_rng(0)

    def constant(name: str, value: object, dtype: type) -> TensorProto:
        return numpy_helper.from_array(np.asarray(value, dtype=dtype), name)

    def save(name: str, nodes: list[Any], inputs: list[Any], output: Any, constants: list[TensorProto]) -> None:
        graph = helper.make_graph(nodes, "random", inputs, [output], constants)
        save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path / name)

    info = helper.make_tensor_value_info
    save(
        "campplus.onnx",
        [
            helper.make_node("ReduceMean", ["input"], ["mean"], axes=[1], keepdims=0),
            helper.make_node("MatMul", ["mean", "weight"], ["scaled"]),
            helper.make_node("Tanh", ["scaled"], ["output"]),
        ],
        [info("input", TensorProto.FLOAT, ["B", "T", 80])],
        info("output", TensorProto.FLOAT, ["B", 192]),
        [constant("weight", random.normal(size=(80, 192)), np.float32)],
    )
    # Eight ternary digits of every four frames make a code below 3^8 = 6561.
    save(
        f"speech_tokenizer_v{version}.onnx",
        [
            helper.make_node("Conv", ["feats", "weight"], ["down"], strides=[4], kernel_shape=[4], pads=[0, 3]),
            helper.make_node("Tanh", ["down"], ["bounded"]),
            helper.make_node("Round", ["bounded"], ["digits"]),
            helper.make_node("Add", ["digits", "one"], ["positive"]),
            helper.make_node("Mul", ["positive", "powers"], ["weighted"]),
            helper.make_node("ReduceSum", ["weighted", "axis"], ["sum"], keepdims=0),
            helper.make_node("Cast", ["feats_length"], ["unused"], to=TensorProto.INT64),
            helper.make_node("Cast", ["sum"], ["indices"], to=TensorProto.INT32),
        ],
        [info("feats", TensorProto.FLOAT, [1, 128, "T"]), info("feats_length", TensorProto.INT32, [1])],
        info("indices", TensorProto.INT32, [1, "N"]),
        [
            constant("weight", random.normal(size=(8, 128, 4)) * 0.2, np.float32),
            constant("one", 1.0, np.float32),
            constant("powers", (3.0 ** np.arange(8)).reshape(1, 8, 1), np.float32),
            constant("axis", [1], np.int64),
        ],
    )


def _yaml(dims: Size, version: Version) -> str:
    return (
        _HEAD.format(d=dims, lm="Qwen2LM" if version == 2 else "CosyVoice3LM")
        + (_FLOW_2.format(d=dims) if version == 2 else _FLOW_3.format(d=dims))
        + _TAIL.format(
            d=dims,
            hift="HiFTGenerator" if version == 2 else "CausalHiFTGenerator",
            f0="ConvRNNF0Predictor" if version == 2 else "CausalConvRNNF0Predictor",
            ahead="" if version == 2 else "    conv_pre_look_right: 4\n",
            fmax="8000" if version == 2 else "null",
        )
    )


_HEAD = """\
sample_rate: 24000
token_frame_rate: 25
token_mel_ratio: 2
chunk_size: 25
llm: !new:cosyvoice.llm.llm.{lm}
    speech_token_size: 6561
    mix_ratio: [5, 15]
    sampling: !name:cosyvoice.utils.common.ras_sampling
        top_p: 0.8
        top_k: 25
        win_size: 10
        tau_r: 0.1
"""
_CFM = """\
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        cfm_params: !new:omegaconf.DictConfig
            content:
                t_scheduler: 'cosine'
                inference_cfg_rate: 0.7
"""
_FLOW_2 = (
    """\
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
    input_size: {d.encoder}
    output_size: 80
    spk_embed_dim: 192
    vocab_size: 6561
    token_mel_ratio: !ref <token_mel_ratio>
    pre_lookahead_len: 3
    encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
        output_size: {d.encoder}
        attention_heads: {d.encoder_heads}
        linear_units: {d.encoder_linear}
        num_blocks: {d.encoder_layers}
        normalize_before: True
        input_layer: 'linear'
        pos_enc_layer_type: 'rel_pos_espnet'
        selfattention_layer_type: 'rel_selfattn'
        use_cnn_module: False
        macaron_style: False
"""
    + _CFM
    + """\
        estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
            channels: [{d.unet}]
            attention_head_dim: {d.head_dim}
            n_blocks: {d.unet_blocks}
            num_mid_blocks: {d.unet_mid}
            num_heads: {d.unet_heads}
            act_fn: 'gelu'
            num_decoding_left_chunks: -1
"""
)
_FLOW_3 = (
    """\
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithDiT
    input_size: 80
    output_size: 80
    spk_embed_dim: 192
    vocab_size: 6561
    token_mel_ratio: !ref <token_mel_ratio>
    pre_lookahead_len: 3
    pre_lookahead_layer: !new:cosyvoice.transformer.upsample_encoder.PreLookaheadLayer
        channels: {d.dit}
"""
    + _CFM
    + """\
        estimator: !new:cosyvoice.flow.DiT.dit.DiT
            dim: {d.dit}
            depth: {d.dit_depth}
            heads: {d.unet_heads}
            dim_head: {d.head_dim}
            ff_mult: 2
            num_decoding_left_chunks: -1
"""
)
_TAIL = """\
hift: !new:cosyvoice.hifigan.generator.{hift}
    in_channels: 80
    base_channels: {d.vocoder}
    nb_harmonics: 8
    sampling_rate: !ref <sample_rate>
    nsf_alpha: 0.1
    nsf_sigma: 0.003
    nsf_voiced_threshold: 10
    upsample_rates: [8, 5, 3]
    upsample_kernel_sizes: [16, 11, 7]
    istft_params:
        n_fft: 16
        hop_len: 4
    resblock_kernel_sizes: [3, 7, 11]
    resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    source_resblock_kernel_sizes: [7, 7, 11]
    source_resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    lrelu_slope: 0.1
    audio_limit: 0.99
{ahead}    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.{f0}
        cond_channels: {d.vocoder}
feat_extractor: !name:matcha.utils.audio.mel_spectrogram
    n_fft: 1920
    num_mels: 80
    sampling_rate: !ref <sample_rate>
    hop_size: 480
    win_size: 1920
    fmin: 0
    fmax: {fmax}
    center: False
"""
