"""What is compared, group by group: each gives its lines. Tolerances are those of the recordings (CPU, float32)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import torch
from torch import Tensor

from cosyvoice_worker.engine.frontend.features import flow_mel, kaldi_fbank, resample, whisper_mel
from cosyvoice_worker.engine.frontend.text import sentences
from cosyvoice_worker.engine.modules.flow import Window
from cosyvoice_worker.engine.modules.layers import Conditions
from cosyvoice_worker.engine.modules.sampling import nucleus, sample
from cosyvoice_worker.engine.modules.vocoder import Chunk, Noise
from tests.golden.driver import (
    CrossFade,
    FlowPrompt,
    LmRequest,
    generate,
    generate_from_stream,
    requests_ids,
    speak,
    speak_in_chunks,
    without_long_silence,
)
from tests.golden.recording import Line, Recording, far, wrong

LOGITS = 1e-4
RAS = 1e-5
MU, ESTIMATOR, MEL = 2e-5, 5e-5, 1e-4
F0 = {2: 1e-3, 3: 1e-4}
SOURCE, DECODE = 5e-4, 1e-4
WAVE = {2: 2e-3, 3: 1e-5}
END_TO_END = 5e-3
"""The recordings' README says 1e-4 for v3, which its own torch (2.13) reaches. Under torch 2.10 the official DiT, whose
outputs ours equal bit for bit there, differs from the recording by 2e-6, and the phase of the source sums that up."""
RMS = 5e-4
RESAMPLED, WHISPER, FBANK, EMBEDDING, PROMPT_MEL = 1e-5, 1e-4, 1e-3, 1e-4, 1e-4
"""The README names none for the prompt's features; these are about ten times what two FFT libraries differ by."""


def tokenizer(recording: Recording) -> Iterator[Line]:
    text = recording.model.tokenizer
    cases = recording.facts["tokenizer"]
    table = recording.facts["tokenizer_special"]
    yield Line("tokenizer/ids", sum(wrong(text.encode(c["text"]), c["ids"]) for c in cases), 0)
    yield Line("tokenizer/decoded", sum(text.decode(c["ids"]) != c["decoded"] for c in cases), 0)
    yield Line("tokenizer/special", sum(text.special.get(token) != number for token, number in table.items()), 0)


def language_model(recording: Recording) -> Iterator[Line]:
    lm = recording.model.lm

    def requests(ratio: int) -> list[LmRequest]:
        made = []
        for index, facts in enumerate(recording.facts["llm_requests"]):
            speech = recording(f"llm/req{index}/prompt_speech_token")[0].tolist()
            made.append(requests_ids(recording.model, facts["prompt_text"], facts["text"], speech, ratio))
        return made

    count = len(recording.facts["llm_requests"])
    single, batch = requests(2), requests(2)
    inputs = [lm.prompt(torch.tensor(r.text_ids), torch.tensor(r.speech_ids, dtype=torch.int64)) for r in single]
    yield Line("llm/input", max(far(x, recording(f"llm/req{i}/lm_input")[0]) for i, x in enumerate(inputs)), 0)
    tokens = {"single": [generate(lm, [r])[0] for r in single], "batch": generate(lm, batch)}
    for how, made in (("single", single), ("batch", batch)):
        logits = max(far(r.logits[0], recording(f"llm/req{i}/prefill_logits")) for i, r in enumerate(made))
        yield Line(f"llm/prefill logits, {how}", logits, LOGITS)
        steps = []
        for index in range(count):
            name = f"llm/req{index}/step_logp"
            if recording.has(name):
                want = recording(name)
                got = torch.stack(made[index].logits[: len(want)]).log_softmax(-1)
                # The recording was made after the ban, which does not normalise again.
                steps.append(far(got.where(want.isfinite(), 0), want.where(want.isfinite(), 0)))
        yield Line(f"llm/step log-probabilities, {how}", max(steps), LOGITS)
        amiss = sum(wrong(tokens[how][i], recording(f"llm/req{i}/tokens")) for i in range(count))
        yield Line(f"llm/greedy tokens, {how}", amiss, 0)
    free = generate(lm, requests(0))
    amiss = sum(wrong(free[i], recording(f"llm/req{i}/tokens_noban")) for i in range(count))
    yield Line("llm/greedy tokens without minimum, batch", amiss, 0)


def streamed_text(recording: Recording) -> Iterator[Line]:
    facts, encode = recording.facts["llm_bistream"], recording.model.tokenizer.encode
    speech = recording("llm/bistream/prompt_speech_token")[0].tolist()
    made: list[int] = []
    error = ""
    try:
        arriving = [token for text in facts["texts"] for token in encode(text)]
        for token in generate_from_stream(recording.model, arriving, encode(facts["prompt_text"]), speech):
            made.append(token)
    except ValueError as raised:
        error = repr(raised)
    yield Line("llm/bistream tokens", wrong(made, recording("llm/bistream/tokens")), 0)
    yield Line("llm/bistream error", error != facts.get("error", ""), 0)


def sampling(recording: Recording) -> Iterator[Line]:
    config = recording.model.config.llm.sampling
    cases = recording.facts["ras"]
    logits, recents, uniforms, results = [], [], [], []
    nuclei, fallbacks, ids_amiss = [], [], 0.0
    for index, facts in enumerate(cases):
        logp = recording(f"ras/{index}/logp")
        want, ids = recording(f"ras/{index}/nucleus_prob"), recording(f"ras/{index}/nucleus_idx")
        probabilities, found = nucleus(logp[None], config.top_p, config.top_k)
        inside = int((probabilities > 0).sum())
        nuclei.append(far(probabilities[0, :inside], want))
        ids_amiss += wrong(found[0, :inside], ids)
        history = recording(f"ras/{index}/history")[-config.window :]
        recents.append(torch.cat([history, torch.full((config.window - len(history),), -1)]))
        second = 0.0
        if facts["fallback"]:
            masked = logp.clone()
            masked[recording(f"ras/{index}/ws_after")] = -torch.inf
            fallback = recording(f"ras/{index}/fallback_prob")
            fallbacks.append(far(masked.softmax(0), fallback))
            second = middle(fallback, facts["result"])
        logits.append(logp)
        uniforms.append(torch.tensor([middle(want, facts["pick"]), second]))
        results.append(facts["result"])
    row, recent, uniform = torch.stack(logits), torch.stack(recents), torch.stack(uniforms)
    yield Line("ras/nucleus probabilities", max(nuclei), RAS)
    yield Line("ras/nucleus ids", ids_amiss, 0)
    yield Line("ras/second distribution", max(fallbacks), RAS)
    single = [int(sample(row[[i]], recent[[i]], uniform[[i]], None, config)) for i in range(len(cases))]
    yield Line("ras/result, single", wrong(single, results), 0)
    yield Line("ras/result, batch", wrong(sample(row, recent, uniform, None, config), results), 0)


def middle(weights: Tensor, index: int) -> float:
    """The uniform number whose draw from these weights is `index`, as far from its neighbours as can be."""
    wide = weights.double()
    return float((wide[:index].sum() + wide[index] / 2) / wide.sum())


def flow(recording: Recording) -> Iterator[Line]:
    network = recording.model.flow
    noise = recording("flow/rand_noise")[0]
    yield Line("flow/noise", far(network.noise[: noise.shape[1]].T, noise), 0)

    windows, wanted = [], []
    encoded, speakers, mels, calls, times = [], [], [], [], []
    for name, facts in recording.cases("flow"):
        window = flow_window(recording, name, len(recording(f"{name}/token")[0]), facts["finalize"], facts["streaming"])
        want = recording(f"{name}/mel")[0]
        given = network.encode([window]).given
        encoded.append(far(given.mu[0].T, recording(f"{name}/mu")[0]))
        speakers.append(far(given.speaker, recording(f"{name}/spks")))
        mels.append(far(network([window])[0], want))
        windows.append(window)
        wanted.append(want)
        for call in (f"{name}/est0", f"{name}/est9"):
            if recording.has(f"{call}/x"):
                calls.append(estimator_call(recording, call, given))
        if recording.has(f"{name}/t_all"):
            times.append(far(network.times, recording(f"{name}/t_all")[:, 0]))
    yield Line("flow/mu", max(encoded), MU)
    yield Line("flow/speaker", max(speakers), MU)
    yield Line("flow/estimator", max(calls), ESTIMATOR)
    yield Line("flow/times", max(times), 0)
    yield Line("flow/mel, single", max(mels), MEL)
    batch = network(windows)
    yield Line("flow/mel, batch", max(far(got, want) for got, want in zip(batch, wanted, strict=True)), MEL)

    chunks = recording.facts["flow_stream"]
    names = [f"chunk{i}" for i in range(len(chunks) - 1)] + ["final"]
    windows = [flow_window(recording, "flow/stream", c["n_tokens_in"], c["finalize"], c["streaming"]) for c in chunks]
    wanted = [recording(f"flow/stream/{name}/mel_full")[0] for name in names]
    single = [network([window])[0] for window in windows]
    yield Line("flow/stream, single", max(far(got, want) for got, want in zip(single, wanted, strict=True)), MEL)
    batch = network(windows)
    yield Line("flow/stream, batch", max(far(got, want) for got, want in zip(batch, wanted, strict=True)), MEL)


def flow_window(recording: Recording, name: str, tokens: int, final: bool, streaming: bool) -> Window:
    return Window(
        recording(f"{name}/token")[0, :tokens],
        recording(f"{name}/prompt_token")[0],
        recording(f"{name}/prompt_feat")[0],
        recording(f"{name}/embedding")[0],
        final,
        streaming,
    )


def estimator_call(recording: Recording, call: str, given: Conditions) -> float:
    x, mu, cond = (recording(f"{call}/{part}").transpose(1, 2) for part in ("x", "mu", "cond"))
    mask = None if given.mask is None else given.mask.repeat(2, 1, 1)
    conditions = Conditions(mu, cond, recording(f"{call}/spks"), mask)
    out = recording.model.flow.estimator(x, recording(f"{call}/t")[:1], conditions)
    return far(out.transpose(1, 2), recording(f"{call}/out"))


def recorded_noise(recording: Recording, facts: dict[str, int], frames: int) -> Noise:
    """The noise of a unit case: v2 drew it under a seed, v3 from a buffer made under seed 99."""
    samples = frames * recording.model.vocoder.frame
    if recording.version == 2:
        return v2_noise(facts["seed"], samples)
    buffer = torch.rand(1, 432000, 9, generator=torch.Generator().manual_seed(99), device="cpu")[0]
    buffer = buffer.to(torch.get_default_device())
    return lambda first, count: buffer[first : first + count]


def v2_noise(seed: int, samples: int) -> Noise:
    """Draws as the official code does: initial phases first (which nothing hears), then the noise, in the memory order
    of the transposed tensor that it is drawn like."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        torch.rand(1, 9)
        noise = torch.randn_like(torch.empty(1, 9, samples).transpose(1, 2))[0]
    noise = noise.to(torch.get_default_device())
    return lambda first, count: noise[first : first + count]


def vocoder(recording: Recording) -> Iterator[Line]:
    network, version = recording.model.vocoder, recording.version
    noisy, silent, suffix = ("seeded", "nonoise", "") if version == 2 else ("final", "final_nonoise", "_final")
    pitches, sources, decoded, waves, quiet, partial = [], [], [], [], [], []
    mels, noises, wanted = [], [], []
    for name, facts in recording.cases("hift"):
        mel, want = recording(f"{name}/mel"), recording(f"{name}/wav_{noisy}")[0]
        frames = mel.shape[2]
        noise = recorded_noise(recording, facts, frames)
        pitch, source = recording(f"{name}/f0{suffix}"), recording(f"{name}/source_{noisy}")[0]
        pitches.append(far(network.f0_predictor(mel, lambda x: x), pitch))
        before = torch.zeros(1, 9, dtype=torch.float64)
        drawn = noise(0, frames * network.frame)[None]
        sources.append(far(network.m_source(pitch, before, torch.tensor([True]), drawn)[0], source))
        decoded.append(far(network.decode(mel, source, [frames])[0], want))
        waves.append(far(network([mel[0]], [noise])[0], want))
        quiet.append(
            far(
                network([mel[0]], [lambda first, count: torch.zeros(count, 9)])[0], recording(f"{name}/wav_{silent}")[0]
            )
        )
        if recording.has(f"{name}/wav_nonfinal"):
            part = recording(f"{name}/wav_nonfinal")[0]
            begun = network.advance([Chunk(network.begin(noise), mel[0], final=False)])[0]
            partial.append(far(begun[: len(part)], part))
        mels.append(mel[0])
        noises.append(noise)
        wanted.append(want)
    yield Line("hift/f0", max(pitches), F0[version])
    yield Line("hift/source given f0", max(sources), SOURCE)
    yield Line("hift/wave given mel and source", max(decoded), DECODE)
    yield Line("hift/wave, single", max(waves), WAVE[version])
    yield Line("hift/wave without noise, single", max(quiet), WAVE[version])
    batch = network(mels, noises)
    yield Line("hift/wave, batch", max(far(a, b) for a, b in zip(batch, wanted, strict=True)), WAVE[version])
    if partial:
        yield Line("hift/wave of a stream that goes on", max(partial), WAVE[version])
    if recording.has("hift/chunk_mel"):
        yield from vocoder_chunks(recording)


def vocoder_chunks(recording: Recording) -> Iterator[Line]:
    """v2: the official way to join chunks, from the same networks."""
    mel, cuts = recording("hift/chunk_mel")[0], recording.facts["hift_chunk"]["cuts"]
    joiner = CrossFade(recording.model.vocoder)
    yield Line("hift/cross-fade window", far(joiner.window, recording("hift/speech_window")), 1e-12)
    differences = []
    for index in range(len(cuts) - 1):
        wave = joiner.join(mel[:, cuts[index] : cuts[index + 1]], final=index == len(cuts) - 2)
        differences.append(far(wave, recording(f"hift/chunk{index}/wav_out")[0]))
    yield Line("hift/chunks joined the official way", max(differences), WAVE[2])


def prompt_features(recording: Recording) -> Iterator[Line]:
    with torch.device("cpu"):  # where features are always made
        yield from _prompt_features(recording)


def _prompt_features(recording: Recording) -> Iterator[Line]:
    frontend = recording.model.recordings
    features: dict[str, list[float]] = {}

    def note(name: str, difference: float) -> None:
        features.setdefault(name, []).append(difference)

    for prompt in ("24", "44"):
        name = f"frontend/p{prompt}"
        narrow, wide = recording(f"{name}/wav16k")[0], recording(f"{name}/wav24k")[0]
        if recording.prompt_file(prompt).is_file():
            audio, rate = recording.prompt_audio(prompt)
            note("resampled", far(resample(audio, rate, 16000), narrow))
            note("resampled", far(resample(audio, rate, 24000), wide))
        note("speech tokens", wrong(frontend.speech_tokens(narrow), recording(f"{name}/speech_token")[0]))
        note("embedding", far(frontend.embedding(narrow), recording(f"{name}/embedding")[0]))
        note("mel", far(flow_mel(wide, frontend.mel), recording(f"{name}/speech_feat")[0]))
        if recording.has(f"{name}/fbank"):
            note("whisper mel", far(whisper_mel(narrow), recording(f"{name}/whisper_mel")[0]))
            note("fbank", far(kaldi_fbank(narrow), recording(f"{name}/fbank")))
        kept = recording.facts[f"frontend_p{prompt}"]["flow_prompt_speech_token"][0][1]
        voice = recording.prompts[prompt]
        note("trimmed", abs(len(voice.prompt_tokens) - kept) + abs(len(voice.prompt_mel) - 2 * kept))
    tolerances = {
        "resampled": RESAMPLED,
        "whisper mel": WHISPER,
        "fbank": FBANK,
        "speech tokens": 0,
        "embedding": EMBEDDING,
        "mel": PROMPT_MEL,
        "trimmed": 0,
    }
    for name, tolerance in tolerances.items():
        if name in features:
            yield Line(f"frontend/{name}", max(features[name]), tolerance)


def end_to_end(recording: Recording) -> Iterator[Line]:
    for name, facts in recording.facts["e2e"].items():
        yield from end_to_end_case(recording, name, facts)


def end_to_end_case(recording: Recording, name: str, facts: dict[str, object]) -> Iterator[Line]:
    """Text to wave in one mode, whole or streamed."""
    model, texts = recording.model, recording.facts["e2e_texts"]
    version = recording.version
    case = "zero_shot" if name.startswith("zero_shot") else "instruct2" if name.startswith("instruct2") else name
    case = case.removesuffix("_second").removesuffix("_stream")
    # v3 needs the system prompt that its zero-shot prompt text begins with.
    mode = {"long": texts["long_mode"], "multi": "cross_lingual" if version == 2 else "zero_shot"}.get(case, case)
    prompt = recording.prompts["44" if name.endswith("p44") or case == "vc" else "24"]
    if case == "vc":
        yield from voice_conversion(recording, facts)
        return
    if mode == "sft":
        preset = next(iter(model.voices.values()))
        words, speech, flow_prompt = "", [], FlowPrompt(preset.prompt_tokens, preset.prompt_mel, preset.embedding)
    else:
        words = {"zero_shot": texts["zero_shot_prompt_text"], "instruct2": texts["instruct"]}.get(mode, "")
        speech = prompt.prompt_tokens.tolist() if mode == "zero_shot" else []
        flow_prompt = FlowPrompt(prompt.prompt_tokens, prompt.prompt_mel, prompt.embedding)

    text = str(texts[case])
    # The official frontend leaves a text with control tokens alone and whole; the engine's does not.
    spoken = [text] if "<|" in text else sentences(text, "", lambda part: len(model.tokenizer.encode(part)))
    made = generate(model.lm, [requests_ids(model, words, sentence, speech) for sentence in spoken])
    made = [without_long_silence(tokens, version) for tokens in made]
    yield Line(f"e2e/{name} tokens", wrong(list(chain(*made)), recording(f"e2e/{name}/tokens")), 0)
    if not recording.has(f"e2e/{name}/wav") and case != "multi":
        return

    chunks: list[Tensor] = []
    enough = recording("e2e/multi/wav_head").shape[1] if case == "multi" else float("inf")
    for tokens in made:
        if sum(map(len, chunks)) >= enough:
            break
        ids = torch.tensor(tokens)
        if facts["stream"]:
            chunks += speak_in_chunks(model, ids, flow_prompt, int(str(facts["hop_before"])))
            continue
        if facts["noise_free"]:
            speed = float(name.split("speed")[1]) if "speed" in name else 1.0
            chunks.append(speak(model, ids, flow_prompt, speed))
        else:
            frames = 2 * len(ids)
            noise = recorded_noise(recording, {"seed": int(str(facts["seed"]))}, frames)
            chunks.append(speak(model, ids, flow_prompt, noise=noise))
    wave = torch.cat(chunks)
    if case == "multi":
        wave = wave[: recording("e2e/multi/wav_head").shape[1]]
        want = recording("e2e/multi/wav_head")[0]
    else:
        want = recording(f"e2e/{name}/wav")[0]
        lengths = [len(chunk) for chunk in chunks]
        yield Line(f"e2e/{name} chunks", wrong(lengths, facts["chunks"]), 0)  # type: ignore[arg-type]
    yield Line(f"e2e/{name} wave", far(wave, want), END_TO_END)
    yield Line(f"e2e/{name} wave, RMS", rms(wave, want), RMS)


def voice_conversion(recording: Recording, facts: dict[str, object]) -> Iterator[Line]:
    """Speech tokens of one recording in the voice of another; officially the prompt's mel is not cut to its tokens."""
    name = "frontend/p44"
    with torch.device("cpu"):  # where features are always made
        tokens = recording.model.recordings.speech_tokens(recording("frontend/p24/wav16k")[0])
        prompt = FlowPrompt(
            recording.model.recordings.speech_tokens(recording(f"{name}/wav16k")[0]),
            flow_mel(recording(f"{name}/wav24k")[0], recording.model.config.mel),
            recording.prompts["44"].embedding,
        )
    wave, want = speak(recording.model, tokens, prompt), recording("e2e/vc/wav")[0]
    yield Line("e2e/vc wave", far(wave, want), END_TO_END)
    yield Line("e2e/vc wave, RMS", rms(wave, want), RMS)


def rms(one: Tensor, other: Tensor) -> float:
    return float((one - other.to(one.device)).square().mean().sqrt()) if one.shape == other.shape else float("inf")


GROUPS: dict[str, Callable[[Recording], Iterator[Line]]] = {
    "tokenizer": tokenizer,
    "llm": language_model,
    "bistream": streamed_text,
    "ras": sampling,
    "flow": flow,
    "hift": vocoder,
    "frontend": prompt_features,
    "e2e": end_to_end,
}
