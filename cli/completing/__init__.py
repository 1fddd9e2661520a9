"""Shell completion: the candidates for a command line, and the scripts for bash, zsh and fish."""
