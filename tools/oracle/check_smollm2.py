#!/usr/bin/env python3
"""Makes a folder of SmolLM2-135M, a real Llama, and says what `transformers` makes of it.

Usage: python3 tools/oracle/check_smollm2.py CACHE FOLDER [F32|BF16]
       python3 tools/oracle/check_smollm2.py --compare FOLDER EXPORT
CACHE is the folder that `tools/fetch_data.sh tokenizers` fills. Needs: torch 2.15, transformers 5.23, gguf, accelerate.

FOLDER/model gets the weights, dequantized, with tokenizer.json; FOLDER/text the State of the Union address of 2021. The loss
printed is that of its first 512 tokens, in fp32. Ours is that of

    trainyard data prepare FOLDER/text --out FOLDER/data --tokenizer FOLDER/model
    trainyard evaluate FOLDER/model FOLDER/data/train --sequence-length 512 --sequences 1

EXPORT is what `trainyard export` makes of a job that imports FOLDER/model and trains one step of learningRate 1e-46, which moves
no weight. --compare fails where the logits of those tokens differ by more than 1e-3, and says whether all tensors have the same
bytes.
"""

import pathlib
import shutil
import sys

import torch
import transformers
from write_tokenizer_reference import write_tokenizer

LENGTH = 512
ADDRESS = "state-of-the-union-0.2.3/2021_joseph_r_biden_d.txt"


def load(folder):
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def window_of(folder):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "model/tokenizer.json"))
    text = next((folder / "text").glob("*.txt")).read_text(encoding="utf-8")
    return torch.tensor([tokenizer(text, add_special_tokens=False).input_ids[: LENGTH + 1]])


def make(cache, folder, dtype):
    (folder / "text").mkdir(parents=True, exist_ok=True)
    shutil.copy(cache / ADDRESS, folder / "text")
    stored = cache / "tokenizers-1/smollm2"
    read = transformers.AutoModelForCausalLM.from_pretrained(stored, gguf_file="model.gguf")
    # What was read from GGUF cannot be saved, and its config.json would say that it is quantized.
    del read.config.quantization_config
    model = transformers.LlamaForCausalLM(read.config)
    model.load_state_dict(read.state_dict())
    model.to(dtype).save_pretrained(folder / "model")
    write_tokenizer(cache, "smollm2", folder / "model/tokenizer.json")
    window = window_of(folder)
    with torch.no_grad():
        logits = load(folder / "model")(window[:, :-1]).logits[0]
    print(f"loss {torch.nn.functional.cross_entropy(logits, window[0, 1:]).item():.6f}")


def compare(folder, export):
    ours, theirs = load(export), load(folder / "model")
    window = window_of(folder)[:, :-1]
    with torch.no_grad():
        difference = (ours(window).logits - theirs(window).logits).abs().max().item()
    stored, exported = (transformers.LlamaForCausalLM.from_pretrained(path, dtype="auto").state_dict()
                        for path in (folder / "model", export))
    same = stored.keys() == exported.keys() and all(
        tensor.dtype == exported[name].dtype and torch.equal(tensor, exported[name]) for name, tensor in stored.items())
    print(f"logits differ by at most {difference:.2e}; {'the same' if same else 'other'} bytes")
    sys.exit(difference > 1e-3)


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        compare(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    else:
        make(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]),
             torch.bfloat16 if sys.argv[3:] == ["BF16"] else torch.float32)
