"""Makes the networks from a model directory. Strict: a weight that is missing or unknown is an error that names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import torch
from torch import Tensor, nn

from cosyvoice_worker.engine.frontend.recording import RecordingFrontend
from cosyvoice_worker.engine.modules.flow import Flow
from cosyvoice_worker.engine.modules.qwen2 import SpeechLM
from cosyvoice_worker.engine.modules.vocoder import Vocoder
from cosyvoice_worker.engine.requests import Voice
from cosyvoice_worker.models.directory import ModelConfig, ModelDirectory, ModelDirectoryError
from cosyvoice_worker.models.tensors import load_state_dict
from cosyvoice_worker.models.tokenizer import TextTokenizer
from cosyvoice_worker.models.voices import read_voices


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything that a model directory holds, ready to run."""

    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    """Of the language model and the flow; the vocoder is always float32."""
    lm: SpeechLM
    flow: Flow
    vocoder: Vocoder
    tokenizer: TextTokenizer
    recordings: RecordingFrontend
    """Makes voices of recordings."""
    voices: dict[str, Voice]
    """The directory's own (spk2info.pt), in its order; may be empty."""


def load(directory: ModelDirectory, device: torch.device, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Raises ModelDirectoryError, TensorFileError or TokenizerError, which name the file, the entry and the mend."""
    config = directory.config
    tokenizer = TextTokenizer(directory.vocab, directory.merges, directory.tokenizer_config, config.version)
    if tokenizer.size > config.llm.text_vocab:
        raise ModelDirectoryError(
            f"{directory.vocab} and the added tokens need {tokenizer.size} ids, "
            f"CosyVoice-BlankEN/config.json has {config.llm.text_vocab}; copy the directory again"
        )
    return LoadedModel(
        config=config,
        device=device,
        dtype=dtype,
        lm=load_lm(directory, device, dtype),
        flow=load_flow(directory, device, dtype),
        vocoder=load_vocoder(directory, device),
        tokenizer=tokenizer,
        recordings=RecordingFrontend(config.mel, directory.speech_tokenizer, directory.campplus),
        voices=load_voices(directory, tokenizer),
    )


def load_voices(directory: ModelDirectory, tokenizer: TextTokenizer) -> dict[str, Voice]:
    """The voices of spk2info.pt; empty where there is none. Raises TensorFileError."""
    if directory.voices is None:
        return {}
    flow = directory.config.flow
    records = read_voices(directory.voices, flow.speaker, flow.mel, flow.vocab)
    return {
        name: Voice(
            name=name,
            embedding=record.embedding,
            prompt_text=record.prompt_text or tokenizer.decode(list(record.prompt_text_ids), skip_special=False),
            prompt_tokens=record.prompt_tokens,
            prompt_mel=record.prompt_mel,
        )
        for name, record in records.items()
    }


FUSED: Final = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Our weight -> the official ones that it holds, stacked."""


def load_lm(directory: ModelDirectory, device: torch.device, dtype: torch.dtype) -> SpeechLM:
    """The speech language model, in eval mode. Raises ModelDirectoryError, TensorFileError."""
    # The text head is tied to the text embeddings and never computed.
    state = load_state_dict(directory.llm, dtype, skip=lambda name: name == "llm.model.lm_head.weight")
    state = {name.removeprefix("llm.model.model."): tensor for name, tensor in state.items()}
    for fused, parts in FUSED.items():
        first = parts[0]
        for name in [name for name in state if f".{first}." in name]:
            names = [name.replace(first, part) for part in parts]
            if all(part in state for part in names):
                state[name.replace(first, fused)] = torch.cat([state.pop(part) for part in names])
    return _fill(lambda: SpeechLM(directory.config.llm), state, directory.llm.name).to(device)


def load_flow(directory: ModelDirectory, device: torch.device, dtype: torch.dtype) -> Flow:
    """The flow, in eval mode. Raises ModelDirectoryError, TensorFileError."""
    state = load_state_dict(directory.flow, dtype)
    state = {name.replace("decoder.estimator.", "estimator.", 1): tensor for name, tensor in state.items()}
    # A table of rotary frequencies that follows from the configuration.
    state.pop("estimator.rotary_embed.inv_freq", None)
    return _fill(lambda: Flow(directory.config.flow), state, directory.flow.name).to(device)


def load_vocoder(directory: ModelDirectory, device: torch.device) -> Vocoder:
    """The vocoder, in eval mode and always in float32: half precision is no faster there and audibly worse.

    On a CPU the pitch is predicted in float64 (officially in v3 only): the source sums it to a phase, and what a batch
    or a window rounds differently would be summed too. Inference cards compute float64 at 1/32 to 1/64 of float32's
    rate, so there it is float32. Raises ModelDirectoryError, TensorFileError.
    """
    state = load_state_dict(directory.vocoder, torch.float64)
    state = _fold_weight_norm({name.removeprefix("generator."): tensor for name, tensor in state.items()})
    pitch = torch.float64 if device.type == "cpu" else torch.float32
    state = {name: t.to(pitch if name.startswith("f0_predictor.") else torch.float32) for name, t in state.items()}
    return _fill(lambda: Vocoder(directory.config.vocoder), state, directory.vocoder.name).to(device)


_WEIGHT_NORM = (
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    (".weight_g", ".weight_v"),
)


def _fold_weight_norm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Replaces magnitude g and direction v, in torch's new or old naming, by the weight g v / |v|."""
    for magnitude, direction in _WEIGHT_NORM:
        for name in [name for name in state if name.endswith(magnitude)]:
            base = name.removesuffix(magnitude)
            if base + direction not in state:
                continue
            g, v = state.pop(name), state.pop(base + direction)
            norm = torch.linalg.vector_norm(v, dim=tuple(range(1, v.dim())), keepdim=True)
            state[base + ".weight"] = v * (g / norm)
    return state


M = TypeVar("M", bound=nn.Module)


def _fill(make: Callable[[], M], state: Mapping[str, Tensor], file: str) -> M:
    """A module with exactly these weights. It is laid out without memory of its own and takes the tensors over."""
    with torch.device("meta"):
        module = make()
    expected = module.state_dict()
    missing = [name for name in expected if name not in state]
    unknown = [name for name in state if name not in expected]
    if missing or unknown:
        said = [f"lacks {_few(missing)}"] if missing else []
        said += [f"has unknown {_few(unknown)}"] if unknown else []
        raise ModelDirectoryError(f"{file} {' and '.join(said)}; weights and configuration belong to different models")
    for name, want in expected.items():
        if state[name].shape != want.shape:
            raise ModelDirectoryError(
                f"{file}: {name} is {tuple(state[name].shape)}, the configuration says {tuple(want.shape)}"
            )
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
