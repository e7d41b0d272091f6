"""What the parts of run.py run: shapes for a GPU and small ones for the emulation, and the bounds that results are held to."""

import re

# Results of these tests have the emulation's bits on every device: no special function is in them.
EXACT = re.compile(r"CudaOptimizerTest|CudaNormTest|CudaElementwiseTest\.(Dropout|Embedding|BiasSums)|CudaSemanticsTest")
TEST, LADDER, STEP, PRODUCTS, ENGINE = "kernels_cuda_test", "gpu_kernel_ladder", "gpu_gpt2_step", "gpu_products", "gpu_engine"
TRAIN, WORKER_PROGRAM = "gpu_train", "trainyard-worker"

SHAPES = {"GPT-2 124M": ["--tokens", "65536", "--width", "768", "--heads", "12"],
          "GPT-2 1558M": ["--tokens", "16384", "--width", "1600", "--heads", "25"],
          "Qwen2.5-1.5B": ["--tokens", "16384", "--width", "1536", "--heads", "12", "--kv-heads", "2", "--vocab", "151936"]}
SMALL_SHAPES = {"tiny": ["--tokens", "64", "--width", "128", "--heads", "2", "--vocab", "256", "--sequence", "32", "--runs", "1"]}
PRODUCT_SHAPES = {"GPT-2 124M": ["--tokens", "65536", "--width", "768", "--wide", "3072", "--vocab", "50304"],
                  "GPT-2 1558M": ["--tokens", "16384", "--width", "1600", "--wide", "6400", "--vocab", "50304"],
                  "Qwen2.5-1.5B": ["--tokens", "16384", "--width", "1536", "--wide", "8960", "--vocab", "151936"]}
SMALL_PRODUCTS = {"tiny": ["--tokens", "64", "--width", "32", "--wide", "64", "--vocab", "64", "--runs", "1"]}
FORMS = ["--tokens", "512", "--width", "1024", "--wide", "768"]
XL = ["--layers", "48", "--width", "1600", "--heads", "25", "--samples", "16", "--classifier-chunks", "1"]
STEPS = {"fast": ["--split-k", "--profile"], "fast, split-K 1": [], "canonical": ["--canonical", "--profile", "--hash"],
         "canonical, graph": ["--canonical", "--graph"], "canonical, 4 micro-batches": [
             "--canonical", "--samples", "16", "--micro-batches", "4", "--runs", "5", "--hash"],
         "own attention": ["--split-k", "--own-attention", "--runs", "5"],
         "1558M fast": [*XL, "--split-k", "--profile", "--runs", "5"], "1558M canonical": [*XL, "--canonical", "--runs", "5"]}
SMALL_STEP = ["--layers", "1", "--width", "64", "--heads", "1", "--vocab", "64", "--sequence", "16", "--samples", "1", "--runs", "1",
              "--classifier-chunks", "2", "--losses", "4"]
SMALL_STEPS = {"fast": ["--split-k", "--profile"], "canonical": ["--canonical", "--micro-batches", "2", "--hash"],
               "canonical, graph": ["--canonical", "--graph", "--micro-batches", "2"]}
# The engine's models, and layouts that have to end in the state of one rank.
SMALL_ENGINE = ["--width", "64", "--heads", "1", "--steps", "2"]
ENGINES = {"gpt2": SMALL_ENGINE, "llama": [*SMALL_ENGINE, "--family", "llama"], "gpt2, fp32": ["--fp32"],
           "llama, groups": ["--family", "llama", "--kv-heads", "1"], "qwen3": ["--family", "qwen3"],
           "GPT-2 124M": ["--layers", "12", "--width", "768", "--heads", "12", "--vocab", "50257", "--sequence", "1024", "--global", "64",
                          "--micro", "16", "--grain", "16", "--steps", "7"]}
LAYOUTS = {"1 rank": [], "2 ranks, ZeRO 3": ["--ranks", "2", "--zero", "3"], "4 ranks, ZeRO 1": ["--ranks", "4", "--zero", "1"],
           "2 stages": ["--ranks", "2", "--pipeline", "2"]}
# Of these models one rank with Fast numerics, too, whose losses are near.
FAST, FAST_ENGINES = "1 rank, Fast", ("gpt2", "GPT-2 124M")
SMALL_ENGINES = {name: ENGINES[name] for name in ("gpt2", "llama")}
SMALL_LAYOUTS = {"1 rank": [], "2 ranks, ZeRO 3": LAYOUTS["2 ranks, ZeRO 3"]}
# Runs that are killed, and how they are resumed. A checkpoint is written after the first number of steps.
GPT2_124M = ["--layers", "12", "--width", "768", "--heads", "12", "--vocab", "50257", "--sequence", "1024"]
RESUMED = [*GPT2_124M, "--global", "16", "--micro", "4", "--grain", "4", "--steps", "10"]
SMALL_RESUMED = [*SMALL_ENGINE[:-1], "3"]
SAVED_AFTER, SMALL_SAVED_AFTER = 5, 1
RESUMES = {"1 rank": ([], []), "2 ranks, ZeRO 3": (LAYOUTS["2 ranks, ZeRO 3"], LAYOUTS["2 ranks, ZeRO 3"]),
           "2 ranks, ZeRO 3, as 1 rank": (LAYOUTS["2 ranks, ZeRO 3"], [])}
SMALL_RESUMES = {"2 ranks, ZeRO 3, as 1 rank": RESUMES["2 ranks, ZeRO 3, as 1 rank"]}
# By the name of tools/gpu_budget, in the order of value. Two steps warm up.
SPEEDS = {"GPT-2 124M, canonical": [*GPT2_124M, "--global", "64", "--micro", "64", "--grain", "64", "--steps", "12"],
          "GPT-2 124M": [*GPT2_124M, "--global", "64", "--micro", "64", "--steps", "12", "--fast"],
          "GPT-2 1558M, canonical": ["--layers", "48", "--width", "1600", "--heads", "25", "--vocab", "50257", "--sequence", "1024",
                                     "--global", "16", "--micro", "16", "--grain", "16", "--steps", "5"]}
SMALL_SPEEDS = {"tiny": [*SMALL_ENGINE[:-1], "3"], "tiny, Fast": [*SMALL_ENGINE[:-1], "3", "--fast"]}
LOSSES = [*GPT2_124M, "--global", "16", "--micro", "16", "--grain", "16", "--steps", "50"]
SMALL_LOSSES = ["--layers", "2", "--width", "64", "--heads", "1", "--vocab", "67", "--sequence", "13", "--global", "8", "--micro", "2",
                "--steps", "4"]
KERNELS_COUNTED = "gelu|cross_entropy|norm|embedding_backward|token_sums|squares|attention"
COUNTERS = ["gpu__time_duration.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "smsp__issue_active.avg.pct_of_peak_sustained_active", "sm__warps_active.avg.pct_of_peak_sustained_active",
            "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"]
# Losses of a few steps of a model on the device and over the emulation, or with Fast numerics. All compute in bf16 and
# differ by rounding.
SMALL_LOSSES_DIFFER_MAX = 0.02
# Beside PyTorch in bf16, from the same weights.
LOSSES_DIFFER_MAX, NORMS_DIFFER_MAX = 0.02, 0.01
# Of the predicted tokens/s: a slower engine is a fault, not a difference of cards.
SPEED_FLOOR = 0.5
# What the worker trains: model, batch, steps, tokens of the data.
WORKER = ({"layers": 12, "hidden": 768, "heads": 12, "vocab": 50257, "maxPositions": 1024}, {"globalSequences": 32, "microSequences": 8},
          20, 1_000_000)
SMALL_WORKER = ({"layers": 1, "hidden": 64, "heads": 1, "vocab": 67, "maxPositions": 13}, {"globalSequences": 8, "microSequences": 2},
                3, 4_000)
# (ranks, ZeRO stage)
WORKER_LAYOUTS = {"2 ranks, ZeRO 3": (2, 3), "4 ranks, ZeRO 1": (4, 1)}
NCCL_TWO_RANKS_VERSION = 23000
NCCL_VERSION = "import ctypes; v = ctypes.c_int(); ctypes.CDLL('libnccl.so.2').ncclGetVersion(ctypes.byref(v)); print(v.value)"
