#!/usr/bin/env python3
"""What a model has to beat on a text: bits per byte of `gzip -9` and of a byte bigram.

    tools/text_baselines.py --train FILE... --heldout FILE... [--json]

gzip -9 compresses the held-out text alone. The bigram counts byte pairs of the training text, adds one to every count
(so that no pair is impossible), and predicts the held-out text; pairs do not cross files.
"""

import argparse
import collections
import gzip
import json
import math
import pathlib
import sys


def bigram_bits_per_byte(train: list, heldout: list) -> float:
    pairs, firsts = collections.Counter(), collections.Counter()
    for text in train:
        pairs.update(zip(text, text[1:]))
        firsts.update(text[:-1])
    bits, count = 0.0, 0
    for text in heldout:
        for pair, times in collections.Counter(zip(text, text[1:])).items():
            bits -= times * math.log2((pairs[pair] + 1) / (firsts[pair[0]] + 256))
            count += times
    return bits / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="+", required=True, type=pathlib.Path, metavar="FILE")
    parser.add_argument("--heldout", nargs="+", required=True, type=pathlib.Path, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    train = [path.read_bytes() for path in arguments.train]
    heldout = [path.read_bytes() for path in arguments.heldout]
    joined = b"".join(heldout)
    result = {
        "heldoutBytes": len(joined),
        "gzip9BitsPerByte": 8 * len(gzip.compress(joined, 9)) / len(joined),
        "bigramBitsPerByte": bigram_bits_per_byte(train, heldout),
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"held-out text    {result['heldoutBytes']} bytes")
        print(f"gzip -9          {result['gzip9BitsPerByte']:.3f} bits per byte")
        print(f"byte bigram      {result['bigramBitsPerByte']:.3f} bits per byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
