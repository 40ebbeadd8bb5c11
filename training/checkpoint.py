#!/usr/bin/env python3
"""Writes the .nemo of a run from RUN/last.pt: checkpoint.py --work RUN --out FILE.nemo [--weights average] [--start-tdt]

`--weights last` (the default) takes the weights of the last step, `average` the running average, which lags behind by a few
hundred steps: better at the end of a long run, worse while the loss still falls fast. `--start-tdt` gives an untrained TDT head
what the CTC head knows (start_transducer in model.py), so that the file decodes with both.
"""
import argparse
import os

import torch

import model as models


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--work", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--weights", choices=["last", "average"], default="last")
    p.add_argument("--start-tdt", action="store_true")
    a = p.parse_args()
    run = torch.load(os.path.join(a.work, "last.pt"), weights_only=False)
    state = run["model" if a.weights == "last" else "average"]
    if a.start_tdt:
        models.start_transducer(state)
    models.rewrite(os.path.join(a.work, "model.nemo"), state, a.out)
    print(f"{a.out}: step {run['done']['step']}, {run['done']['audio'] / 3600:.2f} hours of audio, "
          f"{run['done']['cpu'] / 60:.1f} minutes of a core, {run['done']['wall'] / 60:.0f} minutes")


if __name__ == "__main__":
    main()
