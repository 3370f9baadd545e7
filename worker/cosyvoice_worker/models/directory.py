"""Opens an official CosyVoice model directory as data: which files it has and what shape its model is.

Nothing is loaded into tensors here; `engine/modules/build.py` does that. What a directory lacks or what this worker
does not support is told at once, with every missing file named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cosyvoice_worker.models import hyperyaml
from cosyvoice_worker.models.hyperyaml import Tagged

Version = Literal[2, 3]


class ModelDirectoryError(Exception):
    """The model directory cannot be used; the text says what is wrong with which file and how to mend it."""


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Repetition-aware sampling (RAS): nucleus `top_p`/`top_k`; a token that occurs at least `window * tau` times
    among the last `window` is drawn again from the whole distribution without it."""

    top_p: float
    top_k: int
    window: int
    tau: float


@dataclass(frozen=True, slots=True)
class LlmConfig:
    """Qwen2 over text and speech tokens."""

    version: Version
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float
    rms_eps: float
    text_vocab: int
    speech_tokens: int
    """Codes of the speech tokenizer (6561); ids from here on are special."""
    mix_ratio: tuple[int, int]
    """(text, speech) tokens in turn when the text arrives as a stream."""
    sampling: SamplingConfig


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """v2: conformer over speech tokens that doubles the frame rate half-way."""

    size: int
    heads: int
    linear: int
    layers: int
    up_layers: int


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """v2: estimator of the flow's velocity."""

    channels: int
    heads: int
    head_dim: int
    blocks: int
    """Transformer blocks in each stage."""
    mid_stages: int


@dataclass(frozen=True, slots=True)
class DiTConfig:
    """v3: estimator of the flow's velocity."""

    dim: int
    depth: int
    heads: int
    head_dim: int
    ff_mult: int
    lookahead_channels: int


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """Speech tokens to mel by flow matching."""

    version: Version
    vocab: int
    embedding: int
    speaker: int
    mel: int
    lookahead: int
    """Tokens to the right that a token's mel depends on."""
    ratio: int
    """Mel frames per token."""
    chunk: int
    """Tokens per chunk of the streaming mask."""
    cfg_rate: float
    steps: int
    encoder: EncoderConfig | None
    unet: UNetConfig | None
    dit: DiTConfig | None


@dataclass(frozen=True, slots=True)
class VocoderConfig:
    """HiFT: mel to waveform with a harmonic source and an inverse STFT."""

    version: Version
    sample_rate: int
    mel: int
    channels: int
    harmonics: int
    """Overtones besides the fundamental (8)."""
    sine_amplitude: float
    noise_sigma: float
    voiced_threshold: float
    """Hz; f0 above it counts as voiced."""
    up_rates: tuple[int, ...]
    up_kernels: tuple[int, ...]
    n_fft: int
    hop: int
    res_kernels: tuple[int, ...]
    res_dilations: tuple[tuple[int, ...], ...]
    source_kernels: tuple[int, ...]
    source_dilations: tuple[tuple[int, ...], ...]
    slope: float
    limit: float
    lookahead: int
    """v3: mel frames that the first convolution sees to the right."""
    f0_channels: int


@dataclass(frozen=True, slots=True)
class MelConfig:
    """The mel spectrogram of a prompt, as the flow wants it."""

    sample_rate: int
    n_fft: int
    hop: int
    window: int
    bins: int
    fmin: float
    fmax: float | None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    version: Version
    sample_rate: int
    token_rate: int
    """Speech tokens a second (25)."""
    llm: LlmConfig
    flow: FlowConfig
    vocoder: VocoderConfig
    mel: MelConfig


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """An opened directory: every path exists, the configuration is supported."""

    path: Path
    config: ModelConfig
    llm: Path
    flow: Path
    vocoder: Path
    vocab: Path
    merges: Path
    tokenizer_config: Path
    campplus: Path
    speech_tokenizer: Path
    voices: Path | None
    """spk2info.pt, where the directory has voices."""


_YAML: dict[Version, str] = {2: "cosyvoice2.yaml", 3: "cosyvoice3.yaml"}
_QWEN = "CosyVoice-BlankEN"


def open_directory(path: str | Path) -> ModelDirectory:
    """Look at a model directory and say what it holds.

    Raises ModelDirectoryError: the path is no directory, files are missing (all of them are named), or the
    configuration asks for a model that this worker does not implement.
    """
    root = Path(path)
    if not root.is_dir():
        raise ModelDirectoryError(f"model directory {root} does not exist or is no directory; mount the model there")
    version: Version | None = next((v for v, name in _YAML.items() if (root / name).is_file()), None)
    if version is None:
        raise ModelDirectoryError(
            f"model directory {root} has neither cosyvoice2.yaml nor cosyvoice3.yaml; "
            "use a CosyVoice2 or Fun-CosyVoice3 directory, complete as published (v1 models are not supported)"
        )
    files = {
        "llm": root / "llm.pt",
        "flow": root / "flow.pt",
        "vocoder": root / "hift.pt",
        "qwen": root / _QWEN / "config.json",
        "vocab": root / _QWEN / "vocab.json",
        "merges": root / _QWEN / "merges.txt",
        "tokenizer_config": root / _QWEN / "tokenizer_config.json",
        "campplus": root / "campplus.onnx",
        "speech_tokenizer": root / f"speech_tokenizer_v{version}.onnx",
    }
    missing = [str(file.relative_to(root)) for file in files.values() if not file.is_file()]
    if missing:
        raise ModelDirectoryError(
            f"model directory {root} lacks {', '.join(missing)}; copy the complete directory as it was published"
        )
    try:
        document = hyperyaml.read(root / _YAML[version])
        qwen = json.loads(files.pop("qwen").read_text(encoding="utf-8"))
        config = _model(document, qwen, version)
    except (hyperyaml.YamlError, json.JSONDecodeError, _Unsupported) as error:
        raise ModelDirectoryError(
            f"model directory {root}: {error}; use the configuration files as they were published"
        ) from error
    voices = root / "spk2info.pt"
    return ModelDirectory(path=root, config=config, voices=voices if voices.is_file() else None, **files)


class _Unsupported(ValueError):
    pass


class _Section:
    """A mapping of the YAML with typed access that names what is missing or wrong."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    def get(self, key: str) -> Any:
        if key not in self.values:
            raise _Unsupported(f"{self.where}.{key} is missing")
        return self.values[key]

    def integer(self, key: str) -> int:
        value = self.number(key)
        if value != int(value):
            raise _Unsupported(f"{self.where}.{key} is {value!r}, not a whole number")
        return int(value)

    def number(self, key: str) -> float:
        value = self.get(key)
        try:
            return float(value)  # YAML 1.1 reads 1e-06 as text
        except (TypeError, ValueError):
            raise _Unsupported(f"{self.where}.{key} is {value!r}, not a number") from None

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise _Unsupported(f"{self.where}.{key} is {value!r}, not a list of whole numbers")
        return tuple(value)

    def integer_lists(self, key: str) -> tuple[tuple[int, ...], ...]:
        value = self.get(key)
        if not isinstance(value, list):
            raise _Unsupported(f"{self.where}.{key} is {value!r}, not a list of lists")
        return tuple(_Section(f"{self.where}.{key}", {str(i): v}).integers(str(i)) for i, v in enumerate(value))

    def section(self, key: str, *classes: str) -> _Section:
        """A nested `!new:` or `!name:` node whose class must be one of `classes`."""
        value = self.get(key)
        if not isinstance(value, Tagged) or not isinstance(value.arguments, dict):
            raise _Unsupported(f"{self.where}.{key} is not a class with arguments")
        if value.class_name not in classes:
            raise _Unsupported(f"{self.where}.{key} is {value.name}, supported is {' or '.join(classes)}")
        return _Section(f"{self.where}.{key}", value.arguments)

    def must(self, key: str, *allowed: Any) -> None:
        value = self.get(key)
        if value not in allowed:
            raise _Unsupported(f"{self.where}.{key} is {value!r}, supported is {' or '.join(map(repr, allowed))}")


def _model(document: dict[str, Any], qwen: dict[str, Any], version: Version) -> ModelConfig:
    top = _Section("yaml", document)
    return ModelConfig(
        version=version,
        sample_rate=top.integer("sample_rate"),
        token_rate=top.integer("token_frame_rate"),
        llm=_llm(top, _Section("CosyVoice-BlankEN/config.json", qwen), version),
        flow=_flow(top, version),
        vocoder=_vocoder(top, version),
        mel=_mel(top),
    )


def _llm(top: _Section, qwen: _Section, version: Version) -> LlmConfig:
    node = top.section("llm", "Qwen2LM" if version == 2 else "CosyVoice3LM")
    sampling = node.section("sampling", "ras_sampling")
    qwen.must("model_type", "qwen2")
    qwen.must("hidden_act", "silu")
    mix = node.integers("mix_ratio")
    if len(mix) != 2:
        raise _Unsupported(f"{node.where}.mix_ratio is {list(mix)}, not two numbers")
    heads = qwen.integer("num_attention_heads")
    return LlmConfig(
        version=version,
        hidden=qwen.integer("hidden_size"),
        layers=qwen.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=qwen.integer("num_key_value_heads"),
        head_dim=qwen.integer("hidden_size") // heads,
        intermediate=qwen.integer("intermediate_size"),
        rope_theta=qwen.number("rope_theta"),
        rms_eps=qwen.number("rms_norm_eps"),
        text_vocab=qwen.integer("vocab_size"),
        speech_tokens=node.integer("speech_token_size"),
        mix_ratio=(mix[0], mix[1]),
        sampling=SamplingConfig(
            top_p=sampling.number("top_p"),
            top_k=sampling.integer("top_k"),
            window=sampling.integer("win_size"),
            tau=sampling.number("tau_r"),
        ),
    )


def _flow(top: _Section, version: Version) -> FlowConfig:
    node = top.section("flow", "CausalMaskedDiffWithXvec" if version == 2 else "CausalMaskedDiffWithDiT")
    decoder = node.section("decoder", "CausalConditionalCFM")
    cfm = decoder.section("cfm_params", "DictConfig")
    content = _Section(f"{cfm.where}.content", cfm.get("content"))
    content.must("t_scheduler", "cosine")
    encoder: EncoderConfig | None = None
    unet: UNetConfig | None = None
    dit: DiTConfig | None = None
    if version == 2:
        encoder = _encoder(node.section("encoder", "UpsampleConformerEncoder"))
        unet = _unet(decoder.section("estimator", "CausalConditionalDecoder"))
    else:
        dit = _dit(decoder.section("estimator", "DiT"), node.section("pre_lookahead_layer", "PreLookaheadLayer"))
    return FlowConfig(
        version=version,
        vocab=node.integer("vocab_size"),
        embedding=node.integer("input_size"),
        speaker=node.integer("spk_embed_dim"),
        mel=node.integer("output_size"),
        lookahead=node.integer("pre_lookahead_len"),
        ratio=node.integer("token_mel_ratio"),
        chunk=top.integer("chunk_size"),
        cfg_rate=content.number("inference_cfg_rate"),
        steps=10,  # not in the YAML: the official code has it as a literal
        encoder=encoder,
        unet=unet,
        dit=dit,
    )


def _encoder(node: _Section) -> EncoderConfig:
    node.must("input_layer", "linear")
    node.must("pos_enc_layer_type", "rel_pos_espnet")
    node.must("selfattention_layer_type", "rel_selfattn")
    node.must("normalize_before", True)
    node.must("use_cnn_module", False)
    node.must("macaron_style", False)
    return EncoderConfig(
        size=node.integer("output_size"),
        heads=node.integer("attention_heads"),
        linear=node.integer("linear_units"),
        layers=node.integer("num_blocks"),
        up_layers=4,  # not in the YAML: the official code has it as a literal
    )


def _unet(node: _Section) -> UNetConfig:
    node.must("act_fn", "gelu")
    node.must("num_decoding_left_chunks", -1)
    channels = node.integers("channels")
    if len(channels) != 1:
        raise _Unsupported(f"{node.where}.channels is {list(channels)}, supported is one entry")
    return UNetConfig(
        channels=channels[0],
        heads=node.integer("num_heads"),
        head_dim=node.integer("attention_head_dim"),
        blocks=node.integer("n_blocks"),
        mid_stages=node.integer("num_mid_blocks"),
    )


def _dit(node: _Section, lookahead: _Section) -> DiTConfig:
    node.must("num_decoding_left_chunks", -1)
    return DiTConfig(
        dim=node.integer("dim"),
        depth=node.integer("depth"),
        heads=node.integer("heads"),
        head_dim=node.integer("dim_head"),
        ff_mult=node.integer("ff_mult"),
        lookahead_channels=lookahead.integer("channels"),
    )


def _vocoder(top: _Section, version: Version) -> VocoderConfig:
    node = top.section("hift", "HiFTGenerator" if version == 2 else "CausalHiFTGenerator")
    f0 = node.section("f0_predictor", "ConvRNNF0Predictor" if version == 2 else "CausalConvRNNF0Predictor")
    istft = _Section(f"{node.where}.istft_params", node.get("istft_params"))
    node.must("sampling_rate", 24000)
    return VocoderConfig(
        version=version,
        sample_rate=node.integer("sampling_rate"),
        mel=node.integer("in_channels"),
        channels=node.integer("base_channels"),
        harmonics=node.integer("nb_harmonics"),
        sine_amplitude=node.number("nsf_alpha"),
        noise_sigma=node.number("nsf_sigma"),
        voiced_threshold=node.number("nsf_voiced_threshold"),
        up_rates=node.integers("upsample_rates"),
        up_kernels=node.integers("upsample_kernel_sizes"),
        n_fft=istft.integer("n_fft"),
        hop=istft.integer("hop_len"),
        res_kernels=node.integers("resblock_kernel_sizes"),
        res_dilations=node.integer_lists("resblock_dilation_sizes"),
        source_kernels=node.integers("source_resblock_kernel_sizes"),
        source_dilations=node.integer_lists("source_resblock_dilation_sizes"),
        slope=node.number("lrelu_slope"),
        limit=node.number("audio_limit"),
        lookahead=node.integer("conv_pre_look_right") if version == 3 else 0,
        f0_channels=f0.integer("cond_channels"),
    )


def _mel(top: _Section) -> MelConfig:
    node = top.section("feat_extractor", "mel_spectrogram")
    node.must("center", False)
    return MelConfig(
        sample_rate=node.integer("sampling_rate"),
        n_fft=node.integer("n_fft"),
        hop=node.integer("hop_size"),
        window=node.integer("win_size"),
        bins=node.integer("num_mels"),
        fmin=node.number("fmin"),
        fmax=None if node.get("fmax") is None else node.number("fmax"),
    )
