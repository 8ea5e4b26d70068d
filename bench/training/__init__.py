"""Training a model on a task: settings, order of the data, training loop, checkpoints and evaluation."""
