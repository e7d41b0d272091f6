#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizer/gpt2_samples.json: texts and the ids GPT-2's tokenizer gives them.

Usage: python3 tools/oracle/make_tokenizer_fixture.py FOLDER [OUTPUT]
FOLDER holds encoder.json and vocab.bpe (tools/fetch_data.sh gpt2-bpe says where it put them).
Needs: tokenizers 0.23, Python 3.11 (its Unicode 14 tables choose the characters; see
docs/formats/tokens.md for why newer ones are left out).

The reference is the `tokenizers` library's BPE with its ByteLevel splitter and no special token, so
that "<|endoftext|>" in a text is text. The vocabulary itself is not stored, only ids.
"""

import json
import pathlib
import random
import sys
import unicodedata

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers

WHITE_SPACE = [*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
               0x202F, 0x205F, 0x3000]
NEARLY_SPACE = [0x0, 0x8, 0xE, 0x1C, 0x1D, 0x1E, 0x1F, 0x7F, 0x180E, 0x200B, 0x200C, 0x200D, 0x2060,
                0xFEFF, 0xFFFD]

WRITTEN = {
    "prose": "The engine's first run took nine minutes; it'll take four when we're done. \"They've "
             "said so,\" I'd answered, 'and I'm sure.'",
    "contractions": "it's IT'S we'll WE'LL don't DON'T they're you've I'm I'd 'tis 'Twas o'clock "
                    "rock'n'roll 's 't 're 've 'm 'll 'd ''s ' s 'sx 'lla it\u2019s we\u2019ll",
    "numbers": "0 1 42 1,234.5 -7e-3 0x1F 3.14159 1234567890123456789 v2.0 12th 5G 007 1\u00a0000",
    "code": "for (int i = 0; i < n; ++i) {\n\tx[i] += y[i] * 2;  // twice\n}\n\n\ndef f(a):\n    "
            "return {'k': a[1:-1]}\n",
    "spaces": " a  b   c    d\n e\n\nf \n g\t\th\r\ni\r\r\n \n  \n j   ",
    "only spaces": "     ",
    "ends in spaces": "word   ",
    "starts with spaces": "   word",
    "one space": " ",
    "punctuation": "...!?--- \u2014 \u2026 \u00ab\u00bb\u201c\u201d ()[]{}<>@#$%^&*_+=|\\~`/ ?!x !y?",
    "special spelled out": "before<|endoftext|>after <|endoftext|> <|endoftext|><|endoftext|>",
    "german": "Der Fu\u00dfg\u00e4nger \u00fcberquert die Stra\u00dfe; \u00c4rger, \u00d6l und "
              "\u00dcbermut.",
    "combining": "e\u0301 n\u0303o a\u0308\u0304 \u0301x Z\u0351\u036b\u0343a\u0326l\u034dg\u0321o",
    "russian": "\u041f\u043e\u0435\u0437\u0434 \u0438\u0434\u0451\u0442 \u0431\u044b\u0441\u0442"
               "\u0440\u043e.",
    "greek": "\u0391\u03c5\u03c4\u03cc \u03b5\u03af\u03bd\u03b1\u03b9 \u03ad\u03bd\u03b1.",
    "hebrew and arabic": "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u0645\u0631\u062d\u0628\u0627 "
                         "\u200f123\u200e \u0661\u0662\u0663 \u06f4\u06f5",
    "hindi": "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0967",
    "thai": "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "chinese and japanese": "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u3000\u660e\u65e5\u306f"
                            "\u96e8\u3067\u3059\u3002\uff11\uff12\uff21",
    "korean": "\uc548\ub155\ud558\uc138\uc694 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "emoji": "\U0001f600\U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea \u2764\ufe0f "
             "\U0001f44d\U0001f3fd1\ufe0f\u20e3",
    "mathematical": "\U0001d400\U0001d401\U0001d7ce\U0001d7cf \u2211\u222b\u221e \u00b2\u00bd\u2167 "
                    "\u2460\u24d0 x\u2082",
    "private and none": "\ue000\U000f0000 \ufffe\uffff \U0010ffff",
    "byte order mark": "\ufeffHello\ufeff",
    "title case": "\u01c5\u01c8 \u02b0\u02b1 \u00aa\u00ba \u2139",
    "long letters": "a" * 300,
    "long mixed merges": "ab" * 150 + "the" * 60,
    "long digits": "0123456789" * 20,
    "long punctuation": "=" * 100 + "-" * 77,
    "long spaces": " " * 100 + "x" + "\n" * 50,
    "long chinese": "\u7684\u4e00\u662f" * 40,
    "empty": "",
}


def around(code_points):
    """Each character between, before and after letters, digits, spaces and itself."""
    return ["a{0}b {0}c{0} 1{0}2{0}{0} {0}".format(chr(c)) for c in code_points]


def of_every_category(per_category):
    """Some characters of every general category, spread over the code space."""
    found = {}
    for c in range(0x110000):
        if not 0xD800 <= c < 0xE000:
            found.setdefault(unicodedata.category(chr(c)), []).append(c)
    found.pop("Cn")  # later versions of Unicode assign some of these
    chosen = []
    for category in sorted(found):
        members = found[category]
        chosen += members[:: max(1, len(members) // per_category)][:per_category]
    return chosen


def random_texts(count, length):
    generator = random.Random(20190214)
    pool = [chr(c) for c in WHITE_SPACE + NEARLY_SPACE]
    pool += ["'s", "'ll", "'S", "'", "<|endoftext|>", "the", "The", " of", "ing", "0", "42", "\u0661",
             "\u00e9", "e\u0301", "\u0416", "\u4e2d", "\u3072", "\U0001f600", "\u200d", "\u00b2",
             "\u2167", "_", "-", "...", "!", "a", "B", "\u01c5", "\u00aa", "\U0001f1e9"]
    return ["".join(generator.choice(pool) for _ in range(length)) for _ in range(count)]


def main():
    folder = pathlib.Path(sys.argv[1])
    default = pathlib.Path(__file__).parents[2] / "tests/fixtures/tokenizer/gpt2_samples.json"
    output = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else default
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    reference = Tokenizer(models.BPE.from_file(str(folder / "encoder.json"),
                                               str(folder / "vocab.bpe")))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    samples = list(WRITTEN.items())
    samples += [(f"white space {i}", t) for i, t in enumerate(around(WHITE_SPACE))]
    samples += [(f"nearly space {i}", t) for i, t in enumerate(around(NEARLY_SPACE))]
    samples += [(f"category {i}", t) for i, t in enumerate(around(of_every_category(8)))]
    samples += [(f"random {i}", t) for i, t in enumerate(random_texts(60, 40))]

    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output, "w", encoding="ascii") as file:
        header = {"reference": f"tokenizers {tokenizers.__version__}", "unicode": "14.0.0"}
        file.write(json.dumps(header)[:-1] + ', "samples": [\n')
        lines = [json.dumps({"name": name, "text": text, "ids": reference.encode(text).ids},
                            separators=(",", ":")) for name, text in samples]
        file.write(",\n".join(lines) + "\n]}\n")
    print(f"{output}: {len(samples)} samples, {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
