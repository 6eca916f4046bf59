"""One file per page: each turns a query into an answer through `meshwise.api`, and that into values of a template.

page.py       what every page has: a form, an answer, and its records
pick.py       models to run on a machine
plan.py       layouts to train a model, or to fine-tune it
serve.py      layouts to serve a model
replay.py     timed traffic through a deployment
whatif.py     one question at many points
mesh.py       which device holds what
timeline.py   the step, operation by operation
count.py      parameters, FLOPs and bytes
accuracy.py   predictions against measurements; scores.py: what accuracy and audit show of a score
audit.py      reported results, checked; check.py: a launch file
diff.py       two saved plans side by side
runs.py       runs, live and finished, and results of bench
"""

from meshwise.ui.web.pages import accuracy, audit, check, count, diff, mesh, pick, plan, replay, runs, serve, timeline, whatif

PAGES = (
    pick.PAGE, plan.PAGE, plan.TUNING_PAGE, serve.PAGE, replay.PAGE, whatif.PAGE, diff.PAGE, check.PAGE, audit.PAGE, mesh.PAGE,
    timeline.PAGE, count.PAGE, accuracy.PAGE, runs.PAGE,
)  # fmt: skip
