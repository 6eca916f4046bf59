"""ui/views/svg: pictures as SVG files: the timeline of a step (gantt.py), predicted against measured (scatter.py), curves (lines.py),
figures over the same time (courses.py);
drawing.py has what they share."""
