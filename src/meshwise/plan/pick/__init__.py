"""plan/pick: which open model to run on a machine. No numpy: it starts fast.

ask.py       PickAsk: the machine, the use, the speed and the context asked for
ranking.py   published scores -> an order of models for a use
trial.py     one model in one format on one engine: whether it fits, how fast it is
answer.py    Pick: the best models that fit, with their commands; why none does
machines.py  machines to buy or rent for a price, each with its best model
"""
