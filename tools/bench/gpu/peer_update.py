"""The update that `wstore bench update` is compared with: sparse, tensor by tensor, with PyTorch.

For every tensor: the trainer finds the changed elements (torch.nonzero) and gathers their values.
Between two GPUs it broadcasts indices and values, two collectives a tensor. The worker scatters
them into a dense tensor full of NaN, and takes over what is not NaN.

    peer_update.py colocated|two LAYERS DENSITY [REPETITIONS]

Prints one JSON object: seconds of the parts, medians. The shapes are those of Qwen3-30B-A3B.
"""

import json
import os
import statistics
import sys
import time

HIDDEN, EXPERT, EXPERTS = 2048, 768, 128


def shapes(layers):
    for _ in range(layers):
        yield from [(4096, HIDDEN), (512, HIDDEN), (512, HIDDEN), (HIDDEN, 4096)]
        yield from [(128,), (128,), (HIDDEN,), (HIDDEN,), (EXPERTS, HIDDEN)]
        for _ in range(EXPERTS):
            yield from [(EXPERT, HIDDEN), (EXPERT, HIDDEN), (HIDDEN, EXPERT)]


def make_weights(torch, layers):
    random = torch.Generator(device="cuda").manual_seed(1)
    weights = []
    for shape in shapes(layers):
        bits = torch.randint(
            -30000, 30000, shape, generator=random, device="cuda", dtype=torch.int16
        )
        weights.append(bits.bitwise_and_(~0x4000).view(torch.bfloat16))  # finite
    return weights


def change(torch, weights, density, seed):
    random = torch.Generator(device="cuda").manual_seed(seed)
    changed = []
    for weight in weights:
        mask = torch.rand(weight.shape, generator=random, device="cuda") < density
        other = (weight.view(torch.int16) ^ 1).view(torch.bfloat16)
        changed.append(torch.where(mask, other, weight))
    return changed


def diff(torch, old, new):
    patches = []
    for before, after in zip(old, new):
        differs = after.view(torch.int16) != before.view(torch.int16)
        indices = differs.view(-1).nonzero().view(-1)
        patches.append((indices.to(torch.int32), after.view(-1)[indices]))
    return patches


def apply(torch, weights, patches):
    for weight, (indices, values) in zip(weights, patches):
        dense = torch.full_like(weight, float("nan"))
        dense.view(-1).index_copy_(0, indices.long(), values)
        weight.copy_(torch.where(torch.isnan(dense), weight, dense))


def median_of(rows):
    names = ["diff", "wire", "apply", "update"]
    return dict(zip(names, [statistics.median(column) for column in zip(*rows)]))


def colocated(layers, density, repetitions):
    import torch

    weights = make_weights(torch, layers)
    held = [weight.clone() for weight in weights]
    rows = []
    for repetition in range(repetitions + 1):
        changed = change(torch, weights, density, repetition)
        torch.cuda.synchronize()
        start = time.perf_counter()
        patches = diff(torch, weights, changed)
        torch.cuda.synchronize()
        found = time.perf_counter()
        apply(torch, held, patches)
        torch.cuda.synchronize()
        end = time.perf_counter()
        weights = changed
        if repetition > 0:
            rows.append((found - start, 0.0, end - found, end - start))
    for weight, copy in zip(weights, held):
        assert torch.equal(weight.view(torch.int16), copy.view(torch.int16))
    print(json.dumps(median_of(rows)), flush=True)


def on_rank(rank, layers, density, repetitions, port):
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    weights = make_weights(torch, layers)
    rows = []
    for repetition in range(repetitions + 1):
        changed = change(torch, weights, density, repetition) if rank == 0 else None
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        if rank == 0:
            patches = diff(torch, weights, changed)
            counts = torch.tensor([len(indices) for indices, _ in patches], device="cuda")
            torch.cuda.synchronize()
        else:
            counts = torch.empty(len(weights), dtype=torch.int64, device="cuda")
        found = time.perf_counter()
        dist.broadcast(counts, 0)
        sizes = counts.tolist()
        received = []
        for i, size in enumerate(sizes):
            if rank == 0:
                indices, values = patches[i]
            else:
                indices = torch.empty(size, dtype=torch.int32, device="cuda")
                values = torch.empty(size, dtype=torch.bfloat16, device="cuda")
            dist.broadcast(indices, 0)
            dist.broadcast(values, 0)
            received.append((indices, values))
        torch.cuda.synchronize()
        sent = time.perf_counter()
        if rank == 1:
            apply(torch, weights, received)
            torch.cuda.synchronize()
        else:
            weights = changed
        applied = time.perf_counter()
        dist.barrier()
        torch.cuda.synchronize()
        end = time.perf_counter()
        if repetition > 0:
            rows.append((found - start, sent - found, applied - sent, end - start))
    if rank == 0:
        print(json.dumps(median_of(rows)), flush=True)
    dist.destroy_process_group()


def main():
    form, layers, density = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    repetitions = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    if form == "colocated":
        return colocated(layers, density, repetitions)
    import socket

    import torch.multiprocessing as multiprocessing

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(on_rank, args=(layers, density, repetitions, port), nprocs=2)


if __name__ == "__main__":
    main()
