"""ui/views/svg: pictures as SVG files: a step in time (gantt.py), predicted against measured (scatter.py)."""
