#!/usr/bin/env python3
"""Measures the model tiny-en by weight type, and puts its files and tables into the repository.

  tiny-en.py quality SPEECH NEMO [DATA]     docs/quality.md: the tables of all types, made from NEMO in build/tiny-en
  tiny-en.py release SPEECH NEMO [DATA]     the same, and models/tiny-en/*.gguf, its tables, and the catalog's entry
  tiny-en.py files SPEECH NEMO TYPE         the files and the catalog's entry alone; TYPE is that of the bare name

SPEECH is the program. DATA, the folder of training/make_data.py, adds the rates on the WAVE files of which the test set's
Opus files were made. Tables stand between <!-- NAME --> and <!-- /NAME -->. The standard library is enough.
The environment may set DECODINGS ("greedy,ctc"), THREADS (default: the program's choice) and SHIPPED ("q8_0 f16").
"""
import datetime
import hashlib
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = os.path.join(ROOT, "build", "tiny-en")
MODELS = os.path.join(ROOT, "models", "tiny-en")
TEST = os.path.join(MODELS, "test", "manifest.jsonl")
HUMAN = os.path.join(MODELS, "test", "human.jsonl")
TYPES = ("f32", "f16", "q8_0", "q6_k", "q5_k", "q4_k")
SHIPPED = os.environ.get("SHIPPED", "q8_0 f16").split()
MOST_BYTES = 16e6  # of a file in the repository
DECODINGS = os.environ.get("DECODINGS") or "greedy,ctc"


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


def make_types(speech, nemo):
    """{type: path} of the model in every weight type."""
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK)
    files = {"f32": os.path.join(WORK, "tiny-en.gguf")}
    run(speech, "convert", nemo, files["f32"], "--extra-heads", "--name", "tiny-en")
    for kind in TYPES[1:]:
        before = set(os.listdir(WORK))
        run(speech, "quantize", files["f32"], WORK, "--type", kind)
        (name,) = set(os.listdir(WORK)) - before
        files[kind] = os.path.join(WORK, name)
    return files


def bench(speech, manifest, files):
    print("measuring", os.path.relpath(manifest, ROOT), *map(os.path.basename, files), file=sys.stderr)
    threads = ["--threads", os.environ["THREADS"]] if os.environ.get("THREADS") else []
    return run(speech, "bench", "--quality", manifest, *files, "--decoding", DECODINGS, "--format", "md", *threads)


def split(text):
    """Head line, table of models, table of groups (or ""), last line."""
    parts = text.strip().split("\n\n")
    tables = [x for x in parts if x.startswith("|")]
    return parts[0], tables[0], tables[1] if len(tables) > 1 else "", parts[-1]


def rows_of(table):
    return [line.strip("| ").split(" | ") for i, line in enumerate(table.split("\n")) if i != 1]


def write(rows):
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def columns(table, wanted):
    """The table with those columns alone whose name wanted() takes."""
    rows = rows_of(table)
    keep = [i for i, name in enumerate(rows[0]) if wanted(name)]
    return [[row[i] for i in keep] for row in rows]


def fill(path, name, text):
    with open(path, encoding="utf-8") as f:
        old = f.read()
    new, count = re.subn(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda m: m[1] + text.strip() + "\n" + m[2], old, flags=re.S)
    assert count == 1, f"{path}: {count} places for {name}"
    with open(path, "w", encoding="utf-8") as f:
        f.write(new)


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def head(text, what, nemo):
    return f"{what}: {text}, {datetime.date.today()}, checkpoint {sha256(nemo)[:12]}."


def measure(speech, nemo, data):
    """Fills docs/quality.md; {type: path}, the type of the bare name, and tables for the model card."""
    files = make_types(speech, nemo)
    doc = os.path.join(ROOT, "docs", "quality.md")
    first, models, groups, bare = split(bench(speech, TEST, files.values()))
    by_group = write(columns(groups, lambda name: name in ("group", "utterances", "words") or name.split()[0] == "q8_0"))
    fill(doc, "types", "\n\n".join((head(first, "Test set", nemo), models, bare[0].upper() + bare[1:] + ".")))
    fill(doc, "groups", by_group)
    human_first, human, _, _ = split(bench(speech, HUMAN, [files["f32"], files["q8_0"]]))
    fill(doc, "human", head(human_first, "Human recordings", nemo) + "\n\n" + human)
    if data:
        manifest = os.path.join(WORK, "wav.jsonl")
        run(sys.executable, os.path.join(ROOT, "training", "test_set.py"), "--wav", data, manifest)
        wav = split(bench(speech, manifest, [files["f32"]]))[1]
        (first_row, *wav), (_, *opus) = (columns(t, lambda name: name == "decoding" or " % " in name) for t in (wav, models))
        rows = [["WAVE", *row] for row in wav] + [["Opus", *row] for row in opus[:len(wav)]]
        fill(doc, "opus", write([["from", *first_row], *rows]))
    kind = re.match(r"type of the bare name: (\w+)", bare)
    card = {"results": head(first, "Test set, Q8_0", nemo) + "\n\n" + by_group, "types": models, "human": human}
    return files, kind[1] if kind and kind[1] != "not" else "q8_0", card


def release(files, bare, card):
    for name in os.listdir(MODELS):
        if name.endswith(".gguf"):
            os.remove(os.path.join(MODELS, name))
    entries = []
    for kind in sorted(SHIPPED, key=lambda k: k != bare):
        size = os.path.getsize(files[kind])
        if size > MOST_BYTES:
            continue
        shutil.copy(files[kind], MODELS)
        entries.append(f'    {{"{kind}", "{os.path.basename(files[kind])}", {size},\n     "{sha256(files[kind])}"}},\n')
    with open(os.path.join(ROOT, "src", "catalog", "tiny_en.inc"), "w", encoding="utf-8") as f:
        f.write("// Written by scripts/tiny-en.py. Do not edit.\n\n// The first is that of the bare name.\n"
                "constexpr CatalogFile kTinyEn[] = {\n" + "".join(entries) + "};\n")
    for name, text in card.items():
        fill(os.path.join(MODELS, "README.md"), name, text)


def main():
    command, speech, nemo = sys.argv[1], os.path.abspath(sys.argv[2]), sys.argv[3]
    last = sys.argv[4] if len(sys.argv) > 4 else ""
    if command == "files":
        release(make_types(speech, nemo), last, {})
        return
    measured = measure(speech, nemo, last)
    if command == "release":
        release(*measured)


if __name__ == "__main__":
    main()
