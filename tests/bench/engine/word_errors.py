"""`python -m tests.bench.engine.word_errors`: how well the demo voice is understood, per precision, whole and streamed.

Word error rate of `models/DemoEnglish` on 20 everyday sentences that it was not trained on, in batches of 16, as
pocketsphinx hears them with its own English model; the mean over fixed seeds, because one seed's rate is off by some
three points. The official code's, one by one, one seed: 15.8%, streamed 19.1%; the teacher's own voice: 1.3%.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path

import numpy as np
import torch

from cosyvoice_worker.device.select import DTYPES
from cosyvoice_worker.engine.engine import Audio, Failed, Pcm
from cosyvoice_worker.engine.frontend.features import resample
from cosyvoice_worker.engine.frontend.job import Frontend
from cosyvoice_worker.engine.modules import build
from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.requests import SynthesisRequest
from cosyvoice_worker.engine.sequences import Job
from cosyvoice_worker.engine.sizing import size_for
from cosyvoice_worker.models.directory import open_directory
from cosyvoice_worker.scheduling.service import make_engine

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "models" / "DemoEnglish"
HEARD_RATE = 16_000
SENTENCES = (
    "the new doctor will visit us again soon.",
    "the weather is very nice this morning.",
    "please open the door and come inside.",
    "i would like a cup of coffee.",
    "we are going to the market tomorrow.",
    "she has a small black dog and two cats.",
    "this is a test of the speech system.",
    "the train leaves at seven in the evening.",
    "can you tell me the way to the station?",
    "my brother works in a large office.",
    "they found the old book under the table.",
    "it was a long and rainy night.",
    "good morning and welcome to the show.",
    "the children are playing in the garden.",
    "he forgot to close the window last night.",
    "thank you very much for your help.",
    "the river runs through the middle of the town.",
    "we need more time to finish the work.",
    "there are five people waiting outside.",
    "the old fox jumps over a brown dog.",
)


def load(device: str = "cpu", precision: str = "fp32") -> LoadedModel:
    """The demo voice in any precision on any device: here a CPU may compute in half precision."""
    return build.load(open_directory(MODEL), torch.device(device), DTYPES[precision])


def spoken(model: LoadedModel, seed: int, *, streaming: bool, batch: int = 16) -> list[Pcm]:
    """Each sentence as `batch` of them at once give it: (samples,) float32 at the model's rate."""
    sizing = size_for(model, max_running=batch)
    engine = make_engine(model, sizing)
    frontend = Frontend(model.tokenizer, model.config.version, sizing.longest, sizing.max_speech_tokens)
    voice = next(iter(model.voices.values()))
    heard: dict[Job, list[Pcm]] = {}
    for index, text in enumerate(SENTENCES):
        asked = SynthesisRequest(str(index), text, voice, seed=1000 * seed + index, streaming=streaming)
        job = frontend.job(asked, 0.0)
        heard[job] = []
        engine.add(job)
    while engine.jobs:
        for event in engine.step():
            if isinstance(event, Failed):
                raise RuntimeError(event.reason)
            if isinstance(event, Audio):
                heard[event.job].append(event.pcm)
    engine.release()
    return [np.concatenate(pieces) for pieces in heard.values()]


def words(pcm: Pcm, rate: int) -> list[str]:
    """What pocketsphinx hears, with the language model that it brings."""
    from pocketsphinx import Decoder

    decoder = Decoder(samprate=HEARD_RATE, loglevel="FATAL")
    narrow = resample(torch.from_numpy(pcm), rate, HEARD_RATE).clamp(-1, 1)
    decoder.start_utt()
    decoder.process_raw((narrow * 32767).to(torch.int16).numpy().tobytes(), full_utt=True)
    decoder.end_utt()
    best = decoder.hyp()
    return best.hypstr.split() if best else []


def errors(said: list[str], heard: list[str]) -> int:
    """Words that were put in, left out or replaced (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


def rate(audio: list[Pcm], sample_rate: int) -> float:
    """Errors over words of all sentences."""
    said = [re.sub(r"[^a-z ]", "", text).split() for text in SENTENCES]
    amiss = [errors(text, words(pcm, sample_rate)) for text, pcm in zip(said, audio, strict=True)]
    return sum(amiss) / sum(map(len, said))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine.word_errors", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument("--precisions", nargs="+", choices=list(DTYPES), default=["fp32"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "word_errors.json")
    chosen = parser.parse_args()
    if chosen.device == "cpu":
        torch.set_num_threads(1)
    result: dict[str, dict[str, list[float]]] = {}
    for precision in chosen.precisions:
        model = load(chosen.device, precision)
        for how in ("whole", "streamed"):
            rates = [
                rate(spoken(model, seed, streaming=how == "streamed", batch=chosen.batch), model.config.sample_rate)
                for seed in range(chosen.seeds)
            ]
            result.setdefault(precision, {})[how] = rates
            of = ", ".join(f"{r:.1%}" for r in rates)
            print(f"{precision}, {how}: {statistics.mean(rates):.1%} ({of})", flush=True)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
