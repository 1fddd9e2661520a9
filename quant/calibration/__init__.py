"""Codes and scales that fit the inputs which a model has seen: GPTQ and AWQ."""
