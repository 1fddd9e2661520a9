"""llama-server's own routes, which speak OpenAI's dialect of errors. PUBLIC: paths that need no key."""

PUBLIC = ("/health", "/v1/health", "/healthz", "/readyz")
