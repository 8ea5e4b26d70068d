"""Tables without a figure: each is a function of the frame that `analysis.frame.load` returns."""
