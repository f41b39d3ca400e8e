#!/usr/bin/env python3
"""Decode speed of one lane with and without drafts, interleaved on one server.

Every prompt runs in every way, in turns; odd repetitions go through the ways in reverse. A figure is
generated tokens over decode time, both as the server reports them; answers must be equal.

    bench/speculation.py --model MODEL --prompts EVAL.json [--draft-tokens auto,1,3,5]

EVAL.json has lists `text` (texts to continue) and `tasks` (objects with `kind` and `prompt`).
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path


def post(address, body):
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--laneway", default="target/release/laneway")
    cli.add_argument("--model", required=True)
    cli.add_argument("--prompts", type=Path, required=True)
    cli.add_argument("--draft-tokens", default="auto,1,3,5")
    cli.add_argument("--threads", default="2")
    cli.add_argument("--repeat", type=int, default=3)
    cli.add_argument("-n", "--new-tokens", type=int, default=128)
    a = cli.parse_args()
    data = json.loads(a.prompts.read_text())
    groups = {"code": [text[:700] for text in data["text"][:4]]}
    for kind in ("copy", "rename"):
        groups[f"edit ({kind})"] = [t["prompt"] for t in data["tasks"] if t["kind"] == kind][:4]
    ways = [("off", {"speculation": "off"})]
    for length in a.draft_tokens.split(","):
        count = {} if length == "auto" else {"draft_tokens": int(length)}
        ways.append((f"mtp {length}", {"speculation": "model", **count}))
    ways += [("ngram auto", {"speculation": "ngram"}), ("ngram 5", {"speculation": "ngram", "draft_tokens": 5})]
    command = [a.laneway, "serve", a.model, "--port", "0", "--host", "127.0.0.1", "--threads", a.threads,
               "--spec", "mtp", "--max-concurrency", "1"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = None
        for line in server.stderr:
            if found := re.search(r"http://[\d.]+:\d+", line):
                address = found[0]
                break
        if not address:
            sys.exit("the server did not start")
        # A log that nobody reads would stop the server once the pipe is full.
        threading.Thread(target=server.stderr.read, daemon=True).start()
        with urllib.request.urlopen(f"{address}/v1/models") as reply:
            model = json.load(reply)["data"][0]["id"]
        runs = {}
        for repetition in range(a.repeat):
            for group, prompts in groups.items():
                for number, prompt in enumerate(prompts):
                    answers = {}
                    for name, fields in ways[:: -1 if repetition % 2 else 1]:
                        body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": a.new_tokens, **fields}
                        reply = post(address, body)
                        answers[name] = reply["choices"][0]["text"]
                        runs.setdefault((group, name, repetition), []).append((reply["usage"], reply["timings"]))
                    if len(set(answers.values())) != 1:
                        sys.exit(f"answers differ: {group}, prompt {number}: {answers}")
    finally:
        server.terminate()
        server.wait()
    print("| prompts | drafts | tokens/s | to off | accepted of drafted | tokens a step |")
    print("|---|---|---:|---:|---:|---:|")
    for group in groups:
        base = None
        for name, _ in ways:
            speeds, drafted, accepted, tokens = [], 0, 0, 0
            for repetition in range(a.repeat):
                found = runs[group, name, repetition]
                seconds = sum(t["predicted_ms"] for _, t in found) / 1000
                speeds.append(sum(u["completion_tokens"] - 1 for u, _ in found) / seconds)
                drafted += sum(t.get("draft_n", 0) for _, t in found)
                accepted += sum(t.get("draft_n_accepted", 0) for _, t in found)
                tokens += sum(u["completion_tokens"] for u, _ in found)
            speed = statistics.median(speeds)
            base = base or speed
            share = f"{100 * accepted / drafted:.0f} % of {drafted}" if drafted else "–"
            print(f"| {group} | {name} | {speed:.0f} | {speed / base:.2f} | {share} | {tokens / (tokens - accepted):.2f} |")


if __name__ == "__main__":
    main()
