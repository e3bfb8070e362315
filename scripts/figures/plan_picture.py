"""Draw a plan as the report does, as one SVG file that pages can show.

    .venv/bin/python -m scripts.figures.plan_picture [PLAN] [--out FILE]

By default the plan of a `poolpipe quickstart`, which `quickstart_plan.json` keeps, as
`docs/images/plan.svg`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.reporting.picture import WIDTH, plan_svg
from flows.reporting.view import view_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan

HERE = Path(__file__).parent
PLAN = HERE / "quickstart_plan.json"
OUT = HERE.parents[1] / "docs" / "images" / "plan.svg"
_PAPER = '<rect width="100%" height="100%" fill="#fff"/>'


def picture(plan: Plan) -> str:
    """The drawing on white paper, in the width of the report."""
    head, _, rest = plan_svg(view_of(plan)).partition(">")
    fixed = head.replace(' width="100%"', f' width="{WIDTH:g}"')
    return f"{fixed}>{_PAPER}{rest}\n"


def main(arguments: Sequence[str]) -> int:
    """Draw; 2 where the plan cannot be read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path, nargs="?", default=PLAN, metavar="PLAN")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE")
    asked = parser.parse_args(arguments)
    try:
        plan = Plan.from_dict(json.loads(asked.plan.read_text(encoding="utf-8")))
    except (OSError, ValueError, InputError) as error:
        print(f"{asked.plan}: {error}", file=sys.stderr)
        return 2
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(picture(plan), encoding="utf-8")
    print(asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
