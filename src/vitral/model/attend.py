"""What is taken from each token, by how well queries match keys: torch's fused function, or the same written out.

In bfloat16 on a processor the fused function's way back takes up to nine times as long as the products that it stands
for: docs/decisions/0030-short-numbers.md.
"""

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

MOST_WRITTEN_OUT = 1024  # keys: of more of them the fused function is as fast, and holds no table of all pairs


def attend(  # (B, heads, T, d), (B, heads, S, d), (B, heads, S, d) → (B, heads, T, d)
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropped: float = 0.0, scale: float | None = None
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, where `scale` is 1/√d unless it is given.

    >>> q = torch.ones(1, 2, 5, 4)
    >>> attend(q, q, q).shape
    torch.Size([1, 2, 5, 4])
    """
    if q.dtype != torch.bfloat16 or q.device.type != "cpu" or k.shape[-2] > MOST_WRITTEN_OUT:
        return scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropped, scale=scale)
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)  # (B, heads, T, S)
    shares = (scores if bias is None else scores + bias).softmax(dim=-1, dtype=q.dtype)
    return dropout(shares, dropped) @ v
