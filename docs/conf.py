"""Sphinx settings of the documentation site; `python -m tests.docs.site` builds it.

Nothing here may name another host: the site is read from a folder, without a network.
"""

from __future__ import annotations

import sys
from pathlib import Path

import runner

sys.path.append(str(Path(__file__).parent))  # site_pages

project = "mesh-runner"
author = "The runner authors"
copyright = author  # noqa: A001  # Sphinx's name
version = runner.__version__
release = version

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "site_pages"]
root_doc = "index"
exclude_patterns = ["bugs/**"]  # programs, not pages

# Pages link to headings by the anchors that hosting sites give them.
myst_heading_anchors = 4
# A block without a language is output.
highlight_language = "none"

# Docstrings write code in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

# Only command lines and files are worth copying; `$` begins a line of output.
copybutton_selector = "div:not(.highlight-none) > div.highlight > pre"

html_theme = "pydata_sphinx_theme"
html_title = f"mesh-runner {version}"
html_sourcelink_suffix = ""
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_additional_pages = {"404": "404.html"}
templates_path = ["_templates"]
html_theme_options = {
    "logo": {"text": f"mesh-runner {version}"},
    "search_as_you_type": True,
    "header_links_before_dropdown": 7,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

# `python -m tests.docs.site links`. Hosting sites make anchors with scripts, which linkcheck does not run.
linkcheck_anchors = False
linkcheck_timeout = 30
linkcheck_retries = 2
