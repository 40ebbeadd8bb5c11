#!/usr/bin/env python3
"""Faster forward passes of NeMo's own modules for training on CPUs: same parameters, same results, same gradients.

  fast.py        compares outputs and gradients with NeMo's on random input, and the time of a training step

More than half of a training step went into the gradient of depthwise convolutions and into masks between them. Here the
depthwise convolutions (with the ReLU and the mask before them) are loops compiled by numba over channels-last data, pointwise
convolutions are matrix products, and frames past an utterance's end are skipped instead of being multiplied by zero.
"""
import types

import numba
import numpy as np
import torch
import torch.nn.functional as F


@numba.njit(fastmath=True, cache=True)
def _down_forward(x, w, bias, valid, y):
    """3x3 depthwise convolution of relu(x), stride 2, padding 1. x [B, H, W, C], w [9, C], rows of x >= valid[b] are zero."""
    B, H, W, C = x.shape
    for b in range(B):
        rows = min(H, valid[b])
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                for c in range(C):
                    y[b, i, j, c] = bias[c]
                for di in range(3):
                    r = 2 * i + di - 1
                    if r < 0 or r >= rows:
                        continue
                    for dj in range(3):
                        s = 2 * j + dj - 1
                        if s < 0 or s >= W:
                            continue
                        for c in range(C):
                            y[b, i, j, c] += max(x[b, r, s, c], np.float32(0)) * w[3 * di + dj, c]


@numba.njit(fastmath=True, cache=True)
def _down_backward(x, w, valid, g, gx, gw, gb):
    B, H, W, C = x.shape
    for b in range(B):
        rows = min(H, valid[b])
        for i in range(g.shape[1]):
            for j in range(g.shape[2]):
                for c in range(C):
                    gb[c] += g[b, i, j, c]
                for di in range(3):
                    r = 2 * i + di - 1
                    if r < 0 or r >= rows:
                        continue
                    for dj in range(3):
                        s = 2 * j + dj - 1
                        if s < 0 or s >= W:
                            continue
                        k = 3 * di + dj
                        for c in range(C):
                            v = x[b, r, s, c]
                            gw[k, c] += max(v, np.float32(0)) * g[b, i, j, c]
                            gx[b, r, s, c] += g[b, i, j, c] * w[k, c] if v > 0 else np.float32(0)


class _Down(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, valid):
        x = x.contiguous()
        w = weight.detach().reshape(weight.shape[0], 9).t().contiguous()
        y = torch.empty(x.shape[0], (x.shape[1] - 1) // 2 + 1, (x.shape[2] - 1) // 2 + 1, x.shape[3])
        _down_forward(x.detach().numpy(), w.numpy(), bias.detach().numpy(), valid.numpy(), y.numpy())
        ctx.save_for_backward(x, w, valid)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w, valid = ctx.saved_tensors
        gx, gw, gb = torch.zeros_like(x), torch.zeros_like(w), torch.zeros(x.shape[3])
        _down_backward(x.numpy(), w.numpy(), valid.numpy(), g.contiguous().numpy(), gx.numpy(), gw.numpy(), gb.numpy())
        return gx, gw.t().reshape(-1, 1, 3, 3), gb, None


@numba.njit(fastmath=True, cache=True)
def _line_forward(x, w, valid, y):
    """Depthwise convolution along time, symmetric. x [B, T, C], w [K, C]; frames >= valid[b] are zero."""
    half = w.shape[0] // 2
    for b in range(x.shape[0]):
        n = min(x.shape[1], valid[b])
        for t in range(x.shape[1]):
            for c in range(x.shape[2]):
                y[b, t, c] = np.float32(0)
            for k in range(max(0, half - t), min(w.shape[0], n + half - t)):
                for c in range(x.shape[2]):
                    y[b, t, c] += x[b, t + k - half, c] * w[k, c]


@numba.njit(fastmath=True, cache=True)
def _line_backward(x, w, valid, g, gx, gw):
    half = w.shape[0] // 2
    for b in range(x.shape[0]):
        n = min(x.shape[1], valid[b])
        for t in range(x.shape[1]):
            for k in range(max(0, half - t), min(w.shape[0], n + half - t)):
                for c in range(x.shape[2]):
                    gw[k, c] += x[b, t + k - half, c] * g[b, t, c]
                    gx[b, t + k - half, c] += g[b, t, c] * w[k, c]


class _Line(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, valid):
        x = x.contiguous()
        w = weight.detach()[:, 0].t().contiguous()
        y = torch.empty_like(x)
        _line_forward(x.detach().numpy(), w.numpy(), valid.numpy(), y.numpy())
        ctx.save_for_backward(x, w, valid)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w, valid = ctx.saved_tensors
        gx, gw = torch.zeros_like(x), torch.zeros_like(w)
        _line_backward(x.numpy(), w.numpy(), valid.numpy(), g.contiguous().numpy(), gx.numpy(), gw.numpy())
        return gx, gw.t()[:, None], None


def _subsample(self, x, lengths):
    """ConvSubsampling.forward: x [B, T, mels] -> [B, T / 8, d], lengths."""
    conv, n = self.conv, lengths
    with torch.autocast("cpu", enabled=False):
        # the first convolution as a matrix product over patches of 3x3, channels last from the start
        x = x.float() * (torch.arange(x.shape[1])[None, :, None] < lengths[:, None, None])
        patches = F.pad(x, (1, 1, 1, 1)).unfold(1, 3, 2).unfold(2, 3, 2)
        x = F.linear(patches.reshape(*patches.shape[:3], 9), conv[0].weight.reshape(-1, 9), conv[0].bias)
    for down, point in ((conv[2], conv[3]), (conv[5], conv[6])):
        n = (n - 1) // 2 + 1
        x = _Down.apply(x.float(), down.weight, down.bias, n)
        x = F.linear(x, point.weight[:, :, 0, 0], point.bias)
    n = (n - 1) // 2 + 1
    x = F.relu(x).transpose(2, 3).flatten(2)  # [B, T, channel * mel], channel-major as NeMo has it
    return self.out(x), n


def _convolution(self, x, pad_mask=None, cache=None):
    """ConformerConvolution.forward: x [B, T, d]; pad_mask [B, T] is true past the end."""
    assert cache is None
    valid = (~pad_mask).sum(1) if pad_mask is not None else torch.full((x.shape[0],), x.shape[1])
    x = F.glu(F.linear(x, self.pointwise_conv1.weight[:, :, 0], self.pointwise_conv1.bias), dim=2)
    x = _Line.apply(x.float(), self.depthwise_conv.weight, valid)
    if self.depthwise_conv.bias is not None:
        x = x + self.depthwise_conv.bias
    x = self.activation(self.batch_norm(x.flatten(0, 1)).view_as(x))
    return F.linear(x, self.pointwise_conv2.weight[:, :, 0], self.pointwise_conv2.bias)


def speed_up(model):
    """Replaces the forward passes of a model's encoder; nothing else of it, and nothing that is saved."""
    encoder = model.encoder
    encoder.pre_encode.forward = types.MethodType(_subsample, encoder.pre_encode)
    for layer in encoder.layers:
        layer.conv.forward = types.MethodType(_convolution, layer.conv)


def main():
    import tempfile
    import time

    import model as models
    import texts
    import random
    torch.set_num_threads(1)
    r = random.Random(0)
    with tempfile.TemporaryDirectory() as d:
        models.train_tokenizer(d, [texts.sentence(r, k, False) for _ in range(3000) for k in ("numbers", "general")])
        model = models.create(d)
    model.train()
    torch.manual_seed(0)
    x, n = torch.randn(16, 80, 250), torch.randint(150, 251, (16,))
    n[0] = 250
    params = {k: v for k, v in model.encoder.named_parameters()}

    def step(bf16=False):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            y, m = model.encoder(audio_signal=x, length=n)
        mask = torch.arange(y.shape[2])[None, None] < m[:, None, None]
        weight = torch.sin(torch.arange(y.numel()).float()).view_as(y)
        loss = (y.float() * weight * mask).sum()
        return y.detach() * mask, m, torch.autograd.grad(loss, list(params.values()))

    def pace(bf16):
        step(bf16)
        begin = time.process_time()
        for _ in range(3):
            step(bf16)
        return 3 * float(n.sum()) / 100 / (time.process_time() - begin)

    want = step()
    slow = pace(False), pace(True)
    speed_up(model)
    got = step()
    fast = pace(False), pace(True)
    assert torch.equal(want[1], got[1])
    out = float((want[0] - got[0]).abs().max() / want[0].abs().max())
    grads = {k: float((a - b).abs().max() / (a.abs().max() + 1e-6)) for k, a, b in zip(params, want[2], got[2])}
    worst = max(grads, key=grads.get)
    print(f"output differs by {out:.1e}, gradients by at most {grads[worst]:.1e} ({worst}), relative to their largest")
    print(f"seconds of audio per second of one core: NeMo {slow[0]:.0f} (bfloat16 {slow[1]:.0f}), here {fast[0]:.0f} ({fast[1]:.0f})")
    assert out < 1e-3 and grads[worst] < 2e-2


if __name__ == "__main__":
    main()
