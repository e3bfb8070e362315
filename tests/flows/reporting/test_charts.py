"""Charts of the report's page."""

from xml.etree import ElementTree as ET

import pytest

from flows.reporting.charts import attainment_svg
from flows.reporting.data import ModelOutcome, Outcomes


@pytest.mark.parametrize("served", [100, 97])
def test_the_goal_is_drawn_wherever_the_axis_begins(served: int) -> None:
    found = ModelOutcome(offered=100, served=served, late=100 - served, dropped=0)
    run = Outcomes(label="measured", duration_s=20, models={"net": found})
    root = ET.fromstring(attainment_svg(["net"], [run]))
    assert len([line for line in root.iter() if line.get("stroke-dasharray")]) == 1
