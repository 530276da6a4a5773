"""Writes tests/data/requests: small traces of our own in the shapes of the public ones.

Run: python -m tests.simulator.own_requests
Ten minutes each. ``azure.csv.gz``: a chat service, bursts over a slow swing, log-normal lengths. ``mooncake.jsonl``:
conversations whose prompts grow by what was said before, some behind one system prompt. ``own.csv``: our own columns.
"""

import gzip
import io
import json
from datetime import UTC, datetime, timedelta
from math import log, pi, sin
from pathlib import Path
from random import Random

FOLDER = Path(__file__).parents[1] / "data" / "requests"
BLOCK = 512


def lognormal(random, mean, cv, low, high):
    sigma = log(1 + cv * cv) ** 0.5
    return max(low, min(high, round(random.lognormvariate(log(mean) - sigma * sigma / 2, sigma))))


def arrivals(random, rate, seconds=600.0):
    at = 0.0
    while True:
        swing = 1 + 0.5 * sin(2 * pi * at / 300)
        at += random.expovariate(rate * swing)
        if at >= seconds:
            return
        yield at
        if random.random() < 0.1:  # a burst: somebody's loop
            for _ in range(random.randrange(4)):
                at += random.uniform(0.0, 0.05)
                yield at


def azure(random):
    start = datetime(2026, 3, 2, 9, 15, tzinfo=UTC)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for at in arrivals(random, 1.6):
        stamp = (start + timedelta(seconds=at)).strftime("%Y-%m-%d %H:%M:%S.%f") + "0"
        lines.append(f"{stamp},{lognormal(random, 1100, 1.2, 2, 12000)},{lognormal(random, 210, 0.8, 1, 1000)}")
    return "\n".join(lines) + "\n"


def mooncake(random):
    rows, fresh, open_chats = [], iter(range(1, 1_000_000)), []
    for at in arrivals(random, 0.4):
        if open_chats and random.random() < 0.6:
            length, chain = open_chats.pop(random.randrange(len(open_chats)))
        else:
            length, chain = (BLOCK * 2, [0, next(fresh)]) if random.random() < 0.5 else (0, [])
            chain = [0, 1] if chain else chain
        output = lognormal(random, 340, 0.7, 1, 2000)
        length += lognormal(random, 1500, 1.0, 20, 9000)
        # The blocks that are whole already keep their names; a partial one is another block once more is said.
        kept = [name for index, name in enumerate(chain) if (index + 1) * BLOCK <= length]
        names = [*kept, *(next(fresh) + 1 for _ in range(-(-length // BLOCK) - len(kept)))]
        rows.append({"timestamp": int(at * 1000), "input_length": length, "output_length": output, "hash_ids": names})
        if length < 12_000:
            open_chats.append((length, names[: length // BLOCK]))
    return "".join(json.dumps(row) + "\n" for row in rows)


def own(random):
    lines = ["arrival,prompt_tokens,output_tokens,max_tokens,finish_reason,stream,prefix_blocks"]
    for at in arrivals(random, 0.5):
        prompt, output = lognormal(random, 900, 0.6, 40, 6000), lognormal(random, 180, 0.6, 1, 600)
        shared = "system-a system-b" if prompt > 2 * BLOCK else ""
        fails = random.random() < 0.05
        cap = 256 if random.random() < 0.5 else ""
        reason = "error" if fails else "length" if cap and output >= cap else ""
        output = min(output, cap) if cap else output
        lines.append(f"{at:.3f},{prompt},{output},{cap},{reason},{str(random.random() < 0.7).lower()},{shared}")
    return "\n".join(lines) + "\n"


def main():
    FOLDER.mkdir(exist_ok=True)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write(azure(Random(1)).encode())
    (FOLDER / "azure.csv.gz").write_bytes(packed.getvalue())
    (FOLDER / "mooncake.jsonl").write_text(mooncake(Random(2)))
    (FOLDER / "own.csv").write_text(own(Random(3)))


if __name__ == "__main__":
    main()
