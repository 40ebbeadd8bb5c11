#!/usr/bin/env python3
"""Makes the training parts and the test set: sentences, voices, augmentation, log-mel features.

  make_data.py train --out DATA --parts 0:12     parts 0..11, 400 utterances each: DATA/train-00000.{npy,jsonl}, ...
  make_data.py train --out DATA --parts 100:102  the same by the slow natural voices alone
  make_data.py train --out DATA --parts 200:230  sentences by the quick voices alone
  make_data.py test  --out DATA                  DATA/test/*.wav (16 kHz) and DATA/test.jsonl
  make_data.py calibration --out DATA            DATA/calibration/*.wav: voices of training, new sentences, nothing added
  make_data.py noise --out DATA                  DATA/noise.npy, the noises that train.py mixes in
  make_data.py check --nemo FILE.nemo --wav F    compares the features below with NeMo's own preprocessor

A part depends only on its number (and on the versions of the voices), so a part made again on another machine is the same
data; only Piper draws its noise per process, so its waveforms depend on where a part was begun too.

A .npy holds float16 [frames of all utterances, 80]: natural log of the mel energies as NeMo's preprocessor has them before
its normalization per utterance, 10 ms per frame. The .jsonl has one line per utterance: `at` and `frames` in the .npy, `text`,
`voice`, `domain`, `seconds`, and `segments` [[first word, end word, start, end]] where the engine tells the times of words.
"""
import argparse
import json
import os
import random

import librosa
import numpy as np
import scipy.signal
import soxr

import texts
import voices

RATE, PART = voices.RATE, 400
MIXES = {
    "short": {"words": 0.55, "numbers": 0.15, "commands": 0.15, "names": 0.15},
    "spoken": {"words": 0.10, "numbers": 0.18, "dates": 0.18, "times": 0.14, "prices": 0.12, "commands": 0.18, "names": 0.10},
    "wide": {"words": 0.04, "numbers": 0.11, "dates": 0.11, "times": 0.08, "prices": 0.08, "commands": 0.12, "names": 0.06,
             "plain": 0.15, "general": 0.25},
    "sentences": {"plain": 0.2, "general": 0.8},
}
MAX_SECONDS = 7.0


def mix_of_part(part):
    """The curriculum: short utterances first, then the spoken domain, then general sentences too."""
    return "short" if part < 8 else "spoken" if part < 24 else "wide" if part < 200 else "sentences"


def voice_of_part(r, part):
    if 100 <= part < 200:
        return r.choice(voices.NATURAL)
    return voices.train_voice(r, voices.TRAIN if part < 200 else voices.QUICK)


MEL = librosa.filters.mel(sr=RATE, n_fft=512, n_mels=80, fmin=0, fmax=RATE / 2, norm="slaney").astype(np.float32)
WINDOW = np.pad(scipy.signal.get_window("hann", 400, fftbins=False), 56).astype(np.float32)


def log_mel(audio):
    """float32 [samples // 160, 80]: as FilterbankFeatures of NeMo (pre-emphasis 0.97, symmetric Hann of 400 in 512, zero
    padding, power, slaney mel, log(x + 2^-24)), before normalization; the frame past the end is left out."""
    x = np.concatenate([audio[:1], audio[1:] - 0.97 * audio[:-1]]).astype(np.float32)
    x = np.pad(x, 256)
    count = len(audio) // 160
    frames = np.lib.stride_tricks.as_strided(x, (count, 512), (160 * 4, 4))
    power = np.abs(np.fft.rfft(frames * WINDOW, axis=1)) ** 2
    return np.log(power.astype(np.float32) @ MEL.T + 2.0 ** -24)


def reverberate(audio, g):
    """Exponentially decaying noise after a direct path, as a plain room."""
    seconds = g.uniform(0.1, 0.5)
    n = int(seconds * RATE)
    tail = g.standard_normal(n) * np.exp(-6.9 * np.arange(n) / n) * g.uniform(0.02, 0.12)
    tail[:int(g.uniform(0.001, 0.01) * RATE)] = 0
    tail[0] = 1
    return scipy.signal.fftconvolve(audio, tail)[:len(audio) + n // 3].astype(np.float32)


def band_limit(audio, g):
    """Telephone or small loudspeaker."""
    low, high = g.uniform(60, 300), g.uniform(3400, 7000)
    return scipy.signal.sosfilt(scipy.signal.butter(2, [low, high], "bandpass", fs=RATE, output="sos"), audio).astype(np.float32)


def augment(audio, segments, g, resample):
    """One random version of a waveform; segments follow it. `resample` also moves pitch and formants."""
    if resample != 1.0:
        audio = soxr.resample(audio, RATE * resample, RATE)
    pre, post = g.uniform(0.0, 0.35, 2)
    audio = np.pad(audio, (int(pre * RATE), int(post * RATE)))
    if segments:
        segments = [(a, b, s / resample + pre, e / resample + pre) for a, b, s, e in segments]
    if g.random() < 0.35:
        audio = reverberate(audio, g)
    if g.random() < 0.2:
        audio = band_limit(audio, g)
    audio = audio * (10 ** (g.uniform(-25, -3) / 20) / max(1e-4, np.abs(audio).max()))
    if g.random() < 0.85:  # the noise floor of a recording; engines write exact zeros
        audio = audio + g.standard_normal(len(audio)).astype(np.float32) * 10 ** (g.uniform(-85, -55) / 20)
    return audio.astype(np.float32), segments


def make_part(part, out, speaker):
    name = os.path.join(out, f"train-{part:05d}")
    if os.path.exists(name + ".jsonl"):
        return
    r, g = random.Random(f"part {part}"), np.random.default_rng(part)
    mix = MIXES[mix_of_part(part)]
    jobs, domains, resample = [], [], []
    for _ in range(PART):
        domain = r.choices(list(mix), list(mix.values()))[0]
        voice = voice_of_part(r, part)
        jobs.append((voice, texts.sentence(r, domain, False), r.uniform(0.85, 1.3), r.uniform(0.7, 1.4)))
        domains.append(domain)
        # few natural voices: resampling makes more of them, also up to the pitch of women
        resample.append(r.uniform(0.95, 1.08) if voice.startswith("espeak") else r.choice([1.0, r.uniform(0.9, 1.3)]))
    features, lines, at = [], [], 0
    for job, domain, factor, (audio, segments) in zip(jobs, domains, resample, speaker.speak_all(jobs)):
        audio, segments = augment(audio, segments, g, factor)
        if not 0.3 <= len(audio) / RATE <= MAX_SECONDS:
            continue
        mel = log_mel(audio).astype(np.float16)
        features.append(mel)
        lines.append({"at": at, "frames": len(mel), "text": job[1], "voice": job[0], "domain": domain,
                      "seconds": round(len(audio) / RATE, 3),
                      "segments": segments and [(a, b, round(s, 3), round(e, 3)) for a, b, s, e in segments]})
        at += len(mel)
    np.save(name + ".npy", np.concatenate(features))
    with open(name + ".tmp", "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    os.rename(name + ".tmp", name + ".jsonl")  # last, so that a part that is there is whole
    print(f"part {part}: {len(lines)} utterances, {at / 100:.0f} s", flush=True)


# Utterances of each domain and voice in the test set.
TEST_COUNTS = {"words": 10, "numbers": 12, "dates": 12, "times": 12, "prices": 12, "commands": 12, "names": 10, "plain": 12, "general": 20}


def make_test(out, speaker):
    os.makedirs(os.path.join(out, "test"), exist_ok=True)
    r = random.Random("test set")
    lines = []
    for voice in voices.TEST:
        jobs = [(voice, texts.sentence(r, domain, True), 1.0, 1.0, domain) for domain, n in TEST_COUNTS.items() for _ in range(n)]
        for i, (job, (audio, _)) in enumerate(zip(jobs, speaker.speak_all([j[:4] for j in jobs]))):
            path = f"test/{voice.replace(':', '-')}-{i:03d}.wav"
            audio = np.pad(audio, (1600, 1600)) * (0.5 / max(1e-4, np.abs(audio).max()))
            voices.write_wave(os.path.join(out, path), audio)
            lines.append({"audio": path, "text": job[1], "voice": voice, "domain": job[4], "seconds": round(len(audio) / RATE, 3)})
    with open(os.path.join(out, "test.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    print(f"test: {len(lines)} utterances, {sum(x['seconds'] for x in lines):.0f} s")


def make_calibration(out, speaker, count=160):
    """For `speech quantize --calibrate`: sentences of the domains that the model is for, in voices that are not tested."""
    os.makedirs(os.path.join(out, "calibration"), exist_ok=True)
    r, mix = random.Random("calibration"), MIXES["wide"]
    jobs = [(voices.train_voice(r), texts.sentence(r, r.choices(list(mix), list(mix.values()))[0], False), r.uniform(0.85, 1.25),
             r.uniform(0.8, 1.3)) for _ in range(count)]
    seconds = 0
    for i, (audio, _) in enumerate(speaker.speak_all(jobs)):
        audio = np.pad(audio, (1600, 1600)) * (0.5 / max(1e-4, np.abs(audio).max()))
        voices.write_wave(os.path.join(out, f"calibration/{i:03d}.wav"), audio)
        seconds += len(audio) / RATE
    print(f"calibration: {count} utterances, {seconds:.0f} s")


def make_noise(out, speaker):
    """float16 [noises, 6000, 80]: a minute each of white, pink and brown noise, hum, gusts and babble, at one loudness."""
    g, r, n = np.random.default_rng(99), random.Random("noise"), 60 * RATE
    spectrum = np.fft.rfft(g.standard_normal(n))
    f = np.maximum(1, np.arange(len(spectrum)) * RATE / n)
    shaped = lambda power: np.fft.irfft(spectrum / f ** power, n)
    t = np.arange(n) / RATE
    hum = sum(np.sin(2 * np.pi * 50 * k * t + k) / k for k in range(1, 12)) + 0.05 * g.standard_normal(n)
    gusts = shaped(0.8) * (0.2 + np.abs(np.interp(t, np.arange(62), g.standard_normal(62))))
    babble = np.zeros(n)
    for _ in range(6):
        line = np.zeros(0)
        while len(line) < n:
            domain = r.choice(["plain", "commands", "dates"])
            voice = r.choice(["flite:awb", "flite:rms", f"espeak:en-us+{r.choice(voices.VARIANTS)}"])
            line = np.concatenate([line, speaker.speak_all([(voice, texts.sentence(r, domain, False), 1.0, 1.0)])[0][0]])
        babble += line[:n] / line[:n].std()
    all_noise = [shaped(0), shaped(0.5), shaped(1), hum, gusts, babble]
    np.save(os.path.join(out, "noise.npy"), np.stack([log_mel((x * 0.1 / x.std()).astype(np.float32)) for x in all_noise]).astype(np.float16))


def check(nemo, wav):
    """The features of this file against those of NeMo's preprocessor on one recording."""
    import torch
    from nemo.collections.asr.models import ASRModel
    model = ASRModel.restore_from(nemo, map_location="cpu").eval()
    model.preprocessor.featurizer.dither = 0.0
    audio = voices.read_wave(wav)
    with torch.no_grad():
        want, length = model.preprocessor(input_signal=torch.tensor(audio)[None], length=torch.tensor([len(audio)]))
    want = want[0, :, :int(length[0])].numpy().T
    got = log_mel(audio)[:len(want)]
    got = (got - got.mean(0)) / (got.std(0, ddof=1) + 1e-5)
    print(f"{len(want)} frames, largest difference {np.abs(got - want).max():.2e}")
    assert np.abs(got - want).max() < 2e-2, "features differ from NeMo's"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what", choices=["train", "test", "calibration", "noise", "check"])
    p.add_argument("--out")
    p.add_argument("--parts", default="0:8")
    p.add_argument("--nemo")
    p.add_argument("--wav")
    a = p.parse_args()
    if a.what == "check":
        return check(a.nemo, a.wav)
    os.makedirs(a.out, exist_ok=True)
    if a.what == "train":
        first, end = map(int, a.parts.split(":"))
        speaker = voices.Speaker(first)
        for part in range(first, end):
            make_part(part, a.out, speaker)
    elif a.what == "test":
        make_test(a.out, voices.Speaker())
    elif a.what == "calibration":
        make_calibration(a.out, voices.Speaker())
    else:
        make_noise(a.out, voices.Speaker())


if __name__ == "__main__":
    main()
