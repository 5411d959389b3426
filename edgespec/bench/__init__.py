"""Does speculation pay with a model on this machine? Measured, shown, and said in a sentence."""
