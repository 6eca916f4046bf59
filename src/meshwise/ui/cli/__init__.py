"""ui/cli: the program `meshwise`. main.py starts it and words errors; help.py lists the verbs, which are imported when they are used;
options.py makes a verb's flags from its question; output.py prints results as text, JSON or CSV. Every other file holds verbs: they call
`meshwise.api` and hand the result to a view."""
