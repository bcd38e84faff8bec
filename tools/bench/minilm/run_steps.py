#!/usr/bin/env python3
"""Takes the checkpoints that train_steps.py wrote through a store, and checks every version.

    run_steps.py --wstore build/release/bin/wstore RUN_DIRECTORY...

For each run: init on step-0, step-1 to step-5 published as v1 to v5, back to v2, released from
hold, step-6 published on it as v6. Every version is exported, loaded by the reference safetensors
library, and compared tensor for tensor, bit for bit, with what the trainer wrote. Prints a table of
density, bytes and seconds. Exits with 1 on any difference.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import ml_dtypes  # noqa: F401  (teaches numpy bfloat16)
import safetensors
from safetensors.numpy import load_file


def raw_tensors(path):
    """Name -> (dtype, shape, bytes), straight from a file that the reference library accepts."""
    with safetensors.safe_open(path, framework="numpy") as file:
        names = set(file.keys())
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    assert names == set(header)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end])
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wstore", required=True)
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    failures = 0
    columns = ["run", "version", "parent", "changed", "density", "stored", "bytes per element",
               "publish", "export"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for run in arguments.runs:
        with tempfile.TemporaryDirectory() as scratch:
            store = f"{scratch}/store"
            environment = {**os.environ, "WSTORE_STORE": store}

            def wstore(*words):
                command = [arguments.wstore, *words, "--json"]
                begun = time.perf_counter()
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE,
                                        env=environment).stdout
                return json.loads(output), time.perf_counter() - begun

            wstore("init", store, "--base", str(run / "step-0"))
            published = {}
            for step in range(1, 6):
                published[step] = wstore("publish", "--from", str(run / f"step-{step}"),
                                         "-m", f"step {step}")
            wstore("rollback", "--to", "v2", "--yes")
            refused = subprocess.run(
                [arguments.wstore, "publish", "--from", str(run / "step-6")], env=environment,
                stderr=subprocess.DEVNULL)
            assert refused.returncode == 3, "a publish on hold must be refused"
            wstore("resume")
            published[6] = wstore("publish", "--from", str(run / "step-6"),
                                  "-m", "step 6, on v2")
            for step in range(0, 7):
                out = pathlib.Path(scratch) / f"v{step}"
                _, seconds = wstore("export", f"v{step}", "--out", str(out))
                exported = raw_tensors(out / "model.safetensors")
                trained = raw_tensors(run / f"step-{step}" / "model.safetensors")
                load_file(out / "model.safetensors")
                if exported != trained:
                    failures += 1
                    print(f"{run.name} v{step}: the export differs from the trainer's checkpoint",
                          file=sys.stderr)
                if step in published:
                    result, publish_seconds = published[step]
                    cells = [run.name, f"v{step}", result["parent"], f"{result['elements']:,}",
                             f"{result['density']:.3%}", f"{result['bytes']:,}",
                             f"{result['bytes'] / result['elements']:.2f}",
                             f"{publish_seconds:.2f} s", f"{seconds:.2f} s"]
                    print("| " + " | ".join(cells) + " |")
            report, _ = wstore("verify", "--all", "--base")
            assert report["ok"], report
    if failures == 0:
        print("\nEvery version was exported, loaded by the reference library and equal to the "
              "trainer's checkpoint, bit for bit.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
