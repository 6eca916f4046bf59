"""ui/views: results as text, HTML and pictures. tables.py (columns that fit a width), bars.py (stacked bars), notebook.py (HTML) and svg/
(pictures) draw; the other files define what each view shows. Imports the types of plan, calibrate, audit, run, models and catalogue."""
