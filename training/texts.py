#!/usr/bin/env python3
"""Sentences for training and testing, by seed.

  texts.py [--seed 1] [--count 20] [--domain DOMAIN]      prints a sample

Everything is spelled in words ("twenty-five dollars"), never in digits: with few hours of training a model learns to
write what it hears, while digits would ask it for grouping and place value at once.

Domains: `words` (one to three words: the start of the curriculum), `numbers`, `dates`, `times`, `prices`, `commands`,
`names`, `plain` (sentences of a small grammar of everyday words) and `general` (example sentences of WordNet 3.0, Debian
package wordnet-base).

A sentence belongs to the test set if a checksum of its letters says so (one in 16), whatever seed or domain made it, so no
sentence is ever in both sets.
"""
import argparse
import random
import re
import zlib

ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
        "eighteen nineteen").split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
ORDINALS = ("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
            "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth").split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = ("January February March April May June July August September October November December").split()
FIRST = ("Anna Peter Maria John Susan David Laura Thomas Emma Daniel Julia Robert Alice Martin Helen George Sarah Michael "
         "Nina Paul Clara Henry Rose Frank Lucy Simon Grace Oliver Kate Victor Eva Samuel").split()
LAST = ("Miller Jones Smith Brown Taylor Wilson Clark Baker Walker Young King Green Hill Cooper Carter Morgan Bell Fisher "
        "Hunter Mason Parker Reed Stone Turner Ward Wood Foster Gray").split()
ROOMS = "kitchen|bedroom|living room|bathroom|hall|garden|office|garage".split("|")
DEVICES = "light|lamp|heater|fan|radio|television|alarm|oven|camera|door lock|music|printer".split("|")
THINGS = "door window box bag book letter picture table chair cup bottle key phone map ticket".split()
PLACES = "station airport school market library museum hospital river park bridge beach church bank".split()
COLORS = "red green blue white black yellow orange purple brown".split()
FOODS = "bread butter cheese coffee tea milk sugar rice soup fish salad apples eggs water juice".split()
ITEMS = ("ticket|shirt|book|cup of coffee|pair of shoes|bottle of water|loaf of bread|chair|lamp|blue coat|phone|room|"
         "bag of apples").split("|")
SINGLE = ("Yes|No|Stop|Start|Go|Help|Cancel|Next|Back|Again|Continue|Pause|Play|Louder|Quieter|Open|Close|Left|Right|Up|Down|"
          "On|Off|Hello|Goodbye|Thank you|Please|Good morning|Good evening|Good night|Sorry|Today|Tomorrow|Yesterday|"
          "Now|Later|Never|Always|Maybe|Wait|Repeat|Save|Delete|Send|Read|Write|Call|Answer|Hang up").split("|")
PEOPLE = ("the man|the woman|my brother|her sister|our teacher|the old farmer|the young doctor|his mother|their father|"
          "the children|my friend|the driver|the cook|the king|a little girl|the boy|the captain|the nurse").split("|")
VERBS = ("opened|closed|found|lost|carried|bought|sold|cleaned|painted|broke|repaired|saw|wanted|dropped|kept|hid|took|"
         "brought").split("|")
ENDS = ("in the morning|in the evening|last night|after dinner|before the storm|near the river|at the station|in the garden|"
        "on the hill|without a word|for the first time|with great care|under the bridge|across the street").split("|")
SAYINGS = ("It is {w} today|The weather is {w}|I am very {f}|We were all {f}|She looked {f}|Are you {f}|Is it {w} outside|"
           "It will be {w} tomorrow").split("|")
WEATHER = "cold warm hot sunny rainy windy cloudy dry wet dark".split()
FEELINGS = "happy tired hungry sad angry late early ready busy alone sick".split()


def number(n):
    """0 <= n < 1,000,000 in words."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    if n < 1000:
        return ONES[n // 100] + " hundred" + (" and " + number(n % 100) if n % 100 else "")
    rest = n % 1000
    return number(n // 1000) + " thousand" + ((" and " if rest < 100 else " ") + number(rest) if rest else "")


def ordinal(n):
    """1 <= n < 40 in words."""
    if n <= 20:
        return ORDINALS[n - 1]
    return "thirtieth" if n == 30 else TENS[n // 10] + "-" + ORDINALS[n % 10 - 1]


def some_number(r):
    return number(r.choice([r.randrange(10), r.randrange(20), r.randrange(100), r.randrange(100), r.randrange(1000),
                            r.randrange(10000), r.randrange(100000)]))


def year(r):
    if r.random() < 0.3:
        return "two thousand" + r.choice(["", " and " + number(r.randrange(1, 10)), " and " + number(r.randrange(10, 26))])
    low = r.randrange(1, 100)
    return number(r.randrange(15, 21)) + " " + ("oh " + ONES[low] if low < 10 else number(low))


def clock(r):
    hour, minute = r.randrange(1, 13), r.randrange(1, 60)
    base = r.choice([f"{number(hour)} o'clock", f"half past {number(hour)}", f"a quarter to {number(hour)}",
                     f"a quarter past {number(hour)}", f"{number(r.choice([5, 10, 20]))} past {number(hour)}",
                     f"{number(r.choice([5, 10, 20]))} to {number(hour)}",
                     f"{number(hour)} " + (f"oh {ONES[minute]}" if minute < 10 else number(minute)),
                     f"{number(hour)} {number(r.choice([15, 20, 30, 40, 45, 50]))}"])
    return base + r.choice(["", "", "", " in the morning", " in the evening", " in the afternoon", " tonight"])


def date(r):
    day, month = ordinal(r.randrange(1, 32)), r.choice(MONTHS)
    base = r.choice([f"the {day} of {month}", f"{month} {day}", f"{month} the {day}"])
    if r.random() < 0.3:
        base = f"{r.choice(DAYS)}, {base}"
    return base + (f", {year(r)}" if r.random() < 0.25 else "")


def price(r):
    unit = r.choice(["dollar", "euro", "pound"])
    n = r.choice([r.randrange(1, 20), r.randrange(1, 100), r.randrange(1, 1000)])
    text = f"{number(n)} {unit}{'' if n == 1 else 's'}"
    if r.random() < 0.4:
        cents = r.choice([5, 10, 20, 25, 50, 75, 95, 99, r.randrange(2, 100)])
        text += r.choice([" and {} cents", " {}"]).format(number(cents))
    return text


def name(r):
    return r.choice([r.choice(FIRST), f"{r.choice(FIRST)} {r.choice(LAST)}", f"Mister {r.choice(LAST)}", f"Doctor {r.choice(LAST)}"])


def words(r):
    return r.choice([
        lambda: r.choice(SINGLE), lambda: number(r.randrange(20)), lambda: number(r.randrange(100)), lambda: r.choice(DAYS),
        lambda: r.choice(MONTHS), lambda: r.choice(FIRST), lambda: r.choice(LAST), lambda: f"The {r.choice(THINGS)}",
        lambda: f"A {r.choice(COLORS)} {r.choice(THINGS)}", lambda: f"The {r.choice(PLACES)}", lambda: r.choice(FOODS),
        lambda: f"The {r.choice(ROOMS)}", lambda: f"The {r.choice(DEVICES)}", lambda: f"The {ordinal(r.randrange(1, 32))}",
        lambda: f"{number(r.randrange(1, 13))} o'clock", lambda: f"{r.choice(WEATHER)} and {r.choice(WEATHER)}",
        lambda: r.choice(ENDS), lambda: r.choice(PEOPLE)])()


def numbers(r):
    digits = lambda k: " ".join(ONES[r.randrange(10)] for _ in range(k))
    return r.choice([
        lambda: some_number(r), lambda: some_number(r), lambda: digits(r.randrange(3, 7)),
        lambda: f"{digits(3)}, {digits(4)}", lambda: f"My number is {digits(r.randrange(3, 6))}",
        lambda: f"The answer is {some_number(r)}", lambda: f"Room {number(r.randrange(1, 400))}",
        lambda: f"Page {number(r.randrange(1, 400))}", lambda: f"{number(r.randrange(100))} plus {number(r.randrange(100))}",
        lambda: f"{number(r.randrange(100))} minus {number(r.randrange(20))}",
        lambda: f"There are {number(r.randrange(2, 1000))} people here",
        lambda: f"{number(r.randrange(1, 100))} percent", lambda: f"Zero point {digits(r.randrange(1, 4))}",
        lambda: f"We need {number(r.randrange(2, 100))} {r.choice(THINGS)}s" ])()


def dates(r):
    return r.choice([
        lambda: date(r), lambda: date(r), lambda: f"Today is {date(r)}", lambda: f"My birthday is {date(r)}",
        lambda: f"We meet on {r.choice(DAYS)}", lambda: f"The meeting is on {date(r)}", lambda: f"In {r.choice(MONTHS)}",
        lambda: f"She was born in {year(r)}", lambda: f"See you on {r.choice(DAYS)}", lambda: f"It was {year(r)}",
        lambda: f"From {r.choice(DAYS)} to {r.choice(DAYS)}", lambda: f"What day is {date(r)}?",
        lambda: f"The shop is closed on {r.choice(DAYS)}"])()


def times(r):
    return r.choice([
        lambda: clock(r), lambda: clock(r), lambda: f"It is {clock(r)}", lambda: f"The train leaves at {clock(r)}",
        lambda: f"Wake me up at {clock(r)}", lambda: f"Dinner is at {clock(r)}", lambda: f"Can we meet at {clock(r)}?",
        lambda: f"The bus arrives at {clock(r)}", lambda: f"I will be there at {clock(r)}",
        lambda: f"In {number(r.randrange(2, 60))} minutes", lambda: f"It takes {number(r.randrange(2, 13))} hours"])()


def prices(r):
    return r.choice([
        lambda: price(r), lambda: price(r), lambda: f"It costs {price(r)}", lambda: f"That is {price(r)}",
        lambda: f"The {r.choice(ITEMS)} costs {price(r)}", lambda: f"I paid {price(r)} for the {r.choice(ITEMS)}",
        lambda: f"How much is the {r.choice(ITEMS)}?", lambda: f"Can you lend me {price(r)}?",
        lambda: f"One {r.choice(ITEMS)} for {price(r)}"])()


def commands(r):
    room, dev = r.choice(ROOMS), r.choice(DEVICES)
    return r.choice([
        lambda: f"Turn on the {dev}", lambda: f"Turn off the {dev}", lambda: f"Turn {r.choice(['on', 'off'])} the {room} light",
        lambda: f"Switch off the {dev} in the {room}", lambda: f"Set a timer for {number(r.randrange(1, 60))} minutes",
        lambda: f"Set an alarm for {clock(r)}", lambda: f"Open the {r.choice(THINGS)}", lambda: f"Close the {room} window",
        lambda: f"Call {name(r)}", lambda: f"Send a message to {name(r)}", lambda: f"Play the {r.choice(['next', 'last', 'first'])} song",
        lambda: f"Play some music in the {room}", lambda: f"Volume {number(r.randrange(1, 11))}",
        lambda: f"Set the {room} to {number(r.randrange(15, 30))} degrees", lambda: f"Add {r.choice(FOODS)} to the list",
        lambda: f"Add {r.choice(FOODS)} and {r.choice(FOODS)} to the shopping list", lambda: f"Go to the {r.choice(PLACES)}",
        lambda: f"Find the way to the {r.choice(PLACES)}", lambda: f"Read the {r.choice(['next', 'last', 'first', 'new'])} message",
        lambda: f"What is the weather on {r.choice(DAYS)}?", lambda: f"What time is it?", lambda: f"Stop the {dev}",
        lambda: f"Make the {room} light {r.choice(COLORS)}", lambda: f"Remind me on {r.choice(DAYS)} at {clock(r)}",
        lambda: f"Is the {dev} in the {room} on?", lambda: f"Go {r.choice(['left', 'right', 'back', 'up', 'down'])}"])()


def names(r):
    return r.choice([
        lambda: f"My name is {name(r)}", lambda: f"This is {name(r)}", lambda: f"Hello, {r.choice(FIRST)}",
        lambda: f"Please call {name(r)}", lambda: f"Is {name(r)} here?", lambda: f"{r.choice(FIRST)} and {r.choice(FIRST)}",
        lambda: f"Good morning, {name(r)}", lambda: f"I am {name(r)}", lambda: f"{name(r)} lives near the {r.choice(PLACES)}",
        lambda: f"{r.choice(FIRST)} likes {r.choice(FOODS)}", lambda: f"Where is {r.choice(FIRST)}?"])()


def plain(r):
    return r.choice([
        lambda: f"{r.choice(PEOPLE)} {r.choice(VERBS)} the {r.choice(THINGS)} {r.choice(ENDS)}",
        lambda: f"{r.choice(PEOPLE)} {r.choice(VERBS)} a {r.choice(COLORS)} {r.choice(THINGS)}",
        lambda: f"{r.choice(PEOPLE)} {r.choice(VERBS)} the {r.choice(COLORS)} {r.choice(THINGS)} {r.choice(ENDS)}",
        lambda: f"I like {r.choice(FOODS)} and {r.choice(FOODS)}", lambda: f"Do you want some {r.choice(FOODS)}?",
        lambda: f"We went to the {r.choice(PLACES)} on {r.choice(DAYS)}",
        lambda: f"{r.choice(PEOPLE)} is in the {r.choice(ROOMS)}",
        lambda: f"Where is the {r.choice(PLACES)}?", lambda: f"The {r.choice(THINGS)} is {r.choice(COLORS)}",
        lambda: f"Put the {r.choice(THINGS)} on the {r.choice(['table', 'chair', 'box'])}",
        lambda: r.choice(SAYINGS).format(w=r.choice(WEATHER), f=r.choice(FEELINGS)),
        lambda: f"I saw {r.choice(PEOPLE)} {r.choice(ENDS)}",
        lambda: f"{r.choice(FIRST)} {r.choice(VERBS)} the {r.choice(THINGS)}, and {r.choice(PEOPLE)} {r.choice(VERBS)} the {r.choice(THINGS)}"])()


WORDNET = "/usr/share/wordnet/data."
_wordnet = None


def wordnet_sentences():
    """Example sentences of WordNet that are short, plain letters and made of words seen in at least four examples."""
    global _wordnet
    if _wordnet is None:
        found = []
        for part in ("verb", "noun", "adj", "adv"):
            with open(WORDNET + part, encoding="ascii", errors="ignore") as f:
                for line in f:
                    found += re.findall(r'"([^"]*)"', line)
        found = [s for s in dict.fromkeys(x.strip() for x in found) if re.fullmatch(r"[A-Za-z][a-z' ,A-Z]*[?!.]?", s) and 3 <= len(s.split()) <= 10]
        count = {}
        for s in found:
            for w in set(re.findall(r"[a-z']+", s.lower())):
                count[w] = count.get(w, 0) + 1
        _wordnet = [s for s in found if all(count[w] >= 4 for w in re.findall(r"[a-z']+", s.lower()))]
    return _wordnet


def general(r):
    return r.choice(wordnet_sentences())


MAKERS = {"words": words, "numbers": numbers, "dates": dates, "times": times, "prices": prices, "commands": commands,
          "names": names, "plain": plain, "general": general}


def finish(text, r):
    """Capital first, mark last."""
    text = text[0].upper() + text[1:]
    if text[-1] not in ".?!":
        question = text.split()[0] in ("Are", "Is", "Do", "What", "Where", "How", "Can")
        text += "?" if question else "."
    return text


def in_test(text):
    """Whether the sentence belongs to the test set: a fact of its letters alone."""
    return zlib.crc32(re.sub(r"[^a-z]", "", text.lower()).encode()) % 16 == 0


def sentence(r, domain, test):
    """One sentence of the wanted set; `r` is a random.Random."""
    while True:
        text = finish(MAKERS[domain](r), r)
        if in_test(text) == test:
            return text


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--count", type=int, default=20)
    p.add_argument("--domain")
    a = p.parse_args()
    r = random.Random(a.seed)
    for domain in [a.domain] if a.domain else MAKERS:
        for _ in range(a.count):
            print(domain, sentence(r, domain, False), sep="\t")


if __name__ == "__main__":
    main()
