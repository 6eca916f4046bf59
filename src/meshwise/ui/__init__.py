"""ui: what people see. No arithmetic: the API computes, views draw.

    cli/      verbs: one file per verb or pair of verbs; options.py makes flags from questions, help.py prints help that fits a screen
    views/    results as tables, bars, SVG and HTML
Imports api, and the types of the packages below for drawing. Imported by nobody (plan.plan asks views.notebook to draw a plan).
"""
