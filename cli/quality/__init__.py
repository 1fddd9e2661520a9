"""Reports and plots of `satchel perplexity`."""
