"""python -m tritorch.distributed.launch: as tritorch.distributed.run, for programs that read --local-rank among their arguments (unless
--use-env is given)."""
import sys
import warnings

from tritorch.distributed import run


def main(words=None):
    """Do what the command says; returns the exit code."""
    warnings.warn("tritorch.distributed.launch is deprecated; use tritorch.distributed.run, and LOCAL_RANK in the environment",
                  FutureWarning, stacklevel=2)
    made = run.parser("python -m tritorch.distributed.launch")
    made.add_argument("--use-env", "--use_env", action="store_true", help="tell the local rank by the environment alone")
    words = sys.argv[1:] if words is None else words
    return run.main(words, made, local_rank=not made.parse_args(words).use_env)


if __name__ == "__main__":
    sys.exit(main())
