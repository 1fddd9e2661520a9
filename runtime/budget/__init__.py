"""Mixed-precision quantization under a size limit: measures the divergence that each tensor's formats cost on
a text, and chooses the formats with the least total divergence.
"""
