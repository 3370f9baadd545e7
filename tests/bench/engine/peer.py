"""The official CosyVoice2 code, as PyPI's `cosyvoice-minicpmo` carries it, driven as its users do: `model.tts`.

Runs in a virtual environment of its own (requirements/bench-peer.txt) and therefore imports nothing of this project.
It answers each line of JSON on stdin with one on stdout: first the model, its size and the voice, then runs.

As shipped the package cannot synthesise; repaired here, and nothing else is changed:
- `matcha.utils` imports hydra and lightning, which serve its training: its `__init__` and its logger are left out;
- the encoder's look-ahead and upsampling have 512 channels written in: they follow the encoder's size;
- `CosyVoice2Model` drops its language model: it is set and loaded;
- `Qwen2Encoder` reads its first weights from files of their own, which the model's `llm.pt` then replaces: only that is
  read.
Its other fault, that a sentence which ends too early is drawn again up to a hundred times, cannot show: the bench's
weights never end a sentence.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import logging
import os
import queue
import sys
import threading
import time
import types
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the package prints is no answer
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    config = json.loads(sys.stdin.readline())
    torch.set_num_threads(config["threads"])
    model = load(Path(config["model_dir"]), config["size"])
    voice = {name: torch.tensor(value, dtype=getattr(torch, dtype)) for name, (value, dtype) in config["voice"].items()}
    print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads()}), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        torch.set_num_threads(order["threads"])
        print(json.dumps(run(model, voice, order["texts"], order["workers"], order["streaming"])), file=answers)


def run(
    model: Any, voice: dict[str, Any], texts: list[list[int]], workers: int, streaming: bool
) -> list[dict[str, Any]]:
    """All `texts` (token ids) arrive now and `workers` Python threads speak them in turn.

    Of each: seconds from now to its first audio and to its end, and its samples.
    """
    waiting: queue.SimpleQueue[tuple[int, list[int]]] = queue.SimpleQueue()
    for numbered in enumerate(texts):
        waiting.put(numbered)
    results: list[dict[str, Any]] = [{} for _ in texts]
    began = time.monotonic()

    def work() -> None:
        while True:
            try:
                index, text = waiting.get_nowait()
            except queue.Empty:
                return
            first, samples = None, 0
            for piece in model.tts(text=torch.tensor([text], dtype=torch.int32), stream=streaming, **voice):
                first = first or time.monotonic() - began
                samples += piece["tts_speech"].shape[1]
            results[index] = {"first": first, "end": time.monotonic() - began, "samples": samples}

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def load(path: Path, size: dict[str, int]) -> Any:
    """The official modules with the dimensions of `cosyvoice_worker.engine.random_model.Size` and `path`'s weights."""
    _skip_init("matcha.utils")
    sys.modules["matcha.utils.pylogger"] = types.ModuleType("pylogger")
    sys.modules["matcha.utils.pylogger"].__dict__["get_pylogger"] = logging.getLogger
    from cosyvoice.cli.model import CosyVoice2Model
    from cosyvoice.flow.decoder import CausalConditionalDecoder
    from cosyvoice.flow.flow import CausalMaskedDiffWithXvec
    from cosyvoice.flow.flow_matching import CausalConditionalCFM
    from cosyvoice.hifigan.f0_predictor import ConvRNNF0Predictor
    from cosyvoice.hifigan.generator import HiFTGenerator
    from cosyvoice.llm.llm import Qwen2Encoder, Qwen2LM
    from cosyvoice.transformer import upsample_encoder
    from cosyvoice.utils.common import ras_sampling
    from omegaconf import DictConfig
    from transformers import Qwen2Config, Qwen2ForCausalLM

    width = size["encoder"]
    upsample_encoder.PreLookaheadLayer = _with_channels(upsample_encoder.PreLookaheadLayer, width)
    upsample_encoder.Upsample1D = _with_channels(upsample_encoder.Upsample1D, width)

    qwen = Qwen2Encoder.__new__(Qwen2Encoder)
    torch.nn.Module.__init__(qwen)
    qwen.model = Qwen2ForCausalLM(Qwen2Config.from_pretrained(path / "CosyVoice-BlankEN"))
    llm = Qwen2LM(
        llm_input_size=size["hidden"],
        llm_output_size=size["hidden"],
        speech_token_size=6561,
        llm=qwen,
        sampling=partial(ras_sampling, top_p=0.8, top_k=25, win_size=10, tau_r=0.1),
    )
    encoder = upsample_encoder.UpsampleConformerEncoder(
        input_size=width,
        output_size=width,
        attention_heads=size["encoder_heads"],
        linear_units=size["encoder_linear"],
        num_blocks=size["encoder_layers"],
        normalize_before=True,
        input_layer="linear",
        pos_enc_layer_type="rel_pos_espnet",
        selfattention_layer_type="rel_selfattn",
        use_cnn_module=False,
        macaron_style=False,
        static_chunk_size=25,
    )
    estimator = CausalConditionalDecoder(
        in_channels=320,
        out_channels=80,
        channels=[size["unet"]],
        dropout=0.0,
        attention_head_dim=size["head_dim"],
        n_blocks=size["unet_blocks"],
        num_mid_blocks=size["unet_mid"],
        num_heads=size["unet_heads"],
        act_fn="gelu",
        static_chunk_size=50,
        num_decoding_left_chunks=-1,
    )
    cfm = {"sigma_min": 1e-06, "solver": "euler", "t_scheduler": "cosine", "training_cfg_rate": 0.2}
    cfm |= {"inference_cfg_rate": 0.7, "reg_loss_type": "l1"}
    flow = CausalMaskedDiffWithXvec(
        input_size=width,
        output_size=80,
        spk_embed_dim=192,
        vocab_size=6561,
        input_frame_rate=25,
        token_mel_ratio=2,
        pre_lookahead_len=3,
        encoder=encoder,
        decoder=CausalConditionalCFM(
            in_channels=240, n_spks=1, spk_emb_dim=80, cfm_params=DictConfig(cfm), estimator=estimator
        ),
    )
    hift = HiFTGenerator(
        in_channels=80,
        base_channels=size["vocoder"],
        nb_harmonics=8,
        sampling_rate=24000,
        nsf_alpha=0.1,
        nsf_sigma=0.003,
        nsf_voiced_threshold=10,
        upsample_rates=[8, 5, 3],
        upsample_kernel_sizes=[16, 11, 7],
        istft_params={"n_fft": 16, "hop_len": 4},
        resblock_kernel_sizes=[3, 7, 11],
        resblock_dilation_sizes=[[1, 3, 5], [1, 3, 5], [1, 3, 5]],
        source_resblock_kernel_sizes=[7, 7, 11],
        source_resblock_dilation_sizes=[[1, 3, 5], [1, 3, 5], [1, 3, 5]],
        lrelu_slope=0.1,
        audio_limit=0.99,
        f0_predictor=ConvRNNF0Predictor(num_class=1, in_channels=80, cond_channels=size["vocoder"]),
    )
    model = CosyVoice2Model(None, flow, hift, False)
    model.load(None, path / "flow.pt", path / "hift.pt")
    llm.load_state_dict(torch.load(path / "llm.pt", map_location="cpu", weights_only=True), strict=True)
    model.llm = llm.to(model.device).eval()
    return model


def _skip_init(package: str) -> None:
    """Make `package` importable without running its `__init__`, for the sake of its submodules."""
    parent = importlib.import_module(package.rpartition(".")[0])
    spec = importlib.machinery.PathFinder.find_spec(package, parent.__path__)
    assert spec is not None
    module = types.ModuleType(package)
    module.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[package] = module


def _with_channels(layer: type, width: int) -> Any:
    """`layer` with `channels` (and `out_channels`) of `width`, whatever it is asked for."""

    class Layer(layer):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            super().__init__(**{name: width if name.endswith("channels") else value for name, value in given.items()})

    return Layer


if __name__ == "__main__":
    main()
