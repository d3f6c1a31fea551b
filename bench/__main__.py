"""python -m bench [AREA …]: measure, print, and keep in bench/results/."""
import argparse
import importlib
import sys

AREAS = {
    "host": "microseconds of Python per operator: forward, with graph, backward; door, launch path, engine, allocator",
    "import": "seconds of `import tritorch`",
    "cards": "every operator's workloads on the CPU",
    "native": "operators compiled for this machine's processors and by numpy, beside PyTorch's",
    "vmap": "gradients for each sample, ensembles, Jacobians and Hessians by vmap and by a call for each, beside PyTorch's",
    "train": "the main job beside PyTorch: step time and loss curve from the same weights and batches",
    "gpt2": "GPT-2 124M without a GPU: launches, host time and memory of a step, counted; the loss curve of a small one beside PyTorch",
    "resnet": "ResNet-50 without a GPU: launches, bytes and memory of a step, contiguous and channels last",
    "gpu": "[FAMILY …] the table of anchors on a GPU, PyTorch in turns beside it",
    "allocator": "bytes and driver calls of the caching allocator beside PyTorch's rules, on the requests of training steps",
    "predict": "[FAMILY …] where the time of the table of anchors would go, worked out from the compiled kernels without a GPU",
    "stopwatch": "[FAMILY …] for how many clocks each warp of a kernel waits, and at which line, on a GPU",
    "tune": "[FAMILY …] time every candidate of every kernel, write tritorch/cuda/tables/sm_XX.json",
    "carry": "pack|unpack FILE: the compiled kernels of the cache as one small file, to take them to another machine",
    "gpu_day": "[STEP …] what a GPU is needed for, in steps that each end in time",
}
MODULES = {"import": "imports"}
WITH_WORDS = ("gpu", "predict", "stopwatch", "tune", "carry", "gpu_day")                          # what follows them are their own words


EPILOG = """
gpu FAMILY: memory, rows, index, optim, matmul, attention, conv, host, gpt2 (default: all of these), cards
predict FAMILY: memory, rows, index, optim, matmul, attention, gpt2 (default: all), conv; stopwatch the same without gpt2
tune FAMILY: the first seven, gpt2, cards, with --compile-only host, samples (of operators), tests, too; or families of kernels as the
  tuner names them: softmax, matmul, strided, …; its clocks and --in-step: python -c 'import bench.tune; help(bench.tune)'
gpu_day STEP, each within --minutes and with its output under --out (default: all, in this order):
  smoke   each kind of kernel for products and attention by itself: one that hangs or is wrong is left out by the later steps, of later
          commands too, until the next smoke (runs/avoided.txt; TRITORCH_AVOID=kind,kind is for other programs); then a handful of
          operators and a training step
  build   compile what the tests launch, and every kernel and every candidate of the table, on all cores
  test    the tests that need a GPU, in several processes
  bench   the table of anchors
  tune    time the candidates, write the table of this architecture: first those of GPT-2's step at the power limit, then all others
  judge   GPT-2's captured step with the best candidates of its largest problems in turns (bench tune gpt2 --in-step)
  again   the table of anchors once more
With kernels compiled before, an H100 with 16 cores took 60 s for bench but for host, conv, gpt2, 14 s for tune of matmul, 43 s of gpt2, and
115 s for half of the tests. What only hardware shows is at the end of CONTRIBUTING.md.
Where time on the GPU is short, its kernels are compiled before, into an empty folder and without line numbers, and carried there:
  export TRITORCH_CACHE_DIR=FOLDER TRITON_DISABLE_LINE_INFO=1
  python -m bench tune all host samples tests --compile-only --arch sm_90 --minutes 120
  python -m bench carry pack FILE          and there, instead of the step build:  python -m bench carry unpack FILE
Then everything takes --ready. Runs of parts add up: with --only, rows that were not measured stay in FOLDER as they were, so that
  cp -r bench/results FOLDER; python -m bench gpu rows --only "pool|rotary" --out FOLDER --ready --patience 20
renews some rows, the means, gpu.csv and gpu_aims.md.
"""


def main():
    areas = "\n".join(f"{name:10}{what}" for name, what in AREAS.items())
    parser = argparse.ArgumentParser(prog="python -m bench", formatter_class=argparse.RawDescriptionHelpFormatter, description=areas,
                                     epilog=EPILOG)
    parser.add_argument("areas", nargs="*", metavar="AREA", help="default: host import")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it runs, not to keep")
    parser.add_argument("--steps", type=int, default=800, help="train: steps of the loss curve")
    parser.add_argument("--breakdown", action="store_true", help="gpt2: only print every launch of a step beside its floor")
    parser.add_argument("--only", metavar="WORD|WORD", default="", help="cards, gpu, predict, stopwatch, tune: cases named with a WORD")
    parser.add_argument("--kernel", metavar="WORD", default="", help="stopwatch: kernels whose name contains it")
    parser.add_argument("--minutes", type=float, default=8.0, help="gpu, tune, gpu_day: stop after so long; what is done is kept")
    parser.add_argument("--ready", action="store_true", help="gpu, tune, gpu_day: kernels are in the cache, nothing is compiled before")
    parser.add_argument("--alone", action="store_true", help="gpu: without PyTorch")
    parser.add_argument("--seconds", type=float, default=0.25, help="gpu: of measuring each case")
    parser.add_argument("--patience", type=float, default=90, help="gpu: seconds without a word after which a case hangs")
    parser.add_argument("--out", metavar="FOLDER", help="gpu, gpu_day: results go here instead of bench/results; tune: a copy of the table")
    parser.add_argument("--arch", metavar="sm_90", default="", help="tune: with --compile-only, the architecture")
    parser.add_argument("--compile-only", action="store_true", help="tune: compile every candidate into the cache; needs no GPU")
    parser.add_argument("--warm", action="store_true", help="tune: launches follow each other, operands are in the cache if they fit")
    parser.add_argument("--hot", action=argparse.BooleanOptionalAction, default=None,
                        help="tune: between heavy products, at the GPU's power limit; default: gpt2 alone")
    parser.add_argument("--in-step", action="store_true", help="tune: with gpt2, the step itself decides about its largest problems")
    parser.add_argument("--candidates", action="store_true", help="predict: what each candidate of the tuner would take, too")
    parser.add_argument("--rehearse", action="store_true", help="gpu, tune, gpu_day: tiny shapes on the simulated device, nothing kept")
    args = parser.parse_args()
    words = args.areas or ["host", "import"]
    if words[0] in WITH_WORDS:
        words, args.families = words[:1], words[1:]
    for area in words:
        if area not in AREAS:
            parser.error(f"expected an area among {', '.join(AREAS)}, got {area}")
    code = 0
    for area in words:
        print(f"\n## {area}: {AREAS[area]}\n", flush=True)
        code = importlib.import_module(f"bench.{MODULES.get(area, area)}").main(args) or code
    return code


sys.exit(main())
