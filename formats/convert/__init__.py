"""Checkpoints of other formats as sources of GGUF tensors: safetensors, PyTorch, ONNX, GPTQ, AWQ, FP8, LoRA.

Nothing is imported here: an architecture's file sees `mapping` alone.
"""
