"""The loop of `meshwise tune`: start runs, read them, learn from them, choose the next.

start.py   reads the plan, and starts the loop on it
course.py  the course of a tuning: takes up earlier runs, chooses, starts, waits, records, stops
history.py the runs of one question in a journal, as observations
by_hand.py the result of a run as a person tells it
ending.py  the plan, the calibration and the result that the runs lead to
journal.py tune.jsonl of a tuning folder: every event, on disk before the next one; the state is a fold over it
subject.py what is tuned, as the loop sees it: training or serving
training.py  layouts of a training plan as candidates: their files, their logs, the plan and calibration at the end
serving.py layouts and flags of an engine as candidates, measured with `bench`
launch.py  starts the script of a run with the user's command, once; says when it has ended, and how
reading.py a log -> step time and memory, or a failure, or why it does not count
result.py  Tuned: the runs, the best layout with its interval, and the expected gain of further runs
"""
