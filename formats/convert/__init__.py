"""Converts checkpoints (safetensors, PyTorch, ONNX, GPTQ, AWQ, FP8, LoRA) to sources of GGUF tensors.

This file imports nothing, because architecture files import `mapping` only.
"""
