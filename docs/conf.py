"""How the documentation is built: Sphinx with MyST and Furo, from CommonMark.

`scripts/docs` builds it with warnings as errors. Links within the documentation are checked; links
to other sites are listed in `external-links.txt` of the output folder and not fetched.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "PoolPipe"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["changes/**"]
html_theme = "furo"
html_title = "PoolPipe"
smartquotes = False
html_show_copyright = False
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_extra_path = ["reference/schema"]
myst_heading_anchors = 3
nitpicky = False
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

_external: set[str] = set()


def setup(app: Any) -> None:
    """Collect the addresses of other sites and write them at the end."""
    app.connect("doctree-resolved", _collect)
    app.connect("build-finished", _write)


def _collect(_app: Any, doctree: Any, _name: str) -> None:
    from docutils import nodes  # noqa: PLC0415 - Sphinx imports this file before its own parts

    found = (node.get("refuri", "") for node in doctree.findall(nodes.reference))
    _external.update(uri for uri in found if uri.startswith(("http://", "https://")))


def _write(app: Any, error: Exception | None) -> None:
    if error is None:
        Path(app.outdir, "external-links.txt").write_text(
            "".join(f"{u}\n" for u in sorted(_external))
        )
