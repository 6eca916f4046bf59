"""ui/cli: the program `meshwise`. main.py runs it and formats errors; help.py lists the verbs, each imported when it is used; options.py
derives a verb's flags from its question; output.py prints results as text, JSON or CSV; progress.py draws progress bars. Every other file
holds verbs: they call `meshwise.api` and pass the result to a view."""
