"""One file per page: each turns a query into an answer through `meshwise.api`, and that into values of a template.

page.py       what every page has: a form, an answer, and its records
pick.py       models to run on a machine
plan.py       layouts to train a model
serve.py      layouts to serve a model
replay.py     timed traffic through a deployment
whatif.py     one question at many points
mesh.py       which device holds what
timeline.py   the step, operation by operation
count.py      parameters, FLOPs and bytes
accuracy.py   predictions against measurements; scores.py: what accuracy and audit show of a score
audit.py      reported results, checked
runs.py       runs, live and finished, and results of bench
"""

from meshwise.ui.web.pages import accuracy, audit, count, mesh, pick, plan, replay, runs, serve, timeline, whatif

PAGES = (
    pick.PAGE, plan.PAGE, serve.PAGE, replay.PAGE, whatif.PAGE, mesh.PAGE, timeline.PAGE, count.PAGE, accuracy.PAGE, audit.PAGE,
    runs.PAGE,
)  # fmt: skip
