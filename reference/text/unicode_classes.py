#!/usr/bin/env python3
"""Writes src/text/unicode_tables.inc: the character classes of the official tokenizer.

The classes are asked from the `tokenizers` library itself, code point by code point, because its
regular expressions and its normalizer follow different Unicode versions. `late` are the code points
whose canonical properties (combining class, decomposition, part of a composition) came after the
normalizer's version: it leaves them alone.

    pip install tokenizers==0.22.2 unicodedata2==16.0.0
    python reference/text/unicode_classes.py > src/text/unicode_tables.inc
"""
import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def regex_class(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    inside = set()
    for start in range(0, len(ALL), 4096):
        chunk = ALL[start:start + 4096]
        left = set()
        for _, (begin, end) in split.pre_tokenize_str("".join(map(chr, chunk))):
            left.update(chunk[begin:end])
        inside.update(set(chunk) - left)
    return inside


def late():
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    found, known_parts = set(), set()
    for c in ALL:
        parts = nfd.normalize_str(chr(c))
        if parts != chr(c):
            known_parts.update(map(ord, parts))
    for c in ALL:
        decomposition = unicodedata2.decomposition(chr(c))
        if decomposition and not decomposition.startswith("<"):
            parts = [int(x, 16) for x in decomposition.split()]
            if nfd.normalize_str(chr(c)) == chr(c):
                found.add(c)
                pair = "".join(map(chr, parts))
                if unicodedata2.normalize("NFC", pair) == chr(c):
                    assert nfc.normalize_str(pair) == pair
                    found.update(set(parts) - known_parts)
        # U+0345 has the highest combining class: anything that has one moves in front of it.
        if unicodedata2.combining(chr(c)) and c != 0x345:
            if nfd.normalize_str("a\u0345" + chr(c)).startswith("a\u0345"):
                found.add(c)
    for c in found:  # none of them may take part in a composition that the normalizer does know
        assert nfd.normalize_str(chr(c)) == chr(c)
    return found


def table(name, codes):
    ranges = []
    for c in sorted(codes):
        if ranges and c == ranges[-1][1] + 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    print(f"// {len(codes)} code points.\nconstexpr Range {name}[] = {{")
    for i in range(0, len(ranges), 5):
        print("    " + " ".join(f"{{0x{a:X}, 0x{b:X}}}," for a, b in ranges[i:i + 5]))
    print("};\n")


print("// Written by reference/text/unicode_classes.py (tokenizers 0.22.2). Do not edit.\n// clang-format off\n")
table("letter_ranges", regex_class(r"\p{L}"))
table("number_ranges", regex_class(r"\p{N}"))
table("space_ranges", regex_class(r"\s"))
table("late_ranges", late())
print("// clang-format on")
