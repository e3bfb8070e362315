"""Figure 8 of the PPipe paper: how busy GPUs of either class are at the highest load that holds."""

from pathlib import Path

import numpy as np

from scripts.paper.cells import CLUSTERS, GROUPS, PLANNERS, PaperData
from scripts.paper.curves.panels import BARS, Asked, Found, Panel, over_seeds
from scripts.paper.runs import Runner
from scripts.paper.study import Study

SIDES = ("high", "low")


def utilisation(asked: Asked) -> Found:
    """Figure 8: one run of every published group of models at its highest load factor."""
    found = Found()
    bars: dict[str, dict[str, list[tuple[str, float]]]] = {side: {} for side in SIDES}
    with Runner() as runner:
        study = Study(
            data=PaperData.read(asked.data / "ppipe"),
            out=Path(),
            policy="reservation",
            runner=runner,
        )
        for planner in PLANNERS:
            busy = study.busy(planner)
            for at, side in enumerate(SIDES):
                own = [
                    (name, 100 * float(np.mean([busy[group, name][at] for group in GROUPS])))
                    for name in CLUSTERS
                ]
                mean = float(np.mean([value for _, value in own]))
                bars[side][planner] = [*own, ("mean", mean)]
                where = f"figure 8, {planner}: GPUs of the {side} class busy, mean"
                found.figures += over_seeds(where, [mean], "%")
    found.panels += [
        Panel(title=f"{side}-class GPUs", x="", y="% of their time busy", series=own, kind=BARS)
        for side, own in bars.items()
    ]
    return found


FIGURES = {"ppipe-8": utilisation}
