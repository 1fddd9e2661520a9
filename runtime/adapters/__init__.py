"""LoRA adapters and control vectors."""
