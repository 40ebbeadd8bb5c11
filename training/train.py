#!/usr/bin/env python3
"""Trains the tiny recognizer on two CPU cores.

  train.py --data DATA --work RUN --minutes 60 [--init FILE.nemo] [options]

A run keeps RUN/last.pt (weights, averaged weights, optimizer, counters) every few minutes and goes on from it when it is
there; on a new machine it begins from --init, the .nemo of the repository, with a fresh optimizer. RUN/curve.csv gets one line
per evaluation (every fifth utterance of the test set), RUN/log.txt one per 20 steps. At the end, and at each evaluation, the
averaged weights are written to RUN/model.nemo (float16 weights in NeMo's archive). SIGTERM to the first process ends a run
as if its time were up.

Phases are made of options: --align S fades the loss on the words' own windows out over S steps, --parts limits the curriculum,
--tdt W adds the TDT loss, --freeze trains the heads alone.
"""
import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import torch
import torch.distributed as dist

import evaluate
import fast
import make_data
import model as models
import texts

FRAME = 0.08  # seconds of one encoder frame


class Data:
    """Cached parts; new ones are picked up at each pass."""

    def __init__(self, folder, tokenizer, parts):
        self.folder, self.tokenizer = folder, tokenizer
        self.first, self.end = map(int, parts.split(":"))
        self.known, self.items = set(), []
        path = os.path.join(folder, "noise.npy")
        self.noise = np.load(path, mmap_mode="r") if os.path.exists(path) else None
        self.refresh()

    def refresh(self):
        there = [part for part in range(self.first, self.end) if os.path.exists(os.path.join(self.folder, f"train-{part:05d}.jsonl"))]
        if dist.is_initialized():  # all processes must see the same data
            box = [there]
            dist.broadcast_object_list(box)
            there = box[0]
        for part in there:
            if part in self.known:
                continue
            name = os.path.join(self.folder, f"train-{part:05d}")
            self.known.add(part)
            mel = np.load(name + ".npy", mmap_mode="r")
            with open(name + ".jsonl", encoding="utf-8") as f:
                for line in f:
                    item = json.loads(line)
                    ids = self.tokenizer.encode(item["text"])
                    need = len(ids) + sum(a == b for a, b in zip(ids, ids[1:]))
                    if need <= 0.85 * item["frames"] / 8:  # room for a faster version of it
                        self.items.append((mel, item, ids))

    def batches(self, r, frames_per_batch, only_segments, max_frames):
        """One pass: lists of items of about the same length."""
        self.refresh()
        items = [x for x in self.items if (not only_segments or x[1]["segments"]) and x[1]["frames"] <= max_frames]
        r.shuffle(items)
        out = []
        for k in range(0, len(items), 1000):
            batch = []
            for x in sorted(items[k:k + 1000], key=lambda x: x[1]["frames"]):
                if batch and (len(batch) + 1) * x[1]["frames"] > frames_per_batch:
                    out.append(batch)
                    batch = []
                batch.append(x)
            out.append(batch)
        r.shuffle(out)
        return out


def warp(mel, stretch, bend):
    """Linear interpolation in time and in mel bins: speed without pitch, and another length of the vocal tract."""
    t = np.arange(int(len(mel) * stretch)) / stretch
    i = np.minimum(t.astype(int), len(mel) - 2)
    w = (t - i).astype(np.float32)[:, None]
    mel = mel[i] * (1 - w) + mel[i + 1] * w
    f = np.clip(np.arange(80) * bend, 0, 78.999)
    j = f.astype(int)
    v = (f - j).astype(np.float32)
    return mel[:, j] * (1 - v) + mel[:, j + 1] * v


def utterance(item, noise, g, segments_of, mask=True):
    """Augmented, normalized features [frames, 80] and the segments in encoder frames."""
    mel, info, ids = item
    x = np.asarray(mel[info["at"]:info["at"] + info["frames"]], np.float32)
    stretch = 1.0
    if g.random() < 0.8 and len(x) > 3:
        stretch = g.uniform(0.9, 1.12)
        x = warp(x, stretch, g.uniform(0.9, 1.1))
    if noise is not None and g.random() < 0.5:
        n = noise[g.integers(len(noise))]
        at = g.integers(len(n) - len(x))
        n = np.asarray(n[at:at + len(x)], np.float32)
        loud = np.log(np.mean(np.exp(x))) - np.log(np.mean(np.exp(n)))
        x = np.logaddexp(x, n + loud - g.uniform(3, 30) / 4.343)
    x = (x - x.mean(0)) / (x.std(0, ddof=1) + 1e-5)
    if mask:
        for _ in range(2):
            a, n = g.integers(80), g.integers(15)
            x[:, a:a + n] = 0
            a, n = g.integers(len(x)), g.integers(1 + min(25, len(x) // 12))
            x[a:a + n] = 0
    segments = segments_of(info) if info["segments"] else None
    if segments:
        segments = [(s, a * stretch / FRAME, b * stretch / FRAME) for s, a, b in segments]
    return x, segments


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--init", help=".nemo to begin from when RUN/last.pt is not there")
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--steps", type=int, default=10 ** 9, help="stop after this many steps in all")
    p.add_argument("--parts", default="0:1000")
    p.add_argument("--max-seconds", type=float, default=7)
    p.add_argument("--batch-seconds", type=float, default=40)
    p.add_argument("--lr", type=float, default=1.5e-3)
    p.add_argument("--warmup", type=int, default=100)
    p.add_argument("--cooldown", type=float, default=0, help="last minutes in which the rate falls to a twentieth")
    p.add_argument("--align", type=int, default=0, help="steps over which the word-window loss fades out")
    p.add_argument("--tdt", type=float, default=0.0)
    p.add_argument("--start-tdt", action="store_true", help="begin the TDT head as a copy of the CTC head")
    p.add_argument("--freeze", action="store_true")
    p.add_argument("--decay", type=float, default=0.995, help="of the averaged weights")
    p.add_argument("--bf16", action="store_true")
    p.add_argument("--workers", type=int, default=2, help="processes of one thread each; gradients are averaged at each step")
    p.add_argument("--eval-minutes", type=float, default=10)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    torch.set_num_threads(1)  # threads wait for each other at each operation, processes once a step
    os.makedirs(a.work, exist_ok=True)
    rank, children = int(os.environ.get("TRAIN_RANK", 0)), []
    if a.workers > 1:
        meet = os.path.join(os.path.abspath(a.work), "meet")
        if rank == 0:
            if os.path.exists(meet):
                os.remove(meet)
            children = [subprocess.Popen([sys.executable] + sys.argv, env=dict(os.environ, TRAIN_RANK=str(i))) for i in range(1, a.workers)]
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=a.workers)
    begin = time.time()
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))

    state_path = os.path.join(a.work, "last.pt")
    state = torch.load(state_path, weights_only=False) if os.path.exists(state_path) else None
    tokenizer_dir = os.path.join(a.work, "tokenizer")
    if a.init:
        model = models.restore(a.init)
    else:
        if rank == 0 and not os.path.exists(os.path.join(tokenizer_dir, "vocab.txt")):
            r = random.Random("tokenizer")
            mix = make_data.MIXES["wide"]
            models.train_tokenizer(tokenizer_dir, [texts.sentence(r, r.choices(list(mix), list(mix.values()))[0], False) for _ in range(20000)])
        if a.workers > 1:
            dist.barrier()
        model = models.create(tokenizer_dir, a.seed)
        with torch.no_grad():  # the blank need not be unlearned first
            model.ctc_decoder.decoder_layers[0].bias[-1] = -1.0
    model.train()
    fast.speed_up(model)
    model.encoder.sync_max_audio_length = False  # would wait for the other processes in each forward pass
    named = {k: v for k, v in model.named_parameters()}
    heads = [v for k, v in named.items() if k.startswith(("decoder.", "joint."))]
    trained = heads if a.freeze else list(named.values()) if a.tdt else [v for k, v in named.items() if not k.startswith(("decoder.", "joint."))]
    matrices = [v for v in trained if v.dim() >= 2]
    rest = [v for v in trained if v.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 1e-2}, {"params": rest, "weight_decay": 0.0}], lr=a.lr,
                                  betas=(0.9, 0.98), fused=True)
    done = {"step": 0, "audio": 0.0, "wall": 0.0, "cpu": 0.0}
    if state:
        model.load_state_dict(state["model"])
        done = state["done"]
        if state.get("trained") == len(trained):
            optimizer.load_state_dict(state["optimizer"])
    average = {k: v.detach().clone() for k, v in model.state_dict().items()}
    if state:
        average = state["average"]
    start_step = done["step"]
    if a.start_tdt:
        models.start_transducer(model.state_dict())
        average.update({k: v.detach().clone() for k, v in model.state_dict().items() if k.startswith(("decoder.", "joint."))})
    for module in model.joint.joint_net:  # random masks would undo the shift of start_transducer; NeMo needs the module
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0

    sp = model.tokenizer.tokenizer
    data = Data(a.data, sp, a.parts)

    def segments_of(info):
        split = info["text"].split(" ")
        return [(sp.encode(" ".join(split[x:y])), s, e) for x, y, s, e in info["segments"]]

    test = evaluate.load_test(a.data, 5)
    mels = evaluate.features(model, [os.path.join(a.data, x["audio"]) for x in test])
    if data.noise is None:
        print("no noise.npy: training without noises", flush=True)

    def save():
        torch.save({"model": model.state_dict(), "average": average, "optimizer": optimizer.state_dict(), "trained": len(trained),
                    "done": done}, state_path + ".tmp")
        os.replace(state_path + ".tmp", state_path)

    def evaluation(loss):
        now = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict(average)
        ctc, tdt = evaluate.decode(model, mels, tdt=a.tdt > 0 or a.freeze)
        models.save(model, os.path.join(a.work, "model.nemo"))
        row = {"step": done["step"], "audio_hours": round(done["audio"] / 3600, 2), "wall_minutes": round(done["wall"] / 60, 1),
               "cpu_minutes": round(done["cpu"] / 60, 1), "parts": len(data.known), "loss": round(loss, 3)}
        for name, got in (("ctc", ctc), ("tdt", tdt)):
            rates = evaluate.table(test, got) if got else {}
            for kind in ("spoken", "sentences"):
                row[f"wer_{kind}_{name}"] = round(rates[(kind, "")][0], 1) if got else ""
        path = os.path.join(a.work, "curve.csv")
        new = not os.path.exists(path)
        with open(path, "a", newline="", encoding="utf-8") as f:
            writer = csv.DictWriter(f, list(row))
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(row, *[f"\n   {x['text']} | {c}" + (f" | {t}" if t else "") for x, c, t in list(zip(test, ctc, tdt or ctc))[7:112:20]], flush=True)
        model.load_state_dict(now)
        model.train()

    log = open(os.path.join(a.work, "log.txt"), "a", encoding="utf-8")
    last_save = last_eval = time.time()
    wall, cpu = time.time(), time.process_time()
    losses, audio_since, since, cpu_since, mean_loss = [], 0.0, time.time(), time.process_time(), float("nan")
    stop = False
    while not stop:
        # the seed of a pass comes from where it begins, so that a run gone on with sees new orders and masks
        r, g = random.Random(f"{a.seed} {done['step']}"), np.random.default_rng([a.seed, done["step"], rank])
        torch.manual_seed(done["step"] * a.workers + rank)
        aligning = done["step"] < a.align
        batches = data.batches(r, a.batch_seconds * 100 / a.workers, aligning, a.max_seconds * 100)
        for batch in batches[rank:len(batches) - len(batches) % a.workers:a.workers]:
            left = 0.0 if ended else a.minutes * 60 - (time.time() - begin)
            scale = min(1.0, (done["step"] - start_step + 1) / a.warmup)
            if a.cooldown:
                scale *= max(0.05, min(1.0, left / (a.cooldown * 60)))
            for group in optimizer.param_groups:
                group["lr"] = a.lr * scale
            made = [utterance(item, data.noise, g, segments_of) for item in batch]
            ids = [item[2] for item in batch]
            lengths = torch.tensor([len(x) for x, _ in made])
            x = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(x) for x, _ in made], batch_first=True).transpose(1, 2)
            tokens = sum(map(len, ids))
            with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16), torch.set_grad_enabled(not a.freeze):
                if a.freeze:
                    model.encoder.eval()
                encoded, n = model.encoder(audio_signal=x, length=lengths)
                log_probs = model.ctc_decoder(encoder_output=encoded).float()
            loss, report = 0.0, []
            if not a.freeze:
                weight = max(0.0, 1 - done["step"] / a.align) if aligning else 0.0
                if weight > 0:
                    part, count = models.segment_ctc_loss(log_probs, n, [s or [] for _, s in made])
                    loss = loss + max(0.3, weight) * part / max(1, count)
                if weight < 1:
                    part = models.ctc_loss(log_probs, n, ids) / tokens
                    loss = loss + (1 - max(0.3, weight) if weight > 0 else 1.0) * part
                report.append(float(loss))
            if a.tdt:
                with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
                    labels = torch.tensor([len(t) for t in ids])
                    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(t) for t in ids], batch_first=True)
                    predicted, _, _ = model.decoder(targets=padded, target_length=labels)
                    f = model.joint.enc(encoded.transpose(1, 2))
                    h = model.joint.pred(predicted.transpose(1, 2))
                    logits = model.joint.joint_net(f[:, :, None] + h[:, None])
                part = models.tdt_loss(logits.float(), n, padded, labels).sum() / tokens
                report.append(float(part))
                loss = loss + a.tdt * part
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if a.workers > 1:
                # one message: all gradients, seconds of audio, and whether any process wants to stop
                grads = [v.grad if v.grad is not None else torch.zeros_like(v) for v in trained]
                flat = torch.cat([v.flatten() for v in grads] + [torch.tensor([float(lengths.sum()) / 100, float(left <= 0)])])
                dist.all_reduce(flat)
                seconds, stop = float(flat[-2]), float(flat[-1]) > 0
                at = 0
                for v, grad in zip(trained, grads):
                    v.grad = flat[at:at + v.numel()].view_as(v) / a.workers
                    at += v.numel()
            else:
                seconds, stop = float(lengths.sum()) / 100, left <= 0
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            with torch.no_grad():  # (only the first process's is used)
                decay = min(a.decay, (done["step"] + 1) / (done["step"] + 10))
                for k, v in model.state_dict().items():
                    if rank == 0 and v.is_floating_point():
                        average[k].lerp_(v, 1 - decay)
                    elif rank == 0:
                        average[k].copy_(v)
            done["step"] += 1
            done["audio"] += seconds
            done["wall"] += time.time() - wall
            done["cpu"] += a.workers * (time.process_time() - cpu)
            wall, cpu = time.time(), time.process_time()
            audio_since += seconds
            losses.append(report)
            stop = stop or done["step"] >= a.steps
            if rank:
                if stop:
                    break
                continue
            if done["step"] % 20 == 0:
                mean = np.mean(losses, 0)
                mean_loss = float(mean[0])
                losses = []
                line = (f"step {done['step']} loss {' '.join(f'{v:.3f}' for v in mean)} audio {done['audio'] / 3600:.2f} h, "
                        f"{audio_since / (time.time() - since):.1f} s/s wall, {audio_since / a.workers / (time.process_time() - cpu_since):.1f} s/s of a core")
                print(line, flush=True)
                log.write(line + "\n")
                log.flush()
                audio_since, since, cpu_since = 0.0, time.time(), time.process_time()
            if stop:
                break
            if time.time() - last_save > 180:
                save()
                last_save = time.time()
            if time.time() - last_eval > a.eval_minutes * 60:
                evaluation(mean_loss)
                last_eval = time.time()
    if rank == 0:
        save()
        evaluation(mean_loss)
        for child in children:
            child.wait()


if __name__ == "__main__":
    main()
