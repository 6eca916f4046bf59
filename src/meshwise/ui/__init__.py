"""ui: the command line and everything it prints. No arithmetic: the API computes, views draw.

    cli/      one file per verb or pair of verbs; options.py derives flags from questions, help.py prints help that fits a screen
    web/      the page: a server (the extra `ui`), one file per page, templates, scripts; report.py writes one file
    views/    results as tables, bars, SVG and HTML
Imports api, and the types of the packages below for drawing. Imported by no other package; by name, plan.plan loads views.notebook when a
notebook shows a plan, and api loads views.run to draw the report of a run.
"""
