"""The model in NeMo's own classes: configuration, tokenizer, losses, files.

EncDecHybridRNNTCTCBPEModel with a TDT head and a CTC head over one FastConformer encoder. Everything that is saved is what
NeMo saves; only the training loop and the losses below are ours, because NeMo's TDT loss needs a GPU or is a loop in Python.
"""
import io
import logging
import os
import re
import tarfile
import tempfile

import numba
import numpy as np
import torch

VOCAB = 256
DURATIONS = (0, 1, 2, 3, 4)
D = 256


def config(tokenizer_dir):
    """model_config.yaml: keys as in the released hybrid TDT + CTC models, small numbers. Rows of every large matrix are
    multiples of 256 (d_model 256, feed-forward 512, 128 channels x 10 mel bins = 1280 into pre_encode.out)."""
    ds = {"manifest_filepath": None, "sample_rate": 16000, "batch_size": 16, "shuffle": False}
    return {
        "sample_rate": 16000, "compute_eval_loss": False, "log_prediction": False, "rnnt_reduction": "mean_volume",
        "skip_nan_grad": False,
        "model_defaults": {"enc_hidden": D, "pred_hidden": D, "joint_hidden": D, "tdt_durations": list(DURATIONS),
                           "num_tdt_durations": len(DURATIONS)},
        "train_ds": dict(ds, shuffle=True), "validation_ds": dict(ds),
        "tokenizer": {"dir": tokenizer_dir, "type": "bpe"},
        "preprocessor": {"_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor", "sample_rate": 16000,
                         "normalize": "per_feature", "window_size": 0.025, "window_stride": 0.01, "window": "hann",
                         "features": 80, "n_fft": 512, "log": True, "frame_splicing": 1, "dither": 1e-5, "pad_to": 0,
                         "pad_value": 0.0},
        "spec_augment": {"_target_": "nemo.collections.asr.modules.SpectrogramAugmentation", "freq_masks": 2, "time_masks": 2,
                         "freq_width": 14, "time_width": 0.05},
        "encoder": {"_target_": "nemo.collections.asr.modules.ConformerEncoder", "feat_in": 80, "feat_out": -1, "n_layers": 5,
                    "d_model": D, "use_bias": False, "subsampling": "dw_striding", "subsampling_factor": 8,
                    "subsampling_conv_channels": 128, "causal_downsampling": False, "reduction": None,
                    "reduction_position": None, "reduction_factor": 1, "ff_expansion_factor": 2,
                    "self_attention_model": "rel_pos", "n_heads": 4, "att_context_size": [-1, -1],
                    "att_context_style": "regular", "xscaling": False, "untie_biases": True, "pos_emb_max_len": 5000,
                    "conv_kernel_size": 9, "conv_norm_type": "batch_norm", "conv_context_size": None,
                    # no dropout: random masks cost time on CPUs, and the data is augmented without end
                    "dropout": 0.0, "dropout_pre_encoder": 0.0, "dropout_emb": 0.0, "dropout_att": 0.0,
                    "stochastic_depth_drop_prob": 0.0, "stochastic_depth_mode": "linear", "stochastic_depth_start_layer": 1},
        "decoder": {"_target_": "nemo.collections.asr.modules.RNNTDecoder", "normalization_mode": None,
                    "random_state_sampling": False, "blank_as_pad": True,
                    "prednet": {"pred_hidden": D, "pred_rnn_layers": 1, "t_max": None, "dropout": 0.1}},
        # the dropout module must exist: it makes the last Linear `joint_net.2`, as in the released models
        "joint": {"_target_": "nemo.collections.asr.modules.RNNTJoint", "log_softmax": None, "preserve_memory": False,
                  "fuse_loss_wer": True, "fused_batch_size": 4, "num_extra_outputs": len(DURATIONS),
                  "jointnet": {"joint_hidden": D, "activation": "relu", "dropout": 0.1}},
        "decoding": {"strategy": "greedy_batch", "model_type": "tdt", "durations": list(DURATIONS),
                     "greedy": {"max_symbols": 10},
                     "beam": {"beam_size": 2, "return_best_hypothesis": False, "score_norm": True, "tsd_max_sym_exp": 50,
                              "alsd_max_target_len": 2.0}},
        "aux_ctc": {"ctc_loss_weight": 0.3, "use_cer": False, "ctc_reduction": "mean_volume",
                    "decoder": {"_target_": "nemo.collections.asr.modules.ConvASRDecoder", "feat_in": D, "num_classes": -1,
                                "vocabulary": []},
                    "decoding": {"strategy": "greedy", "greedy": {}}},
        "interctc": {"loss_weights": [], "apply_at_layers": []},
        "loss": {"loss_name": "tdt", "tdt_kwargs": {"fastemit_lambda": 0.0, "clamp": -1.0, "durations": list(DURATIONS),
                                                    "sigma": 0.02, "omega": 0.0}},
        "optim": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 1e-3},
    }


def train_tokenizer(folder, sentences):
    """SentencePiece BPE of VOCAB pieces in the layout NeMo expects."""
    import sentencepiece as spm
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.model"), "wb") as f:  # a prefix would be written into the model
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=f, vocab_size=VOCAB, model_type="bpe", character_coverage=1.0, bos_id=-1,
            eos_id=-1, unk_id=0, num_threads=1, minloglevel=2)
    sp = spm.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as f:
        for i in range(1, sp.get_piece_size()):
            piece = sp.id_to_piece(i)
            f.write((piece[1:] if piece.startswith("\u2581") else "##" + piece) + "\n")


def start_transducer(state):
    """Gives the untrained TDT head of a state dict what the CTC head knows: at its first step it writes each piece where CTC
    would.

    joint.enc becomes the identity plus a shift that keeps the ReLU almost linear, the last layer the CTC head with the shift
    taken off again, and every duration starts as 1. What it lacks is the prediction network's part: not to write twice.
    """
    shift, weight, bias = 3.0, state["ctc_decoder.decoder_layers.0.weight"][:, :, 0], state["ctc_decoder.decoder_layers.0.bias"]
    last = state["joint.joint_net.2.weight"], state["joint.joint_net.2.bias"]
    with torch.no_grad():
        state["joint.enc.weight"].copy_(torch.eye(D))
        state["joint.enc.bias"].fill_(shift)
        state["joint.pred.weight"].mul_(0.3)
        state["joint.pred.bias"].zero_()
        last[0].zero_()
        last[1].zero_()
        last[0][:VOCAB + 1] = weight
        last[1][:VOCAB + 1] = bias - shift * weight.sum(1)
        last[1][VOCAB + 2] = 2.0  # duration 1


def quiet():
    """NeMo reports every default as a warning."""
    logging.getLogger("nemo_logger").setLevel(logging.ERROR)
    from nemo.utils import logging as nemo_logging
    nemo_logging.setLevel(logging.ERROR)


def create(tokenizer_dir, seed=1):
    quiet()
    from nemo.collections.asr.models import EncDecHybridRNNTCTCBPEModel
    from omegaconf import OmegaConf
    torch.manual_seed(seed)
    return EncDecHybridRNNTCTCBPEModel(cfg=OmegaConf.create(config(tokenizer_dir)))


def restore(path):
    quiet()
    from nemo.collections.asr.models import ASRModel
    return ASRModel.restore_from(path, map_location="cpu")


def save(model, path):
    """NeMo's save_to, with the weights in the archive as float16."""
    with tempfile.TemporaryDirectory() as d:
        whole = os.path.join(d, "whole.nemo")
        model.save_to(whole)
        rewrite(whole, model.state_dict(), path)


def rewrite(source, state, path):
    """A copy of a .nemo archive with the weights of `state`, float16 but for the preprocessor's tables: half the bytes, and
    NeMo's restore widens them. Needs no NeMo."""
    state = {k: v.half() if v.is_floating_point() and not k.startswith("preprocessor.") else v for k, v in state.items()}
    weights = io.BytesIO()
    torch.save(state, weights)
    with tarfile.open(source) as old:
        members = {m.name: old.extractfile(m).read() for m in old.getmembers() if m.isfile()}
    with tarfile.open(path, "w") as new:
        for name, data in sorted(members.items()):
            if name.endswith("model_weights.ckpt"):
                data = weights.getvalue()
            elif name.endswith("model_config.yaml"):  # NeMo reads the tokenizer from the archive, wherever it once lay
                data = re.sub(rb"(?m)^(\s+dir: ).*$", rb"\1tokenizer", data)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            new.addfile(info, io.BytesIO(data))


# ----------------------------------------------------------------------------------------------------------------------------
# Losses
# ----------------------------------------------------------------------------------------------------------------------------
def ctc_loss(log_probs, lengths, targets):
    """Sum of -log p over utterances. log_probs [B, T, V+1] (blank last), targets: lists of ids."""
    flat = torch.tensor([i for t in targets for i in t], dtype=torch.long)
    return torch.nn.functional.ctc_loss(log_probs.transpose(0, 1), flat, lengths, torch.tensor([len(t) for t in targets]),
                                        blank=log_probs.shape[2] - 1, reduction="sum", zero_infinity=True)


def segment_ctc_loss(log_probs, lengths, segments):
    """CTC where each word may only be written near the time it is spoken, for engines that tell that time.

    segments: per utterance [(ids, start, end)] with times in frames. Each segment is a small CTC problem on its own window of
    frames, so alignments need not be discovered. (How much sooner a model learns by it has not been measured.)
    """
    rows, targets, widths = [], [], []
    for b, items in enumerate(segments):
        last = int(lengths[b])
        for ids, start, end in items:
            need = len(ids) + sum(x == y for x, y in zip(ids, ids[1:]))
            a, z = max(0, int(start) - 1), min(last, int(np.ceil(end)) + 1)
            while z - a < need and (a > 0 or z < last):
                a, z = max(0, a - 1), min(last, z + 1)
            if z - a >= need:
                rows.append(log_probs[b, a:z])
                targets.append(ids)
                widths.append(z - a)
    if not rows:
        return log_probs.sum() * 0, 0
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return ctc_loss(padded, torch.tensor(widths), targets), sum(map(len, targets))


@numba.njit(cache=True)
def _log_add(a, b):
    if a < b:
        a, b = b, a
    return a if b == -np.inf else a + np.log1p(np.exp(b - a))


@numba.njit(cache=True)
def _tdt(blank, label, dur, durations, frames, labels, g_blank, g_label, g_dur):
    """-log p of each utterance, and the gradients of it in the three tables (float64)."""
    batch, most_t, most_u = blank.shape
    loss = np.zeros(batch)
    for b in range(batch):
        T, U = frames[b], labels[b]
        alpha = np.full((T + 1, U + 1), -np.inf)
        beta = np.full((T + 1, U + 1), -np.inf)
        alpha[0, 0] = 0.0
        for t in range(T):
            for u in range(U + 1):
                a = alpha[t, u]
                if a == -np.inf:
                    continue
                for k in range(len(durations)):
                    n = t + durations[k]
                    p = a + dur[b, t, u, k]
                    # a blank of duration 0 does not exist; only a blank may step exactly past the end, after the last label
                    if durations[k] > 0 and (n < T or (n == T and u == U)):
                        alpha[n, u] = _log_add(alpha[n, u], p + blank[b, t, u])
                    if u < U and n < T:
                        alpha[n, u + 1] = _log_add(alpha[n, u + 1], p + label[b, t, u])
        total = alpha[T, U]
        loss[b] = -total
        if total == -np.inf:
            continue
        beta[T, U] = 0.0
        for t in range(T - 1, -1, -1):
            for u in range(U, -1, -1):
                for k in range(len(durations)):
                    n = t + durations[k]
                    p = dur[b, t, u, k]
                    if durations[k] > 0 and (n < T or (n == T and u == U)):
                        path = p + blank[b, t, u] + beta[n, u]
                        beta[t, u] = _log_add(beta[t, u], path)
                        share = np.exp(alpha[t, u] + path - total)
                        g_blank[b, t, u] -= share
                        g_dur[b, t, u, k] -= share
                    if u < U and n < T:
                        path = p + label[b, t, u] + beta[n, u + 1]
                        beta[t, u] = _log_add(beta[t, u], path)
                        share = np.exp(alpha[t, u] + path - total)
                        g_label[b, t, u] -= share
                        g_dur[b, t, u, k] -= share
    return loss


class _Tdt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, blank, label, dur, frames, labels):
        grads = [np.zeros(x.shape) for x in (blank, label, dur)]
        tables = [x.detach().double().numpy() for x in (blank, label, dur)]
        loss = _tdt(*tables, np.array(DURATIONS), frames.numpy(), labels.numpy(), *grads)
        ctx.save_for_backward(*[torch.from_numpy(g).to(blank.dtype) for g in grads])
        return torch.from_numpy(loss).to(blank.dtype)

    @staticmethod
    def backward(ctx, grad):
        blank, label, dur = ctx.saved_tensors
        return blank * grad[:, None, None], label * grad[:, None, None], dur * grad[:, None, None, None], None, None


def tdt_loss(logits, frames, targets, labels, sigma=0.02):
    """-log p [B] of the TDT lattice (Xu et al. 2023, "Efficient sequence transduction by jointly predicting tokens and
    durations"), as NeMo's TDTLossPytorch computes it.

    logits [B, T, U+1, V+1+durations], targets [B, U] (padded), frames and labels [B] int64.
    """
    split = logits.shape[3] - len(DURATIONS)
    tokens = torch.log_softmax(logits[..., :split], -1) - sigma
    dur = torch.log_softmax(logits[..., split:], -1)
    index = torch.nn.functional.pad(targets, (0, 1))[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
    return _Tdt.apply(tokens[..., split - 1], tokens.gather(3, index)[..., 0], dur, frames, labels)


def check_tdt():
    """Loss and gradient against NeMo's TDTLossPytorch on random numbers."""
    from nemo.collections.asr.losses.rnnt_pytorch import TDTLossPytorch
    torch.manual_seed(0)
    V, B, T, U = 11, 3, 9, 5
    logits = torch.randn(B, T, U + 1, V + 1 + len(DURATIONS), requires_grad=True)
    targets = torch.randint(0, V, (B, U))
    frames, labels = torch.tensor([9, 7, 4]), torch.tensor([5, 3, 0])
    ours = tdt_loss(logits, frames, targets, labels, sigma=0.05).sum()
    grad, = torch.autograd.grad(ours, logits)
    other = TDTLossPytorch(blank=V, durations=list(DURATIONS), reduction="sum", sigma=0.05)
    torch.Tensor.cuda = lambda self: self  # NeMo sends its tables to a GPU without asking
    theirs = other(acts=logits, labels=targets, act_lens=frames, label_lens=labels)
    expect, = torch.autograd.grad(theirs, logits)
    print(f"ours {ours.item():.6f}, NeMo {theirs.item():.6f}, gradient differs by {(grad - expect).abs().max():.2e}")
    assert abs(ours.item() - theirs.item()) < 1e-3 and (grad - expect).abs().max() < 1e-4


if __name__ == "__main__":
    check_tdt()
