#!/usr/bin/env python3
"""Word error rates of a .nemo file on the test set, by voice and by domain, with the CTC and the TDT head.

  evaluate.py [--nemo tiny.nemo] --data DATA [--wav FILE.wav ...] [--csv OUT.csv] [--texts OUT.jsonl]

With --speech PROGRAM --gguf FILE.gguf the texts come from `speech asr` on a converted model instead, without NeMo (about a
minute for the test set); with --nemo too, both are run and the texts that differ are counted and shown.

Features come from NeMo's preprocessor, decoding is NeMo's own (greedy CTC, greedy_batch TDT). Scoring: NFKC, lower case,
apostrophes dropped, other punctuation and symbols as spaces, then Levenshtein over words; rates are errors over reference words.
With --wav, recordings with a `.txt` beside them are scored too (and their texts shown).
"""
import argparse
import json
import os
import re
import subprocess
import tempfile
import unicodedata

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
    import torch
    import voices
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
    import torch
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


def speech_texts(program, gguf, paths, decoding):
    """Texts of `speech asr`, one file each."""
    with tempfile.TemporaryDirectory() as d:
        subprocess.run([program, "asr", gguf, *paths, "--out", d, "--decoding", decoding, "--device", "cpu"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        out = []
        for path in paths:
            with open(os.path.join(d, os.path.splitext(os.path.basename(path))[0] + ".txt"), encoding="utf-8") as f:
                out.append(f.read().strip())
        return out


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
    p.add_argument("--nemo")
    p.add_argument("--speech")
    p.add_argument("--gguf")
    p.add_argument("--data", required=True)
    p.add_argument("--every", type=int, default=1, help="only each n-th utterance of the test set")
    p.add_argument("--wav", nargs="*", default=[])
    p.add_argument("--csv")
    p.add_argument("--texts")
    a = p.parse_args()
    items = load_test(a.data, a.every)
    paths = [os.path.join(a.data, x["audio"]) for x in items] + a.wav
    by_nemo = by_speech = None
    if a.nemo:
        import model as models
        model = models.restore(a.nemo)
        by_nemo = dict(zip(("ctc", "tdt"), decode(model, features(model, paths), batch=1)))
    if a.speech:
        by_speech = {k: speech_texts(a.speech, a.gguf, paths, "ctc" if k == "ctc" else "greedy") for k in ("ctc", "tdt")}
    if by_nemo and by_speech:
        for head in ("ctc", "tdt"):
            differ = [(x, n, s) for x, n, s in zip(paths, by_nemo[head], by_speech[head]) if n != s]
            print(f"{head}: {len(paths) - len(differ)} of {len(paths)} texts of speech equal NeMo's")
            for x, n, s in differ[:10]:
                print(f"  {os.path.basename(x)}\n    NeMo   {n}\n    speech {s}")
    texts = by_nemo or by_speech
    tables = {head: table(items, texts[head][:len(items)]) for head in texts}
    lines = ["group,name,words,wer_ctc,wer_tdt"]
    lines += [f"{k[0]},{k[1]},{n},{w:.1f},{tables['tdt'][k][0]:.1f}" for k, (w, n) in tables["ctc"].items()]
    for i, wav in enumerate(a.wav, len(items)):
        with open(os.path.splitext(wav)[0] + ".txt", encoding="utf-8") as f:
            reference = f.read().strip()
        c, t = texts["ctc"][i], texts["tdt"][i]
        lines.append(f"recording,{os.path.basename(wav)},{len(words(reference))},{rate([(reference, c)]):.1f},{rate([(reference, t)]):.1f}")
        print(f"{wav}\n  ref {reference}\n  ctc {c}\n  tdt {t}")
    print("\n".join(lines))
    if a.csv:
        with open(a.csv, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
    if a.texts:
        with open(a.texts, "w", encoding="utf-8") as f:
            for item, c, t in zip(items, texts["ctc"], texts["tdt"]):
                f.write(json.dumps(dict(item, ctc=c, tdt=t)) + "\n")


if __name__ == "__main__":
    main()
