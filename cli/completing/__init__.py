"""Shell completion: the candidates for a command line, and the scripts of the shells."""
