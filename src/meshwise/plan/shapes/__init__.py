"""plan/shapes: stack.py holds many shapes as one model, search.py finds the fastest with their layouts, faults.py what each gives up,
answer.py answers a ShapeAsk."""
