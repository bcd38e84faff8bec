#!/usr/bin/env python3
"""Checkpoints written and read by the reference implementation of safetensors, on both sides of the
`wstore` command: what it exports must be what was published, bit for bit, for every dtype.

    round_trip.py WSTORE

Needs safetensors, numpy and ml_dtypes.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy
import safetensors
import safetensors.numpy

DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32", "int64",
    "uint64", "float64", "complex64", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu,
]
SHAPES = [(), (0,), (2, 0, 3), (7,), (300, 257)]


def random_array(rng, dtype, shape):
    """Random bits: NaNs with payloads, infinities and denormals among them."""
    dtype = numpy.dtype(dtype)
    size = int(numpy.prod(shape)) * dtype.itemsize
    data = bytearray(rng.randbytes(size))
    if dtype == numpy.bool_:
        data = bytearray(byte & 1 for byte in data)
    return numpy.frombuffer(data, dtype=dtype).reshape(shape)


def change(rng, array, share):
    """A copy in which about `share` of the elements have other bits."""
    raw = numpy.array(array).reshape(-1)
    elements = raw.size
    if elements == 0:
        return raw.reshape(array.shape)
    raw = raw.view(numpy.uint8).reshape(elements, -1).copy()
    for i in rng.sample(range(elements), max(1, int(elements * share))):
        raw[i, rng.randrange(raw.shape[1])] ^= 1 if array.dtype == numpy.bool_ else 0x80
    return raw.reshape(-1).view(array.dtype).reshape(array.shape)


def bits(tensors):
    """What the reference would read: name -> (dtype, shape, bytes)."""
    return read_bits([safetensors.numpy.save(tensors)])


def read_bits(files):
    out = {}
    for data in files:
        for name, tensor in safetensors.deserialize(data):
            assert name not in out, f"{name} is in two files"
            out[name] = (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"]))
    return out


def read_checkpoint(directory):
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return read_bits([(directory / "model.safetensors").read_bytes()])
    weight_map = json.loads(index.read_text())["weight_map"]
    tensors = read_bits([(directory / f).read_bytes() for f in sorted(set(weight_map.values()))])
    assert sorted(weight_map) == sorted(tensors), "index and shards disagree"
    return tensors


def write_sharded(tensors, directory):
    directory.mkdir()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        safetensors.numpy.save_file({name: tensors[name] for name in part}, directory / file)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
             "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def main():
    wstore = os.path.abspath(sys.argv[1])
    seed = int(os.environ.get("WSTORE_TEST_SEED", random.randrange(1 << 32)))
    print(f"round trip: WSTORE_TEST_SEED={seed}")
    rng = random.Random(seed)

    with tempfile.TemporaryDirectory(prefix="wstore-test-") as folder:
        folder = pathlib.Path(folder)

        def run(*args):
            command = [wstore, "--store", str(folder / "store"), *map(str, args)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)

        versions = [{f"{numpy.dtype(dtype).name} {list(shape)}": random_array(rng, dtype, shape)
                     for dtype in DTYPES for shape in SHAPES}]
        for share in (0.001, 0.5):
            versions.append({name: change(rng, array, share)
                             for name, array in versions[-1].items()})

        safetensors.numpy.save_file(versions[0], folder / "base.safetensors", {"format": "pt"})
        subprocess.run([wstore, "init", str(folder / "store"), "--base",
                        str(folder / "base.safetensors")],
                       check=True, stdout=subprocess.DEVNULL, timeout=120)
        for number, tensors in enumerate(versions[1:], 1):
            write_sharded(tensors, folder / f"v{number}")
            run("publish", "--from", folder / f"v{number}")
        run("verify", "--all", "--base")

        for number, tensors in enumerate(versions):
            for size in ("5GB", "100KB"):
                out = folder / f"out-v{number}-{size}"
                run("export", f"v{number}", "--out", out, "--shard-size", size)
                expected, exported = bits(tensors), read_checkpoint(out)
                different = [name for name in expected if expected[name] != exported.get(name)]
                assert not different, f"v{number}, shards of {size}: differ: {different}"
                assert len(expected) == len(exported), sorted(set(exported) - set(expected))
    print(f"{len(versions)} versions of {len(versions[0])} tensors came back bit for bit")


if __name__ == "__main__":
    main()
