"""Functions on tensors that several mechanisms share; none of them knows a mechanism."""
