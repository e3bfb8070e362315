"""The table of faults under the path it always had.

`scripts/faults/bench_faults.py` is the benchmark.
"""

import sys

from scripts.faults.bench_faults import main

if __name__ == "__main__":
    sys.exit(main())
