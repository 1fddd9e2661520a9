"""The vectors that the scale searches are made of, in plain Python and compiled."""
