#!/usr/bin/env python3
"""The test set as Ogg Opus with a manifest for `speech bench --quality`: test_set.py DATA OUT

OUT gets NAME.opus of DATA/test/NAME.wav, about 29 kbit/s, and manifest.jsonl, with the groups voice, domain and kind ("spoken":
numbers, dates, commands and the like; "sentences"). Needs soundfile (its libsndfile writes Opus); `--wav` writes the
manifest of the WAVE files instead, as OUT.
"""
import json
import os
import sys

SPOKEN = ("words", "numbers", "dates", "times", "prices", "commands", "names")  # evaluate.py's


def entry(item, audio):
    groups = {"kind": "spoken" if item["domain"] in SPOKEN else "sentences", "domain": item["domain"], "voice": item["voice"]}
    return json.dumps({"audio": audio, "text": item["text"], "language": "en", "groups": groups}, ensure_ascii=False) + "\n"


def main():
    wav = "--wav" in sys.argv
    data, out = [x for x in sys.argv[1:] if x != "--wav"]
    with open(os.path.join(data, "test.jsonl"), encoding="utf-8") as f:
        items = [json.loads(line) for line in f]
    if wav:
        with open(out, "w", encoding="utf-8") as f:
            f.writelines(entry(x, os.path.abspath(os.path.join(data, x["audio"]))) for x in items)
        return
    import soundfile
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "manifest.jsonl"), "w", encoding="utf-8") as f:
        for x in items:
            name = os.path.splitext(os.path.basename(x["audio"]))[0] + ".opus"
            samples, rate = soundfile.read(os.path.join(data, x["audio"]), dtype="int16")
            soundfile.write(os.path.join(out, name), samples, rate, format="OGG", subtype="OPUS", compression_level=0.9)
            f.write(entry(x, name))


if __name__ == "__main__":
    main()
