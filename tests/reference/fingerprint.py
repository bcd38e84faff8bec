#!/usr/bin/env python3
"""The fingerprint of docs/formats/fingerprint.md, written again in plain integers.

    fingerprint.py --check FILE   compares FILE with the test vectors made afresh
    fingerprint.py --write FILE   writes them
    fingerprint.py --bound        counts how often errors cancel, in an arithmetic small enough to
                                  try every key

Needs nothing but Python 3.
"""

import argparse
import hashlib
import itertools
import json
import sys

MASK = (1 << 64) - 1
WIDTHS = {"U8": 1, "BF16": 2, "F32": 4, "I64": 8}


def philox2x64(counter, key, rounds=10):
    left, right = counter
    for _ in range(rounds):
        product = left * 0xD2B74407B1CE6E93
        left, right = (product >> 64) ^ key ^ right, product & MASK
        key = (key + 0x9E3779B97F4A7C15) & MASK
    return left, right


def derive(label, base_digest, name=b""):
    """(Philox key, upper half of the counter)."""
    digest = hashlib.sha256(label + b"\0" + base_digest + name).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


def odd_pair(keys, counter):
    return tuple(word | 1 for word in philox2x64((counter, keys[1]), keys[0]))


class Tensor:
    def __init__(self, base_digest, name):
        self.block_keys = derive(b"wstore fingerprint block 1", base_digest)
        self.tensor_keys = derive(b"wstore fingerprint tensor 1", base_digest, name.encode())

    def a(self, block):
        return odd_pair(self.tensor_keys, block)

    def b(self, i):
        return odd_pair(self.block_keys, i)

    def fingerprint(self, data, offset=0):
        """Byte by byte: a byte counts as byte x 2^(8 x its place in its word)."""
        lanes = [0, 0]
        for place, byte in enumerate(data, offset):
            word = place // 4
            a, b = self.a(word // 128), self.b(word % 128)
            for lane in range(2):
                lanes[lane] += a[lane] * b[lane] * (byte << 8 * (place % 4))
        return tuple(lane & MASK for lane in lanes)


def to_hex(fingerprint):
    return "%016x%016x" % fingerprint


def stream(seed, size):
    """Bytes that look random and are the same everywhere."""
    blocks = (hashlib.sha256(b"%s %d" % (seed.encode(), i)).digest() for i in itertools.count())
    return b"".join(itertools.islice(blocks, (size + 31) // 32))[:size]


def sum_vector(base, name, data):
    tensor = Tensor(base, name)
    cuts = sorted({0, len(data) // 3, len(data) // 2 + 1, len(data)} & set(range(len(data) + 1)))
    return {
        "base_digest": base.hex(),
        "tensor": name,
        "data": data.hex(),
        "fingerprint": to_hex(tensor.fingerprint(data)),
        "parts": [
            {"offset": i, "size": j - i, "fingerprint": to_hex(tensor.fingerprint(data[i:j], i))}
            for i, j in zip(cuts, cuts[1:])
        ],
    }


def delta_vector(base, name, dtype, first_element, offsets):
    """Old bytes are those of a tile that ends just after the last offset."""
    width = WIDTHS[dtype]
    elements = offsets[-1] + 1
    old = stream("old " + name, elements * width)
    values = stream("xor " + name, len(offsets) * width)
    new = bytearray(old)
    for i, offset in enumerate(offsets):
        for k in range(width):
            new[offset * width + k] ^= values[i * width + k]
    tensor = Tensor(base, name)
    start = first_element * width
    before, after = tensor.fingerprint(old, start), tensor.fingerprint(new, start)
    return {
        "base_digest": base.hex(),
        "tensor": name,
        "dtype": dtype,
        "first_element": first_element,
        "element_bytes": width,
        "offsets": offsets,
        "old": old.hex(),
        "values": values.hex(),
        "delta": to_hex(tuple((y - x) & MASK for x, y in zip(before, after))),
    }


def make_vectors():
    base = hashlib.sha256(b"wstore test base").digest()
    other = bytes(32)
    tensor = Tensor(base, "w")
    return {
        "philox2x64": [
            {"counter": ["%016x" % c for c in counter], "key": "%016x" % key,
             "output": ["%016x" % o for o in philox2x64(counter, key)]}
            for counter, key in [((0, 0), 0), ((MASK, MASK), MASK),
                                 ((0x243F6A8885A308D3, 0x13198A2E03707344), 0xA4093822299F31D0)]
        ],
        "multipliers": {
            "base_digest": base.hex(),
            "tensor": "w",
            "b": [to_hex(tensor.b(i)) for i in range(128)],
            "a": [{"block": j, "a": to_hex(tensor.a(j))} for j in (0, 1, 255, 1 << 32)],
        },
        "sums": [
            sum_vector(base, "w", b""),
            sum_vector(base, "w", b"\x01"),
            sum_vector(base, "w", b"\0\0\0\0\x01"),
            sum_vector(other, "w", b"\x01"),
            sum_vector(base, "model.layers.0.mlp.gate_proj.weight", stream("bf16", 2 * 300)),
            sum_vector(base, "f32", stream("f32", 4 * 129)),
            sum_vector(base, "i64", stream("i64", 8 * 64)),
            sum_vector(base, "fp8, three bytes past a word", stream("fp8", 515)),
            sum_vector(base, "näme", b"\xff" * 1541),
        ],
        "deltas": [
            delta_vector(base, "d1", "U8", 0, [0, 1, 2, 3, 7, 511, 512, 1000]),
            delta_vector(base, "d2", "BF16", 65536, [0, 3, 255, 256, 299]),
            delta_vector(base, "d4", "F32", 65536 * 3, [1, 127, 128, 200]),
            delta_vector(base, "d8", "I64", 65536 * 70000, [0, 63, 64, 100]),
        ],
    }


def check_bound():
    """In n-bit arithmetic, one lane: the chance that errors cancel, over every A and B."""
    n = 4
    odd = range(1, 1 << n, 2)
    # Errors in (block 0, word 0), (block 0, word 1), (block 1, word 0), (block 1, word 1).
    worst = 0
    for errors in itertools.product((0, 1, -1, 2, 3, 4), repeat=4):
        if all(error % 2 == 0 for error in errors):
            continue  # the bound is stated for a least valuation of 0; others reduce to it
        hits = sum(
            (a0 * (b0 * errors[0] + b1 * errors[1]) + a1 * (b0 * errors[2] + b1 * errors[3]))
            % (1 << n) == 0
            for a0, a1, b0, b1 in itertools.product(odd, repeat=4))
        worst = max(worst, hits)
    cases = (1 << (n - 1)) ** 4
    bound = n * cases >> (n - 1)
    print(f"n = {n}: errors cancel in at most {worst} of {cases} cases; the bound says {bound}")
    return worst == bound  # attained, so it cannot be improved


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", metavar="FILE")
    action.add_argument("--write", metavar="FILE")
    action.add_argument("--bound", action="store_true")
    args = parser.parse_args()
    if args.bound:
        return 0 if check_bound() else 1
    text = json.dumps(make_vectors(), indent=1, ensure_ascii=True) + "\n"
    if args.write:
        with open(args.write, "w", encoding="ascii") as file:
            file.write(text)
        return 0
    with open(args.check, encoding="ascii") as file:
        if file.read() == text:
            return 0
    print(f"{args.check} differs from what the definition gives; if the definition changed, "
          f"write it again with --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
