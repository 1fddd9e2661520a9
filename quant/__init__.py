"""Quantization: block formats, the searches of their encoders, calibration, and recipes for whole models."""

from satchel.quant.format import Format
from satchel.quant.formats import BY_ID, FORMATS

__all__ = ["BY_ID", "FORMATS", "Format"]
