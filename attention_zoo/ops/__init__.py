"""Functions on tensors that mechanisms share; none of them imports a mechanism."""
