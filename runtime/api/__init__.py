"""The library's interface: Model, AsyncModel, their options and replies."""
