"""File formats, tokenizers and chat templates. This package does not run models."""
