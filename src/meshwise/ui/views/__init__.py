"""ui/views: results as text, HTML and pictures. tables.py (columns that fit a width), bars.py (stacked bars), notebook.py (HTML) and svg/
(pictures) draw; every other file says what one view shows."""
