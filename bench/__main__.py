"""python -m bench [host] [import] [cards] [train] [gpu]: measure, print, and keep in bench/results/."""
import argparse
import importlib

AREAS = {
    "host": "microseconds of Python per operator: forward, with graph, backward; door, launch path, engine, allocator",
    "import": "seconds of `import tritorch`",
    "cards": "every operator's workloads on the CPU",
    "train": "the main job beside PyTorch: step time and loss curve from the same weights and batches",
    "gpu": "every operator's workloads on a GPU, beside PyTorch where it is installed",
}
MODULES = {"import": "imports"}


def main():
    parser = argparse.ArgumentParser(prog="python -m bench", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description="\n".join(f"{name:8}{what}" for name, what in AREAS.items()))
    parser.add_argument("areas", nargs="*", metavar="AREA", help="default: host import")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it runs, not to keep")
    parser.add_argument("--steps", type=int, default=800, help="train: steps of the loss curve")
    parser.add_argument("--only", metavar="WORD", default="", help="cards, gpu: operators whose name contains WORD")
    args = parser.parse_args()
    for area in args.areas or ["host", "import"]:
        if area not in AREAS:
            parser.error(f"expected an area among {', '.join(AREAS)}, got {area}")
    for area in args.areas or ["host", "import"]:
        print(f"\n## {area}: {AREAS[area]}\n", flush=True)
        importlib.import_module(f"bench.{MODULES.get(area, area)}").main(args)


main()
