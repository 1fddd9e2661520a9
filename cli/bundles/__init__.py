"""One file that runs: the program of cext/program with a built model behind it, made by Python alone."""
