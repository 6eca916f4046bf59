"""One file per page: each turns a query into an answer through `meshwise.api`, and that into values of a template.

    page.py       what every page has
    plan.py       layouts to train a model            serve.py      layouts to serve a model
"""

from meshwise.ui.web.pages import plan, serve

PAGES = (plan.PAGE, serve.PAGE)
