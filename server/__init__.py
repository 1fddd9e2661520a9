"""The HTTP server: three API flavours (OpenAI, Anthropic, Ollama) and the native API over one internal
request.

Each package beside this file is a flavour, the native API or the web page; every module in it that has a
`router` is found by its name. A flavour turns its request body into a `GenerationRequest` (generation.py) and
writes the `Answer` (answer.py) in its own shape.
"""
