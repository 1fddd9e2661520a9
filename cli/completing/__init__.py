"""What a shell can complete of a command line, and the scripts by which bash, zsh and fish ask for it."""
