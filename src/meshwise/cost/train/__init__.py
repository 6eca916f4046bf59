"""cost.train: seconds by part and bytes by kind of a training step, for thousands of layouts at once.

step.py      evaluate(question, layouts) -> Cost: everything below composed; opens with a worked step of BLOOM
layer.py     one layer and the head for one micro-batch, with the communication that compute does not hide
passes.py    one micro-batch through the model: seconds by kind of work        pipeline.py  critical path of a schedule, closed form
compute.py   matrix products, attention, kernels that move bytes               schedule.py  the same schedules simulated
chain.py     sequential recurrences (TTT)                                      stages.py    layers of each pipeline stage
comm.py      bandwidth of communication groups, time of collectives            torus.py     groups on a torus (TPU pods)
memory.py    weights, gradients, optimizer state, logits; the peak of all     distinct.py  groups of equal layouts
activations.py activations that micro-batches keep for their backward pass
parameters.py parameters by how they are sharded, and what fine-tuning makes of them
question.py  Question: model, cluster, task, calibration                       recompute.py what is kept, and what is repeated
"""
