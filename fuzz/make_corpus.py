"""Makes fuzz/corpus from tests/data/formats: the valid files and broken ones made of them.

python fuzz/make_corpus.py, from the top of the repository; needs nothing but Python.
"""
import json
import os
import shutil
import struct
import zipfile

DATA, CORPUS = "tests/data/formats", "fuzz/corpus"
VALID = {
    "gguf": ["python.gguf"],
    "safetensors": ["module.safetensors", "state_dict.safetensors"],
    "torch": ["state_dict.pt", "checkpoint.ckpt", "deflated.ckpt", "module.pt", "script.jit",
              "protocol4.pt", "sparse.pt", "quantized.pt"],
    "nemo": ["plain.nemo", "gzip.nemo"],
    "npy": ["f32.npy", "fortran.npy", "scalar.npy", "version3.npy", "record.npy"],
    "onnx": ["model.onnx"],
    "pickle": [],
}


def save(kind, name, data):
    with open(f"{CORPUS}/{kind}/{name}", "wb") as file:
        file.write(data)


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(shape, offsets, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def gguf(pairs=b"", pair_count=0, infos=b"", info_count=0, data=b"", version=3):
    head = b"GGUF" + struct.pack("<IQQ", version, info_count, pair_count) + pairs + infos
    return head + b"\0" * (-len(head) % 32) + data


def text(value):
    return struct.pack("<Q", len(value)) + value


def info(name, ne, kind, offset):
    return (text(name) + struct.pack("<I", len(ne)) + struct.pack(f"<{len(ne)}Q", *ne) +
            struct.pack("<IQ", kind, offset))


for kind, names in VALID.items():
    shutil.rmtree(f"{CORPUS}/{kind}", ignore_errors=True)
    os.makedirs(f"{CORPUS}/{kind}")
    for name in names:
        data = open(f"{DATA}/{name}", "rb").read()
        save(kind, name, data)
        save(kind, f"broken_half_{name}", data[:len(data) // 2])
        if kind in ("gguf", "safetensors", "npy", "onnx"):
            flipped = bytearray(data)
            flipped[len(data) // 3] ^= 0x80
            save(kind, f"broken_bit_{name}", bytes(flipped))

save("safetensors", "broken_overlap",
     safetensors({"a": tensor([2], [0, 8]), "b": tensor([2], [4, 12])}, b"0" * 12))
save("safetensors", "broken_overflow", safetensors({"a": tensor([2**62, 4], [0, 0])}))
save("safetensors", "broken_past_end", safetensors({"a": tensor([2**40], [0, 2**42])}))
save("safetensors", "broken_huge_header", struct.pack("<Q", 2**63) + b"{}")
save("safetensors", "broken_nesting", safetensors(b'{"a":' + b"[" * 5000))
save("safetensors", "broken_twice",
     safetensors(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
                 b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'))
save("safetensors", "null_metadata", safetensors({"__metadata__": None}))

save("gguf", "broken_counts", gguf(pair_count=2**64 - 1, info_count=2**60))
save("gguf", "broken_version", gguf(version=1))
save("gguf", "broken_nesting", gguf(text(b"k") + struct.pack("<I", 9) +
                                    struct.pack("<IQ", 9, 1) * 1000, 1))
save("gguf", "broken_string", gguf(text(b"k") + struct.pack("<IQ", 8, 2**63), 1))
save("gguf", "broken_shape", gguf(infos=info(b"t", [2**33, 2**33], 0, 0), info_count=1))
save("gguf", "broken_offset", gguf(infos=info(b"t", [4], 0, 2**64 - 32), info_count=1))
save("gguf", "broken_twice", gguf(infos=info(b"t", [0], 0, 0) * 2, info_count=2))
save("gguf", "broken_overlap",
     gguf(infos=info(b"t", [4], 0, 0) + info(b"u", [4], 0, 0), info_count=2, data=b"0" * 16))

save("npy", "broken_shape", b"\x93NUMPY\x01\x00" + struct.pack("<H", 79) +
     b"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }  ")
save("npy", "broken_length", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{}")


def field(number, data):
    size, head = len(data), bytes([number << 3 | 2])
    while size >= 128:
        head += bytes([size & 127 | 128])
        size >>= 7
    return head + bytes([size]) + data


deep = b""
for _ in range(100):
    deep = field(1, field(5, field(6, deep)))
save("onnx", "broken_nesting", b"\x08\x08" + field(7, deep))
save("onnx", "broken_shape",
     b"\x08\x08" + field(7, field(5, b"\x08" + b"\xff" * 9 + b"\x01\x10\x01" + field(8, b"t"))))

for name in VALID["torch"]:
    with zipfile.ZipFile(f"{DATA}/{name}") as archive:
        member = [n for n in archive.namelist() if n.endswith("/data.pkl")][0]
        save("pickle", name, archive.read(member))
bomb = b"]q\0"
for i in range(1, 41):
    bomb += b"](h" + bytes([i - 1]) + b"h" + bytes([i - 1]) + b"eq" + bytes([i])
save("pickle", "broken_bomb", bomb + b".")
save("pickle", "broken_circle", b"\x80\x02]q\x01h\x01a.")
save("pickle", "broken_memo", b"\x80\x02Nr\xff\xff\xff\xffj\xfe\xff\xff\xff.")
save("pickle", "broken_text", b"\x80\x04\x8d" + b"\xff" * 8 + b".")
save("pickle", "call", b"\x80\x02}U\x01xcos\nsystem\nU\x04true\x85Rs.")


def zipped(name, packed, size):
    common = struct.pack("<HHHIIIIHH", 20, 0, 8, 0, 0, len(packed), size, len(name), 0)
    local = b"PK\3\4" + common + name + packed
    central = b"PK\1\2" + struct.pack("<H", 20) + common + b"\0" * 14 + name
    return local + central + b"PK\5\6" + struct.pack("<IHHIIH", 0, 1, 1, len(central), len(local), 0)


save("torch", "broken_ratio", zipped(b"m/data.pkl", b"x" * 10, 2**32 - 2))
save("torch", "broken_deflate", zipped(b"m/data.pkl", b"x" * 100, 1000))

# The configuration of an adapter and its file, separated by a NUL.
peft = "base_model.model.model.layers.0.mlp.up_proj.lora_"
adapters = {
    "peft": ({"peft_type": "LORA", "r": 1, "lora_alpha": 2, "rank_pattern": {"up_proj": 1},
              "alpha_pattern": {"layers\\.(0|1)\\..*_proj": 3}, "use_rslora": True},
             {peft + "A.weight": tensor([1, 2], [0, 8]), peft + "B.weight": tensor([2, 1], [8, 16])}),
    "mlx": ({"fine_tune_type": "dora", "lora_parameters": {"rank": 1, "scale": 20.0}},
            {"l.lora_a": tensor([2, 1], [0, 8]), "l.lora_b": tensor([1, 2], [8, 16]),
             "l.m": tensor([2], [16, 24])}),
    "broken_empty": ({"peft_type": "LORA", "r": 1, "lora_alpha": 1},
                     {peft + "A.weight": tensor([2**40, 0], [0, 0]),
                      peft + "B.weight": tensor([2**40, 0], [0, 0])}),
}
for pattern in ("a{1111111111111111111}", "(\\w+\\.?)+[^a-z]"):
    config, tensors = adapters["peft"]
    adapters[f"broken_pattern_{len(pattern)}"] = {**config, "rank_pattern": {pattern: 1}}, tensors
shutil.rmtree(f"{CORPUS}/adapter", ignore_errors=True)
os.makedirs(f"{CORPUS}/adapter")
for name, (config, tensors) in adapters.items():
    size = max(t["data_offsets"][1] for t in tensors.values())
    save("adapter", name, json.dumps(config).encode() + b"\0" +
         safetensors(tensors, struct.pack(f"<{size // 4}f", *[0.5] * (size // 4))))
