#!/usr/bin/env python3
"""Learning curve as a picture: plot.py CURVE.csv OUT.png"""
import csv
import sys

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main():
    with open(sys.argv[1], newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), dpi=80)
    hours = [float(r["audio_hours"]) for r in rows]
    left.plot(hours, [float(r["loss"]) for r in rows], "k.-")
    left.set(xlabel="hours of audio seen", ylabel="training loss per token", yscale="log")
    for name, style in (("spoken_ctc", "b.-"), ("spoken_tdt", "b.--"), ("sentences_ctc", "r.-"), ("sentences_tdt", "r.--")):
        points = [(h, float(r["wer_" + name])) for h, r in zip(hours, rows) if r["wer_" + name]]
        if points:
            right.plot(*zip(*points), style, label=name.replace("_", ", "))
    right.set(xlabel="hours of audio seen", ylabel="word error rate, held-out voices (%)", ylim=(0, 105))
    right.legend()
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(sys.argv[2])


if __name__ == "__main__":
    main()
