"""ui/views: a result as something to look at. tables.py (columns that fit a width), bars.py (stacked bars), notebook.py (HTML) and svg/
(pictures) draw; the others say what a table shows. Imports the types of plan, calibrate, audit, run, models and catalogue."""
