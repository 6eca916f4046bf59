"""The loop of `meshwise tune`: start runs, read them, learn from them, choose the next.

start      reads the plan, and starts the loop on it
course     the course of a tuning: takes up earlier runs, chooses, starts, waits, records, stops
history    the runs of one question in a journal, as observations
by_hand    the result of a run as a person tells it
ending     the plan, the calibration and the result that the runs lead to
journal    tune.jsonl of a tuning folder: every event, on disk before the next one; the state is a fold over it
subject    what is tuned, as the loop sees it: training or serving
training   layouts of a training plan as candidates: their files, their logs, the plan and calibration at the end
serving    layouts and flags of an engine as candidates, measured with `bench`
launch     starts the script of a run with the user's command, once; says when it has ended, and how
reading    a log -> step time and memory, or a failure, or why it does not count
columns    a run of another program as a row of a table of measurements
result     Tuned: the runs, the best layout with its interval, and the expected gain of further runs
"""
