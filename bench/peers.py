#!/usr/bin/env python3
"""Measures other engines and `speech` in turn, on the same models, and prints one table per family.

    bench/peers.py CONFIG.json [--only fastconformer|qwen3] [--rounds 3] [--threads 2]
                   [--speech build/speech] [--python PYTHON] [--run-with COMMAND]

CONFIG.json names the files, relative to itself; what it leaves out is skipped and named:

    {
      "python": "venv/bin/python",       with the peers' packages; default: this one
      "audio": "speech-30s.wav",         16 kHz, mono, 16 bits
      "fastconformer": {
        "speech":       {"F16": "f16.gguf", "Q8_0": "q8_0.gguf", "Q4_K": "q4_k.gguf"},
        "ONNX Runtime": {"f32": "encoder.onnx", "int8": "encoder.int8.onnx"},
        "CrispASR":     {"Q8_0": "crispasr-q8_0.gguf"}
      },
      "qwen3": {
        "speech":       {"BF16": "Qwen3-0.6B", "Q8_0": "q8_0.gguf", "Q4_K_M": "q4_k_m.gguf",
                         "int4-g64": "Qwen3-0.6B-int4"},
        "llama.cpp":    {"Q8_0": "q8_0.gguf", "Q4_K_M": "q4_k_m.gguf"},
        "ik_llama.cpp": {"Q8_0": "q8_0.gguf", "Q4_K_M": "q4_k_m.gguf"}
      }
    }

The peers' packages are onnxruntime, crispasr, llama-cpp-python and ik-llama-cpp-python, with numpy.
Every measurement is a process of its own: it loads the model, runs once to warm up (unless that
took over 10 s: then it counts) and once for the figure. Rounds go through all engines, so that what
disturbs the machine meets all of them; the table shows the best round and, in brackets, the median.
Targets are ratios within the run.
"""
import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path

PROMPT, TOKENS, SEQUENCES = 512, 64, 4


# ---------------------------------------------------------------------------------------------
# Peers: each function runs in a process of its own and returns the figures of one measurement.


def peak_memory():
    """Most resident memory of this process in bytes, interpreter and modules included."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024


def read_wave(path):
    import numpy as np
    with wave.open(path) as w:
        if (w.getframerate(), w.getnchannels(), w.getsampwidth()) != (16000, 1, 2):
            raise SystemExit(f"{path} is not 16 kHz, mono, 16 bits")
        return np.frombuffer(w.readframes(w.getnframes()), dtype="<i2").astype("f4") / 32768


def seconds_of(run):
    """Seconds of a warm run, and what it returned."""
    for _ in range(2):
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
        if seconds > 10:
            break
    return seconds, result


def measure_onnxruntime(path, threads, audio):
    """The encoder on noise of the shape of the audio's features: [1, mel bins, frames]."""
    import numpy as np
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    load = time.perf_counter() - start
    features, length = session.get_inputs()
    frames = len(read_wave(audio)) // 160 + 1
    x = np.random.default_rng(0).standard_normal((1, features.shape[1], frames), dtype=np.float32)
    feed = {features.name: x, length.name: np.array([frames], dtype=np.int64)}
    seconds, outputs = seconds_of(lambda: session.run(None, feed))
    assert np.isfinite(outputs[0]).all()
    return {"version": onnxruntime.__version__, "load": load, "encoder": seconds}


def measure_crispasr(path, threads, audio):
    """A transcription; the library prints its stages' times to stderr when asked to."""
    os.environ["CRISPASR_PARAKEET_BENCH"] = "1"
    import crispasr
    samples = read_wave(audio)
    start = time.perf_counter()
    session = crispasr.Session(path, n_threads=threads, use_gpu=False)
    load = time.perf_counter() - start
    saved = os.dup(2)

    def run():
        with tempfile.TemporaryFile() as log:
            os.dup2(log.fileno(), 2)
            try:
                session.transcribe(samples)
            finally:
                os.dup2(saved, 2)
            log.seek(0)
            return log.read().decode("utf-8", "replace")

    seconds, log = seconds_of(run)
    encoder = re.search(r"bench:\s+encoder\s+([\d.]+) ms", log)
    figures = {"version": importlib.metadata.version("crispasr"), "load": load, "whole": seconds}
    if encoder:
        figures["encoder"] = float(encoder[1]) / 1000
    return figures


def measure_llama(path, threads, fork):
    """A prompt of random ids in one batch, then single tokens behind it, through the C API."""
    import ctypes
    import random
    if fork == "ik":
        import ik_llama_cpp._ctypes_api as api
        package = "ik-llama-cpp-python"
    else:
        import llama_cpp.llama_cpp as api
        package = "llama-cpp-python"
    # The fork has the older names of these.
    load_model = getattr(api, "llama_model_load_from_file", None) or api.llama_load_model_from_file
    new_context = getattr(api, "llama_init_from_model", None) or api.llama_new_context_with_model
    api.llama_backend_init()
    start = time.perf_counter()
    model = load_model(path.encode(), api.llama_model_default_params())
    if not model:
        raise SystemExit(f"{path} was not loaded")
    params = api.llama_context_default_params()
    params.n_ctx = PROMPT + TOKENS
    params.n_batch = params.n_ubatch = PROMPT
    params.n_threads = params.n_threads_batch = threads
    context = new_context(model, params)
    load = time.perf_counter() - start
    batch = api.llama_batch_init(PROMPT, 0, 1)
    ids = random.Random(0).choices(range(150000), k=PROMPT)

    def step(tokens, position):
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i + 1 == len(tokens)
        if api.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        if hasattr(api, "llama_synchronize"):
            api.llama_synchronize(context)

    def run():
        if hasattr(api, "llama_memory_clear"):
            api.llama_memory_clear(api.llama_get_memory(context), True)
        else:
            api.llama_kv_cache_clear(context)
        start = time.perf_counter()
        step(ids, 0)
        middle = time.perf_counter()
        for i in range(TOKENS):
            step([ids[i]], PROMPT + i)
        return middle - start, time.perf_counter() - middle

    _, (prompt, decode) = seconds_of(run)
    print_info = api._lib.llama_print_system_info  # not all packages declare it
    print_info.restype = ctypes.c_char_p
    sets = re.findall(r"\b(AVX\w*|AMX\w*|NEON|SVE) = 1", print_info().decode())
    return {"version": importlib.metadata.version(package), "load": load, "sets": sets,
            "prompt": PROMPT / prompt, "decode": TOKENS / decode}


MEASURES = {
    "ONNX Runtime": measure_onnxruntime,
    "CrispASR": measure_crispasr,
    "llama.cpp": lambda path, threads, _: measure_llama(path, threads, "llama"),
    "ik_llama.cpp": lambda path, threads, _: measure_llama(path, threads, "ik"),
}


# ---------------------------------------------------------------------------------------------
# Ours, through `speech bench`.


def stage(work, name):
    return next((s["seconds"] for s in work.get("stages", []) if s["name"] == name), None)


def figures_of_speech(profile):
    """The figures of one `speech bench --format json`."""
    works = {w["name"]: w for w in profile["works"]}
    figures = {"load": profile["load_seconds"], "file": profile["file_bytes"],
               "sets": [profile["instructions"]], "peak_gflops": profile["peak_flops"] / 1e9,
               "read_gb": profile["read_bandwidth"] / 1e9}
    if whole := works.get("transcription"):
        figures.update(whole=whole["seconds"], encoder=stage(whole, "encoder"),
                       decoding=stage(whole, "decoding"), memory=whole["peak_memory_bytes"],
                       alone=whole["products_alone_seconds"] / whole["seconds"],
                       outside=whole["share_outside_products"])
    if prompt := works.get("prompt"):
        decode = works["decode"]
        figures.update(prompt=prompt["tokens_per_second"], decode=decode["tokens_per_second"],
                       read=decode["of_read_bandwidth"], memory=decode["peak_memory_bytes"],
                       cache=decode["cache_bytes"], outside=prompt["share_outside_products"])
    if batch := works.get("batch"):
        figures["batch"] = batch["tokens_per_second"]
    return figures


def command_of(args, engine, kind, path, audio):
    if engine != "speech":
        return [args.python, __file__, "--measure", engine, path, str(args.threads), audio or ""]
    command = [args.speech, "bench", path, "--threads", str(args.threads), "--runs", "1",
               "--format", "json"]
    if audio:
        return command + [audio]
    sequences = SEQUENCES if kind.startswith("int4") else 1
    return command + ["--prompt-tokens", str(PROMPT), "--tokens", str(TOKENS),
                      "--sequences", str(sequences)]


# ---------------------------------------------------------------------------------------------
# Rounds.


class Engine:
    """One engine with one weight type: a line of the table."""

    def __init__(self, name, kind, path):
        self.name, self.kind, self.path = name, kind, path
        self.rounds, self.problem = [], None
        if not os.path.exists(path):
            self.problem = f"no file {path}"

    def label(self):
        return f"{self.name} {self.kind}"

    def measure(self, args, audio):
        command = shlex.split(args.run_with) + command_of(args, self.name, self.kind, self.path,
                                                          audio)
        # Files, not pipes: a measurement must not wait for this process to read.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            try:
                code = subprocess.run(command, stdout=out, stderr=err, timeout=args.limit).returncode
            except subprocess.TimeoutExpired:
                self.problem = f"took over {args.limit} s"
                return
            except OSError as error:
                self.problem = str(error)
                return
            out.seek(0)
            err.seek(0)
            lines = out.read().strip().splitlines()
            errors = err.read().strip().splitlines() or ["no output"]
        if code != 0 or not lines:
            self.problem = f"exit code {code}: {errors[-1]}"
            return
        figures = json.loads(lines[-1])
        self.rounds.append(figures_of_speech(figures) if self.name == "speech" else figures)

    def all(self, key):
        return [r[key] for r in self.rounds if r.get(key) is not None]

    def best(self, key, most=False):
        values = self.all(key)
        return (max if most else min)(values) if values else None

    def text(self, key, digits, most=False, scale=1.0):
        """Best (median)."""
        values = self.all(key)
        if not values:
            return ""
        best = self.best(key, most) * scale
        return f"{best:.{digits}f} ({statistics.median(values) * scale:.{digits}f})"


def in_turn(engines):
    """Ours and the peers' alternating: ours, peer, ours, peer, ... as long as both last."""
    ours = [e for e in engines if e.name == "speech"]
    peers = [e for e in engines if e.name != "speech"]
    order = []
    while ours or peers:
        order += ours[:1] + peers[:1]
        ours, peers = ours[1:], peers[1:]
    return order


def run_rounds(args, engines, audio):
    for number in range(args.rounds):
        for engine in in_turn(engines):
            if engine.problem:
                continue
            start = time.perf_counter()
            engine.measure(args, audio)
            print(f"round {number + 1}: {engine.label()}: {time.perf_counter() - start:.0f} s"
                  f"{': ' + engine.problem if engine.problem else ''}", file=sys.stderr)


# ---------------------------------------------------------------------------------------------
# Tables.


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def target(what, value, wanted, at_most=False):
    """A line of the list below a table; nothing where the run lacks one of the figures."""
    if value is None:
        return
    met = value <= wanted if at_most else value >= wanted
    bound = "at most" if at_most else "at least"
    print(f"- {what}: {value:.2f}, {bound} {wanted:g} wanted: {'met' if met else '**missed**'}")


def ratio(a, b):
    return a / b if a is not None and b else None


def best_of(engines, name, kinds, key, most=False):
    """Best figure of an engine over some weight types (None: all)."""
    values = [e.best(key, most) for e in engines
              if e.name == name and (kinds is None or e.kind in kinds)]
    values = [v for v in values if v is not None]
    return (max if most else min)(values) if values else None


def megabytes(value):
    return "" if value is None else f"{value / 1e6:.0f}"


def share(part, whole):
    value = ratio(part, whole)
    return "" if value is None else f"{100 * value:.1f} %"


def report_fastconformer(engines, audio_seconds):
    print(f"\n### FastConformer, {audio_seconds:.1f} s of audio\n")
    rows = []
    for e in engines:
        memory, file = e.best("memory"), e.best("file") if e.name == "speech" else None
        rows.append([e.name, e.kind, e.text("encoder", 2), e.text("whole", 2),
                     share(e.best("decoding"), e.best("whole")), megabytes(memory),
                     share(file and memory - file, file),
                     e.text("load", 3), " ".join(e.rounds[0].get("sets", []))])
    table(["engine", "weights", "encoder s", "whole s", "decoding", "peak MB", "above the file",
           "load s", "instructions"], rows)
    print()
    int8 = best_of(engines, "ONNX Runtime", {"int8"}, "encoder")
    f32 = best_of(engines, "ONNX Runtime", {"f32"}, "encoder")
    crisp = best_of(engines, "CrispASR", None, "encoder")
    crisp_whole = best_of(engines, "CrispASR", None, "whole")
    for e in engines:
        if e.name != "speech":
            continue
        encoder, whole, memory = e.best("encoder"), e.best("whole"), e.best("memory")
        if e.kind == "F16":
            target(f"{e.kind}, encoder, times ONNX Runtime f32", ratio(f32, encoder), 1.3)
        else:
            target(f"{e.kind}, encoder, times ONNX Runtime int8", ratio(int8, encoder), 1.2)
            target(f"{e.kind}, encoder, times CrispASR's best type", ratio(crisp, encoder), 2)
            target(f"{e.kind}, whole, times CrispASR's best type", ratio(crisp_whole, whole), 2)
            target(f"{e.kind}, memory / file", ratio(memory, e.best("file")), 1.12, at_most=True)
        target(f"{e.kind}, decoding / whole", ratio(e.best("decoding"), whole), 0.05, at_most=True)
        target(f"{e.kind}, products alone / whole", e.best("alone", most=True), 0.75)
        target(f"{e.kind}, outside products and attention", e.best("outside"), 0.15, at_most=True)
        target(f"{e.kind}, load in s", e.best("load"), 0.1, at_most=True)


def report_qwen3(engines):
    print(f"\n### Qwen3, a prompt of {PROMPT} tokens, {TOKENS} tokens behind it\n")
    rows = []
    for e in engines:
        memory = e.best("memory")
        above = None if e.best("cache") is None else memory - e.best("file") - e.best("cache")
        batch = ratio(e.best("batch", most=True), e.best("decode", most=True))
        read = e.best("read", most=True)
        rows.append([e.name, e.kind, e.text("prompt", 1, most=True), e.text("decode", 1, most=True),
                     "" if read is None else f"{read:.2f}",
                     "" if batch is None else f"x {batch:.2f}", megabytes(memory),
                     megabytes(above), e.text("load", 3),
                     " ".join(e.rounds[0].get("sets", []))])
    table(["engine", "weights", "prompt tok/s", "decode tok/s", "of the bandwidth",
           f"{SEQUENCES} sequences", "peak MB", "above file and cache", "load s", "instructions"],
          rows)
    print()
    for e in engines:
        if e.name != "speech":
            continue
        prompt, decode = e.best("prompt", most=True), e.best("decode", most=True)
        # Peers of the same size: 8 bits, or 4 bits and a bit.
        same = {"Q8_0", "int8-g64"} if e.kind in {"Q8_0", "int8-g64"} else {"Q4_K_M", "Q4_K"}
        if e.kind in {"BF16", "F16"}:
            same = {"BF16", "F16"}
        for peer, wanted in (("llama.cpp", 1.5), ("ik_llama.cpp", 1.1)):
            target(f"{e.kind}, prompt, times {peer}",
                   ratio(prompt, best_of(engines, peer, same, "prompt", most=True)), wanted)
        target(f"{e.kind}, decode, times ik_llama.cpp",
               ratio(decode, best_of(engines, "ik_llama.cpp", same, "decode", most=True)), 1)
        target(f"{e.kind}, decode / read bandwidth", e.best("read", most=True), 0.85)
        if e.best("batch"):
            target(f"{e.kind}, {SEQUENCES} sequences / one", ratio(e.best("batch", most=True), decode),
                   2.5)
        target(f"{e.kind}, MB above file and cache",
               (e.best("memory") - e.best("file") - e.best("cache")) / 1e6, 60, at_most=True)
        target(f"{e.kind}, prompt outside products and attention", e.best("outside"), 0.15,
               at_most=True)


def report_run(engines):
    """Versions, limits, and what was left out."""
    print()
    ours = [e for e in engines if e.name == "speech" and e.rounds]
    if ours:
        peaks = [v for e in ours for v in e.all("peak_gflops")]
        reads = [v for e in ours for v in e.all("read_gb")]
        print(f"- limits in the same processes: {max(peaks):.0f} GFLOPS of f32 multiply-adds "
              f"(lowest {min(peaks):.0f}), {max(reads):.1f} GB/s read (lowest {min(reads):.1f})")
    for name, version in sorted({(e.name, e.rounds[0]["version"]) for e in engines
                                 if e.rounds and "version" in e.rounds[0]}):
        print(f"- {name} {version}")
    for e in engines:
        if e.problem:
            what = f"stopped after {len(e.rounds)} rounds" if e.rounds else "skipped"
            print(f"- {what}: {e.label()}: {e.problem}")


def print_machine(args):
    info = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""

    def field(name):
        match = re.search(rf"^{name}\s*: (.*)$", info, re.M)
        return match[1] if match else "?"

    wanted = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8",
              "amx_bf16", "asimddp", "i8mm")
    flags = (field("flags") + " " + field("Features")).split()
    print(f"{datetime.date.today()}, {field('model name')} (family {field('cpu family')}, model "
          f"{field('model')}), {os.cpu_count()} cores, {' '.join(f for f in wanted if f in flags)}; "
          f"{platform.system()} {platform.release()}, load {os.getloadavg()[0]:.1f}; "
          f"{args.threads} threads, {args.rounds} rounds, best (median)")


def engines_of(config, family, folder):
    """The engines of a family; None for a family that the config leaves out."""
    if family not in config:
        print(f"\nskipped {family}: the config does not name it")
        return None
    engines = [Engine(name, kind, str(folder / path))
               for name, paths in config[family].items() for kind, path in paths.items()]
    for e in engines:
        if e.name not in MEASURES and e.name != "speech":
            raise SystemExit(f"{family}: there is no engine {e.name!r}; "
                             f"known are speech, {', '.join(MEASURES)}")
    return engines


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--only", choices=["fastconformer", "qwen3"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--speech", default=str(Path(__file__).parent.parent / "build" / "speech"))
    parser.add_argument("--python", help="with the peers' packages (else of the config)")
    parser.add_argument("--run-with", default="", metavar="COMMAND",
                        help="goes before each measurement: \"taskset -c 0,1\", or a lock")
    parser.add_argument("--limit", type=float, default=600, help="seconds of one measurement")
    args = parser.parse_args()
    config, folder = json.loads(args.config.read_text()), args.config.parent
    if not args.python:
        args.python = str(folder / config["python"]) if "python" in config else sys.executable
    print_machine(args)
    if args.only in (None, "fastconformer"):
        if engines := engines_of(config, "fastconformer", folder):
            audio = str(folder / config["audio"])
            with wave.open(audio) as w:
                seconds = w.getnframes() / w.getframerate()
            run_rounds(args, engines, audio)
            report_fastconformer([e for e in engines if e.rounds], seconds)
            report_run(engines)
    if args.only in (None, "qwen3"):
        if engines := engines_of(config, "qwen3", folder):
            run_rounds(args, engines, None)
            report_qwen3([e for e in engines if e.rounds])
            report_run(engines)


def measure_here(engine, path, threads, audio):
    figures = MEASURES[engine](path, int(threads), audio)
    print(json.dumps({**figures, "memory": peak_memory(), "file": os.path.getsize(path)}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure_here(*sys.argv[2:])
    else:
        main()
