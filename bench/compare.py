#!/usr/bin/env python3
"""Measure Laneway beside llama.cpp and ik_llama.cpp, interleaved, on the same files.

For every repetition, thread count and model file the engines take turns, each in a process of its
own; odd repetitions go through the engines in reverse. A cell is the median over the repetitions.
How to build the peers, and what the cells mean: docs/performance.md.

    bench/compare.py --llama DIR --ik DIR MODEL.gguf...   # DIR holds llama-bench, llama-batched-bench
    bench/compare.py --report bench/results/FILE.jsonl    # the table of an earlier run

Raw results, one line of JSON for each process, go to --out.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

CELLS = ["pp512", "pp2048", "tg @ 0", "tg @ 2048", "tg @ 4096"]
LANES = [1, 2, 4, 8]
CELLS += [f"{n} lanes" for n in LANES]


def machine():
    """Facts that figures depend on."""
    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": cpu.group(1) if cpu else "unknown",
        "cores": os.cpu_count(),
        "kernel": os.uname().release,
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def busy():
    """Seconds that all processors have been busy, or taken by the host."""
    ticks = [int(x) for x in open("/proc/stat").readline().split()[1:]]
    return (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]) / os.sysconf("SC_CLK_TCK")


def run(command):
    """Output of a command, and how many processors others used while it ran."""
    before, start, busy0 = resource.getrusage(resource.RUSAGE_CHILDREN), time.time(), busy()
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.time() - start
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nexited with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout + "\n" + done.stderr, done.stdout, max(0.0, (busy() - busy0 - own) / took)


def laneway(binary, model, threads, new):
    command = [binary, "bench", model, "--threads", str(threads), "-p", "512,2048", "-n", str(new)]
    command += ["-d", "0,2048,4096", "--lanes", "1,2,4,8", "--repeat", "1", "--json"]
    _, out, others = run(command)
    cells = {}
    for row in json.loads(out)["results"]:
        name = row["test"]
        if m := re.fullmatch(r"tg\d+(?: @ (\d+))?", name):
            name = f"tg @ {m[1] or 0}"
        elif m := re.fullmatch(r"tg\d+ x (\d+) lanes", name):
            name = f"{m[1]} lanes"
        cells[name] = row["median_tokens_per_s"]
    yield command, cells, others


def llama_bench(folder, model, threads, tests):
    command = [f"{folder}/llama-bench", "-m", model, "-t", str(threads), "-r", "1", "-o", "json", *tests]
    _, out, others = run(command)
    cells = {}
    for row in json.loads(out[out.index("[\n"):]):
        if row["n_prompt"] and row["n_gen"]:  # ik_llama.cpp's -gp: only the generation is timed
            cells[f"tg @ {row['n_prompt']}"] = row["avg_ts"]
        elif row["n_gen"]:
            cells[f"tg @ {row.get('n_depth', 0)}"] = row["avg_ts"]
        else:
            cells[f"pp{row['n_prompt']}"] = row["avg_ts"]
    return command, cells, others


def batched(folder, model, threads, options):
    command = [f"{folder}/llama-batched-bench", "-m", model, "-t", str(threads), "-c", "4096", "-b", "2048"]
    command += ["-ub", "512", "-npp", "256", "-ntg", "64", "-npl", ",".join(map(str, LANES)), *options]
    text, _, others = run(command)
    row = r"^\|\s*\d+ \|\s*\d+ \|\s*(\d+) \|\s*\d+ \|\s*[\d.]+ \|\s*[\d.]+ \|\s*[\d.]+ \|\s*([\d.]+) \|"
    return command, {f"{n} lanes": float(v) for n, v in re.findall(row, text, re.M)}, others


def llama(folder, model, threads, new):
    # Its flash attention is the faster one for prompts, its plain attention for generation.
    yield llama_bench(folder, model, threads, ["-p", "512,2048", "-n", "0", "-fa", "on"])
    depths = ["-p", "0", "-n", str(new), "-d", "0,2048,4096", "-fa", "off"]
    yield llama_bench(folder, model, threads, depths)
    yield batched(folder, model, threads, ["-fa", "off"])


def ik(folder, model, threads, new):
    # -rtr repacks weights at load, its fastest mode for most formats.
    depths = ["-n", str(new), "-gp", f"2048,{new}", "-gp", f"4096,{new}"]
    options = ["-p", "512,2048", *depths, "-fa", "1", "-rtr", "1"]
    yield llama_bench(folder, model, threads, options)
    yield batched(folder, model, threads, ["-fa", "on", "-rtr"])


# SmolLM2-135M: weights of the layers and of the head, bytes of keys and values a token (f16), and
# operations of causal attention for each square of the prompt's length.
LAYERS, HEAD, KV_BYTES, ATTENTION = 106.2e6, 28.3e6, 30 * 3 * 64 * 2 * 2, 30 * 9 * 64 * 2
BITS = {"q4_1": 5, "q4_0": 4.5, "q8_0": 8.5, "f16": 16, "q4_k_m": 6.2}


def floor(cell, model, read, tile, fma):
    """Tokens a second that the machine's ceilings allow: reading (GB/s), 8-bit tile products
    (GMAC/s; two planes of activations), f32 operations (GFLOP/s)."""
    bits = BITS.get(model.split("-")[-1])
    if bits is None:
        return None
    if cell.startswith("pp"):
        n = int(cell[2:])
        products = 2 * LAYERS / fma if bits == 16 else 2 * LAYERS / tile
        return 1e9 / (products + ATTENTION * n / fma)
    lanes, depth = (int(cell.split()[0]), 288) if "lanes" in cell else (1, int(cell.split()[-1]) + 64)
    return lanes * 1e9 * read / ((LAYERS + HEAD) * bits / 8 + lanes * depth * KV_BYTES)


def report(records, ceilings=None):
    """The table: our figure, the better peer's, their ratio, and how far from the floor we are."""
    cells = {}
    for r in records:
        for cell, value in r.get("cells", {}).items():
            # A peer's ways of running compete: each repetition counts its best.
            runs = cells.setdefault((r["threads"], r["model"], cell), {}).setdefault(r["engine"], {})
            runs[r["repetition"]] = max(value, runs.get(r["repetition"], 0.0))
    groups = sorted(dict.fromkeys(k[:2] for k in cells), key=lambda k: -k[0])
    for threads, model in groups:
        print(f"\n**{model}**, {threads} thread{'s' if threads > 1 else ''}\n")
        limits = ceilings and ceilings.get(threads)
        print("| cell | laneway | llama.cpp | ik_llama.cpp | ratio to the better |" + " of the floor |" * bool(limits))
        print("|---|---:|---:|---:|---:|" + "---:|" * bool(limits))
        for cell in CELLS:
            found = cells.get((threads, model, cell), {})
            median = {e: statistics.median(v.values()) for e, v in found.items()}
            peers = [v for e, v in median.items() if e != "laneway"]
            ratio = f"{median['laneway'] / max(peers):.2f}" if peers and "laneway" in median else "–"
            figures = [f"{median[e]:.0f}" if e in median else "–" for e in ("laneway", "llama.cpp", "ik_llama.cpp")]
            least = floor(cell, model, *limits) if limits else None
            share = f" {100 * median['laneway'] / least:.0f} % |" if least and "laneway" in median else ""
            print(f"| {cell} | {' | '.join(figures)} | {ratio} |{share}")
    others = [r["others"] for r in records if "others" in r]
    if others:
        print(f"\nProcessors taken by others: mean {statistics.mean(others):.2f}, most {max(others):.2f}.")


def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("models", nargs="*", metavar="MODEL")
    cli.add_argument("--laneway", default="target/release/laneway")
    cli.add_argument("--llama", metavar="DIR")
    cli.add_argument("--ik", metavar="DIR")
    cli.add_argument("--threads", default="2,1")
    cli.add_argument("--repeat", type=int, default=3)
    cli.add_argument("-n", "--new-tokens", type=int, default=128)
    cli.add_argument("--out", type=Path)
    cli.add_argument("--report", type=Path, metavar="FILE", help="only print the table of FILE")
    cli.add_argument("--ceilings", action="append", default=[], metavar="THREADS:READ,TILE,FMA",
                     help="what bench/ceilings.c measured: GB/s, GMAC/s, GFLOP/s")
    a = cli.parse_args()
    ceilings = {}
    for text in a.ceilings:
        threads, values = text.split(":")
        ceilings[int(threads)] = [float(value) for value in values.split(",")]
    if a.report:
        return report([json.loads(line) for line in a.report.read_text().splitlines()], ceilings)
    engines = [("laneway", laneway, a.laneway)]
    engines += [("llama.cpp", llama, a.llama)] if a.llama else []
    engines += [("ik_llama.cpp", ik, a.ik)] if a.ik else []
    records = [{"machine": machine()}]
    out = a.out.open("w") if a.out else open(os.devnull, "w")
    print(json.dumps(records[0]), file=out, flush=True)
    for repetition in range(a.repeat):
        for threads in map(int, a.threads.split(",")):
            for model in a.models:
                for name, measure, where in engines[:: -1 if repetition % 2 else 1]:
                    for command, cells, others in measure(where, model, threads, a.new_tokens):
                        # Names of files, not where they lie on this machine.
                        words = [Path(w).name if w.startswith("/") else w for w in command]
                        record = {
                            "repetition": repetition, "engine": name, "model": Path(model).stem,
                            "threads": threads, "command": " ".join(words), "others": round(others, 2),
                            "cells": {k: round(v, 1) for k, v in cells.items()},
                        }
                        records.append(record)
                        print(json.dumps(record), file=out, flush=True)
                        print(record, file=sys.stderr)
    report(records[1:], ceilings)


if __name__ == "__main__":
    main()
