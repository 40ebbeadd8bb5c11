#!/usr/bin/env python3
"""Writes src/tasks/kanji_forms.inc: the old kanji forms of the Joyo table (2010), each with its form in use.

The pairs come from the Joyo part of kyujipy's list; of it, forms that NFKC folds already and forms that the Joyo table
does not give (it names 364, of which NFKC folds 62) are left out, and the three old forms of U+5F01, which that list
keeps elsewhere, are added.

    pip download --no-deps kyujipy==0.6.8 && unzip kyujipy-0.6.8-py3-none-any.whl
    python reference/quality/kanji_forms.py kyujipy/data/kyujitai_simplified.cson > src/tasks/kanji_forms.inc
"""
import re
import sys
import unicodedata

# In kyujipy's list, but not in brackets in the Joyo table: there the form in use and the printed one differ in design alone.
NOT_JOYO = set("飮銳悅閱顏敎戶吳娛吿歲產舍尙靑淸稅說絕脫內舖沒隸籠")
ELSEWHERE = {"辨": "弁", "瓣": "弁", "辯": "弁"}


def main():
    forms = dict(ELSEWHERE)
    section = ""
    for line in open(sys.argv[1], encoding="utf-8"):
        line = line.strip()
        section = line if line.startswith("#") else section
        pair = re.match(r'\["(.)", "(.)"\]', line)
        if pair and section.startswith("# 常用"):
            new, old = pair.groups()
            if unicodedata.normalize("NFKC", old) == old and old not in NOT_JOYO:
                forms[old] = new
    assert len(forms) == 302, len(forms)
    print("// Written by reference/quality/kanji_forms.py (kyujipy 0.6.8). Do not edit.\n// clang-format off\n")
    print("// %d forms: old, in use; by code point.\nconstexpr KanjiForm kKanjiForms[] = {" % len(forms))
    cells = ["{0x%X, 0x%X}," % (ord(old), ord(new)) for old, new in sorted(forms.items())]
    for i in range(0, len(cells), 5):
        print("    " + " ".join(cells[i:i + 5]))
    print("};")


if __name__ == "__main__":
    main()
