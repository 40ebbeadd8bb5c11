#!/usr/bin/env python3
"""Writes tests/data/quality/cases.json: errors and lengths of texts by the reference scorers.

Words by jiwer over texts normalized here (NFKC, lower case, no apostrophes, other punctuation and symbols as spaces);
characters and accepted spellings by score.py of speech-bench (huggingface/common-voice-ja-accepted-spellings, commit
232fcce0b67ada25e48c6fd8ff11f1f886b3cdfc).

    pip install jiwer==4.0.0
    python reference/quality/cases.py SCORE_FOLDER > tests/data/quality/cases.json
"""
import json
import random
import sys
import unicodedata

import jiwer

sys.path.insert(0, sys.argv[1])
import score

WORDS = [
    ("It's ten o'clock.", "its ten oclock"),
    ("Don\u2019t move!", "Do not move"),
    ("Twenty-five dollars, please.", "twenty five dollar please please"),
    ("Turn the lights off in the kitchen.", ""),
    ("Meet me at 5:30 p.m.", "meet me at 5 30 pm"),
    ("A b c d e", "a x c e f"),
    ("caf\u00e9 na\u00efve", "cafe\u0301 nai\u0308ve"),
    ("\uff21\uff22\uff23 \u00bd", "abc 1\u20442"),
    ("\u00c9COLE \u00d6L", "\u00e9cole \u00f6l"),
    ("one\u00a0two\u2003three", "one two three"),
    ("the cat sat on the mat", "cat the sat mat on the the"),
    ("50% of $20 & more", "50 of 20 more"),
]

CHARACTERS = [
    ("\u4eca\u65e5\u306f\u3044\u3044\u5929\u6c17\u3067\u3059\u306d\u3002", "\u4eca\u65e5\u306f \u3044\u3044\u5929\u6c17\u3067\u3059"),
    ("27%\u3067\u3059", "27\u3067\u3059"),
    ("3.5\u30ad\u30ed", "35\u30ad\u30ed"),
    ("3.5\u30ad\u30ed", "\uff13\uff0e\uff15\u30ad\u30ed"),
    ("\u4e09\uff1a\u4e94\u3001\u3042:\u3044", "\u4e09\u4e94\u3042\u3044"),
    ("\u570b\u5b78\u306e\u6ca2", "\u56fd\u5b66\u306e\u6fa4"),
    ("\uff76\uff9e\uff77\uff9e", "\u30ac\u30ae"),
    ("\u304b\u3099\u304d", "\u304c\u304d"),
    ("\u3042\u30fc\u3001\u305d\u3046\u3060\u3002", "\u3042\u3042\u305d\u3046\u3060"),
    ("It's \u30c6\u30b9\u30c8", "its\u3066\u3059\u3068"),
    ("\u2460\u3068\u33a5", "1\u3068m3"),
    ("\u8fbb\U000e0100\u3055\u3093", "\u8fbb\u3055\u3093"),
    ("1\u301c2 1-2 1\u22122 1/2 a-b", "12 12 12 12 ab"),
    ("\uff05\uff06\u20ac\u00a3\u00a5", "%&"),
    ("caf\u00e9 au lait", "cafe au lait"),
]


def segment(*pieces, spellings=(), optional=False):
    return {"bracketed": bool(spellings or optional), "optional": optional, "spellings": list(spellings),
            "pieces": [{"text": t, "readings": list(r)} for t, r in pieces]}


# (segments, what was heard)
SENTENCE = [
    segment(("\u304d\u306e\u3046", ()), spellings=["\u6628\u65e5"]),
    segment(("\u306f", ())),
    segment(("\u516b", ("\u306f\u3061",)), spellings=["8"]),
    segment(("\u6642", ("\u3058",)), ("\u9593", ("\u304b\u3093",)), ("\u5bdd", ("\u306d",)), ("\u307e\u3057\u305f\u3002", ())),
]
FILLER = [
    segment(("\u3048\u3048\u3068\u3001", ()), spellings=["\u3048\u30fc\u3068"], optional=True),
    segment(("\u4e00\u65e5", ("\u3064\u3044\u305f\u3061", "\u3044\u3061\u306b\u3061")), ("\u3067\u3059", ())),
]
NUMBER = [
    segment(("3", ())), segment((".", ()), spellings=["\u70b9", "\u3066\u3093"]), segment(("5", ("\u3054",)), ("\u79d2", ())),
]
ACCEPTED = [
    (SENTENCE, "\u6628\u65e5\u306f8\u6642\u9593\u306d\u307e\u3057\u305f"),
    (SENTENCE, "\u30ad\u30ce\u30a6\u306f\u30cf\u30c1\u3058\u9593\u5bdd\u307e\u3057\u305f"),
    (SENTENCE, "\u6628\u65e5\u306f\u9001\u6642\u3057\u307e\u3057\u305f"),
    (SENTENCE, ""),
    (FILLER, "\u3064\u3044\u305f\u3061\u3067\u3059"),
    (FILLER, "\u3048\u30fc\u3068\u3001\u3044\u3061\u306b\u3061\u3067\u3059"),
    (FILLER, "\u3042\u306e\u4e00\u65e5\u3067\u3059\u3088"),
    (NUMBER, "3.5\u79d2"),
    (NUMBER, "3\u70b95\u79d2"),
    (NUMBER, "35\u79d2"),
    (NUMBER, "\u4e09\u3066\u3093\u30b4\u79d2"),
]


def words(text):
    text = unicodedata.normalize("NFKC", text).lower().replace("'", "").replace("\u2019", "")
    return "".join(" " if unicodedata.category(c)[0] in "PS" else c for c in text).split()


def random_pairs(count):
    """Texts of a few words, so that alignments are not plain."""
    pick = random.Random(1)
    some = ["one", "two", "three", "four", "five"]
    for _ in range(count):
        yield tuple(" ".join(pick.choice(some) for _ in range(pick.randint(low, 12))) for low in (1, 0))


def main():
    cases = {"words": [], "characters": [], "accepted": []}
    for reference, heard in WORDS + list(random_pairs(20)):
        out = jiwer.process_words(" ".join(words(reference)), " ".join(words(heard)))
        cases["words"].append({"reference": reference, "heard": heard, "length": len(words(reference)),
                               "errors": out.substitutions + out.deletions + out.insertions})
    for reference, heard in CHARACTERS:
        errors, length = score.count_errors(reference, None, heard)
        cases["characters"].append({"reference": reference, "heard": heard, "errors": errors, "length": length})
    for segments, heard in ACCEPTED:
        reference = "".join(p["text"] for s in segments for p in s["pieces"])
        errors, length = score.count_errors(reference, segments, heard)
        cases["accepted"].append({"reference": reference, "segments": segments, "heard": heard, "errors": errors, "length": length})
    print(json.dumps(cases, indent=1, ensure_ascii=True))


if __name__ == "__main__":
    main()
