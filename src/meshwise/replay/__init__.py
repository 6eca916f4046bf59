"""replay: timed traffic through a planned deployment, as a discrete-event simulation."""
