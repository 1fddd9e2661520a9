"""llama-server's own routes, whose errors have OpenAI's shape."""
