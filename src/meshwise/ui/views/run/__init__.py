"""ui/views/run: reports of runs of our trainer. sections.py is a report as text and Markdown; report.py draws a run, lengths.py what
`--report` adds, sweep.py a sweep, dry_run.py a run that was not started; words.py names layouts and ranks. Imports run.train."""
