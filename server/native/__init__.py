"""llama-server's own routes. Their errors have OpenAI's shape."""
