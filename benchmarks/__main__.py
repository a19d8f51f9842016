"""Entry point: puts every package of this tree on the path, so that only torch and triton have to be installed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.path[:0] = [str(source) for group in ("packages", "shared") for source in sorted(ROOT.glob(f"{group}/*/src"))]
    from benchmarks.command_line import main

    sys.exit(main(sys.argv[1:]))
