#!/usr/bin/env python3
"""Word error rates of a .nemo file on the test set, by voice and by domain, with the CTC and the TDT head.

  evaluate.py --nemo tiny.nemo --data DATA [--wav FILE.wav ...] [--csv OUT.csv] [--texts OUT.jsonl]

Features come from NeMo's preprocessor, decoding is NeMo's own (greedy CTC, greedy_batch TDT). Scoring: NFKC, lower case,
apostrophes dropped, other punctuation and symbols as spaces, then Levenshtein over words; rates are errors over reference words.
With --wav, recordings with a `.txt` beside them are scored too (and their texts shown).
"""
import argparse
import json
import os
import re
import unicodedata

import numpy as np
import torch

import model as models
import voices

SPOKEN = ("words", "numbers", "dates", "times", "prices", "commands", "names")


def words(text):
    text = re.sub("['\u2019]", "", unicodedata.normalize("NFKC", text).lower())
    return "".join(" " if unicodedata.category(c)[0] in "PS" else c for c in text).split()


def distance(a, b):
    """Levenshtein with unit costs."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def rate(pairs):
    """Word error rate in percent of (reference, hypothesis) texts."""
    errors = sum(distance(words(a), words(b)) for a, b in pairs)
    return 100 * errors / max(1, sum(len(words(a)) for a, _ in pairs))


def features(model, paths):
    """Per file float32 [80, frames], normalized by NeMo."""
    model.preprocessor.featurizer.dither = 0.0
    out = []
    with torch.no_grad():
        for path in paths:
            audio = torch.from_numpy(voices.read_wave(path))
            mel, n = model.preprocessor(input_signal=audio[None], length=torch.tensor([len(audio)]))
            out.append(mel[0, :, :int(n[0])])
    return out


def decode(model, mels, tdt=True, batch=16):
    """Texts by CTC and by TDT (or None) of feature lists."""
    model.eval()
    order = sorted(range(len(mels)), key=lambda i: mels[i].shape[1])
    ctc, rnnt = [""] * len(mels), [""] * len(mels)
    with torch.no_grad():
        for k in range(0, len(order), batch):
            some = order[k:k + batch]
            lengths = torch.tensor([mels[i].shape[1] for i in some])
            x = torch.nn.utils.rnn.pad_sequence([mels[i].T for i in some], batch_first=True).transpose(1, 2)
            encoded, n = model.encoder(audio_signal=x, length=lengths)
            log_probs = model.ctc_decoder(encoder_output=encoded)
            for h, i in zip(model.ctc_decoding.ctc_decoder_predictions_tensor(log_probs, n), some):
                ctc[i] = h.text
            if tdt:
                for h, i in zip(model.decoding.rnnt_decoder_predictions_tensor(encoded, n), some):
                    rnnt[i] = h.text
    return ctc, rnnt if tdt else None


def load_test(data, every=1):
    with open(os.path.join(data, "test.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f][::every]


def table(items, texts):
    """{(what, name): WER} over all, spoken domains, each domain, each voice."""
    groups = {}
    for item, text in zip(items, texts):
        pair = (item["text"], text)
        kind = "spoken" if item["domain"] in SPOKEN else "sentences"
        for key in (("all", ""), (kind, ""), ("domain", item["domain"]), ("voice", item["voice"]), (f"{kind} by voice", item["voice"])):
            groups.setdefault(key, []).append(pair)
    return {key: (rate(pairs), sum(len(words(a)) for a, _ in pairs)) for key, pairs in sorted(groups.items())}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--nemo", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--wav", nargs="*", default=[])
    p.add_argument("--csv")
    p.add_argument("--texts")
    a = p.parse_args()
    torch.set_num_threads(2)
    model = models.restore(a.nemo)
    items = load_test(a.data)
    ctc, tdt = decode(model, features(model, [os.path.join(a.data, x["audio"]) for x in items]))
    by_ctc, by_tdt = table(items, ctc), table(items, tdt)
    lines = ["group,name,words,wer_ctc,wer_tdt"]
    lines += [f"{k[0]},{k[1]},{by_ctc[k][1]},{by_ctc[k][0]:.1f},{by_tdt[k][0]:.1f}" for k in by_ctc]
    for wav in a.wav:
        text_file = os.path.splitext(wav)[0] + ".txt"
        with open(text_file, encoding="utf-8") as f:
            reference = f.read().strip()
        (c,), (t,) = decode(model, features(model, [wav]))
        lines.append(f"recording,{os.path.basename(wav)},{len(words(reference))},{rate([(reference, c)]):.1f},{rate([(reference, t)]):.1f}")
        print(f"{wav}\n  ref {reference}\n  ctc {c}\n  tdt {t}")
    print("\n".join(lines))
    if a.csv:
        with open(a.csv, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
    if a.texts:
        with open(a.texts, "w", encoding="utf-8") as f:
            for item, c, t in zip(items, ctc, tdt):
                f.write(json.dumps(dict(item, ctc=c, tdt=t)) + "\n")


if __name__ == "__main__":
    main()
