"""Tune: the fastest layout on the user's own cluster from a few measured runs; choose, launch, read, learn, choose again.

ask.py    TuneAsk: the question of `meshwise tune`
belief/   candidates, what measured runs say about all of them, and the run that promises most
loop/     starts runs, reads them, learns from them, chooses the next, stops when more would not pay
replay/   the same loop on a table of measured runs, beside other ways to choose
"""
