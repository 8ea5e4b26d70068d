"""How a model learns a task: settings, the order of the data, the loop, and checkpoints to go on from."""
