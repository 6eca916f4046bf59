"""plan/shapes: stack.py holds many shapes as one model, search.py finds the fastest with their layouts, faults.py lists the
faults of each, answer.py answers a ShapeAsk."""
