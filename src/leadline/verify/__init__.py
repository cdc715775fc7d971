"""The judge: gates in the text, the interpreter, the device and on the clock, in that order; it fails closed."""
