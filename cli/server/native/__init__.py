"""llama-server's own routes, which speak OpenAI's dialect of errors."""
