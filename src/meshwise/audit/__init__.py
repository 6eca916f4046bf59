"""Does a reported result add up: what follows from its figures, what contradicts them, and what the planner makes of it."""
