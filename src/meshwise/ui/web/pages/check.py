"""The page Check: a launch file, uploaded or pasted: does it start, does it fit, how fast is it, and what would be better."""

from pathlib import Path

from meshwise import api
from meshwise.audit.check.ask import CheckAsk
from meshwise.models import find
from meshwise.ui.views import launch_files as views
from meshwise.ui.web import asking
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages.page import Page, Reply, Site, Upload


def uploaded(site: Site, paths: list[Path], query: Pairs) -> Reply:
    """Check an uploaded launch file with the cluster, model and variables of the query."""
    ask = asking.question(CheckAsk, query, site.named.models)
    with find.catalogue_alone(ask.model):
        verdict = api.check(*paths, **{name: value for name, value in vars(ask).items() if value})
    shown = {"verdict": verdict, "heads": views.HEADS, **views.page_parts(verdict)}
    return Reply(shown, verdict.to_json(), verdict.rows(), verdict.line)


PAGE = Page(
    name="check", title="Check", about="Check a launch file: does it start, fit, and run fast?", template="check.html",
    answer=lambda site, query: None, form=lambda query: asking.groups(CheckAsk, query),
    upload=Upload(
        "Your launch file",
        "A script of Megatron, torchtitan, DeepSpeed, accelerate, TRL, Axolotl, vLLM, SGLang, ... or a YAML, JSON or TOML of one",
        "Check it", uploaded, pasted=True,
    ),
)  # fmt: skip
