"""Tables that belong to no figure: each is a function of the frame of `analysis.frame.load`."""
