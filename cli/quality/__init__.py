"""What `satchel perplexity` is made of: how its numbers are said, compared and drawn."""
