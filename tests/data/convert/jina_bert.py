"""jina-bert-v2 of transformers' BERT: its scores get ALiBi's distances as a mask, its feed-forward is
replaced. For make_mixed.py; transformers has no class of this family.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import BertConfig, BertModel

Arrays = Mapping[str, npt.NDArray[np.float32]]


class Glu(nn.Module):
    """Both halves of the wide product: gelu of the first times the second."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(width, 2 * size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gated_layers(x).chunk(2, -1)
        return nn.functional.gelu(gate) * up


def _model(settings: Mapping[str, Any]) -> BertModel:
    known = {k: v for k, v in settings.items() if k not in ("architectures", "position_embedding_type")}
    model = BertModel(BertConfig(**known, attn_implementation="eager"), add_pooling_layer=False).eval()
    for layer in model.encoder.layer:
        layer.intermediate = Glu(settings["hidden_size"], settings["intermediate_size"])
    return model


def _names(model: BertModel) -> dict[str, str]:
    """The published names by transformers'."""
    found = {name: name for name in model.state_dict() if "position" not in name}
    for ours, theirs in (
        (".intermediate.gated", ".mlp.gated"),
        (".output.dense", ".mlp.wo"),
        (".output.LayerNorm", ".mlp.layernorm"),
    ):
        found = {k: v if ".attention" in v else v.replace(ours, theirs) for k, v in found.items()}
    return found


def shapes(settings: Mapping[str, Any]) -> dict[str, list[int]]:
    model = _model(settings)
    state = model.state_dict()
    return {theirs: list(state[ours].shape) for ours, theirs in _names(model).items()}


def rows(settings: Mapping[str, Any], values: Arrays, ids: list[int]) -> npt.NDArray[np.float32]:
    """The last hidden states of the ids."""
    model = _model(settings)
    state = {ours: torch.from_numpy(values[theirs]) for ours, theirs in _names(model).items()}
    state["embeddings.position_embeddings.weight"] = torch.zeros_like(
        model.embeddings.position_embeddings.weight
    )
    wrong = model.load_state_dict(state, strict=False)
    if wrong.unexpected_keys or any("position_ids" not in k for k in wrong.missing_keys):
        raise SystemExit(f"jina_bert: {wrong}")
    heads, n = settings["num_attention_heads"], len(ids)
    first = 2 ** (-8 / 4)  # of six heads: four in the ratio of four, two in that of eight
    slopes = [first ** (i + 1) for i in range(4)] + [first ** (i + 0.5) for i in range(heads - 4)]
    away = (torch.arange(n)[:, None] - torch.arange(n)).abs().float()
    mask = -torch.tensor(slopes)[None, :, None, None] * away
    with torch.no_grad():
        out = model(torch.tensor([ids]), attention_mask=mask).last_hidden_state[0]
    return out.numpy()
