"""The tutorials' models written down once more from what their texts say, with their loops and their names.

Each is independent of Vitral: it uses nothing but torch, and does things in the order of its tutorial, picture by
picture and head by head where the tutorial does. `parts` says which of its layers is which of ours, by our names.
tests/test_tutorials.py holds our models against them.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Parts = dict[str, nn.Module | Tensor]  # by our names


class WeightAndBias(nn.Module):
    """Two tensors that lie elsewhere, as one layer."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)


class Transcript(nn.Module):
    """A tutorial's model."""

    def parts(self) -> Parts:
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """All its tensors, by our names."""
        tensors = {}
        for name, part in self.parts().items():
            if isinstance(part, Tensor):
                tensors[name] = part.detach()
            else:
                tensors |= {f"{name}.{ending}": tensor for ending, tensor in part.state_dict().items()}
        return tensors


def in_blocks(blocks: Iterable[nn.Module], parts: Callable[..., Parts]) -> Parts:
    return {f"blocks.{n}.{name}": part for n, block in enumerate(blocks) for name, part in parts(block).items()}


def multihead(attention: nn.MultiheadAttention) -> Parts:
    assert attention.in_proj_weight is not None and attention.in_proj_bias is not None
    qkv = WeightAndBias(attention.in_proj_weight.detach(), attention.in_proj_bias.detach())
    return {"attn.qkv": qkv, "attn.proj": attention.out_proj}


# Mu: patches by a convolution, PyTorch's own attention, a norm before the head.


class MuBlock(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, mlp_ratio: float = 4.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim)
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.norm2 = nn.LayerNorm(embed_dim)
        hidden = int(embed_dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(embed_dim, hidden), nn.GELU(), nn.Linear(hidden, embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        attended, _ = self.attn(self.norm1(x), self.norm1(x), self.norm1(x))
        x = x + attended
        return x + self.mlp(self.norm2(x))

    def parts(self) -> Parts:
        mlp = {"mlp.fc1": self.mlp[0], "mlp.fc2": self.mlp[2]}
        return {"norm1": self.norm1, "norm2": self.norm2, **multihead(self.attn), **mlp}


class Mu(Transcript):
    def __init__(
        self, img_size: int, patch_size: int, embed_dim: int, depth: int, num_heads: int, classes: int
    ) -> None:
        super().__init__()
        patches = (img_size // patch_size) ** 2
        self.proj = nn.Conv2d(3, embed_dim, kernel_size=patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, patches + 1, embed_dim))
        self.blocks = nn.Sequential(*[MuBlock(embed_dim, num_heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])

    def parts(self) -> Parts:
        first: Parts = {"patch_embed.proj": self.proj, "cls_token": self.cls_token, "pos_embed": self.pos_embed}
        return {**first, **in_blocks(self.blocks, MuBlock.parts), "norm": self.norm, "head": self.head}


# Owen: a list of heads, each with its own query, key and value; GELU by tanh; first values of its own.


def new_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


class OwenHead(nn.Module):
    def __init__(self, hidden_size: int, head_size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(hidden_size, head_size) for _ in range(3))
        self.head_size = head_size

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.matmul(self.query(x), self.key(x).transpose(-1, -2)) / math.sqrt(self.head_size)
        return torch.matmul(scores.softmax(dim=-1), self.value(x))


class OwenBlock(nn.Module):
    def __init__(self, hidden_size: int, heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([])
        for _ in range(heads):
            self.heads.append(OwenHead(hidden_size, hidden_size // heads))
        self.output_projection = nn.Linear(hidden_size, hidden_size)
        self.layernorm_1 = nn.LayerNorm(hidden_size)
        self.dense_1, self.dense_2 = nn.Linear(hidden_size, 4 * hidden_size), nn.Linear(4 * hidden_size, hidden_size)
        self.layernorm_2 = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.layernorm_1(x)
        x = x + self.output_projection(torch.cat([head(seen) for head in self.heads], dim=-1))
        return x + self.dense_2(new_gelu(self.dense_1(self.layernorm_2(x))))

    def parts(self) -> Parts:
        layers = [head.get_submodule(which) for which in ("query", "key", "value") for head in self.heads]
        return {
            "norm1": self.layernorm_1,
            "attn.qkv.weight": torch.cat([layer.get_parameter("weight") for layer in layers]),
            "attn.qkv.bias": torch.cat([layer.get_parameter("bias") for layer in layers]),
            "attn.proj": self.output_projection,
            "norm2": self.layernorm_2,
            "mlp.fc1": self.dense_1,
            "mlp.fc2": self.dense_2,
        }


class Owen(Transcript):
    def __init__(
        self, image_size: int, patch_size: int, hidden_size: int, depth: int, heads: int, classes: int
    ) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, hidden_size, kernel_size=patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.randn(1, 1, hidden_size))
        self.position_embeddings = nn.Parameter(torch.randn(1, (image_size // patch_size) ** 2 + 1, hidden_size))
        self.blocks = nn.ModuleList([OwenBlock(hidden_size, heads) for _ in range(depth)])
        self.classifier = nn.Linear(hidden_size, classes)
        self.apply(self._init_weights)
        for tokens in (self.cls_token, self.position_embeddings):
            nn.init.trunc_normal_(tokens, mean=0.0, std=0.02)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.projection(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.position_embeddings
        for block in self.blocks:
            x = block(x)
        return self.classifier(x[:, 0])

    def parts(self) -> Parts:
        first: Parts = {
            "patch_embed.proj": self.projection,
            "cls_token": self.cls_token,
            "pos_embed": self.position_embeddings,
        }
        return {**first, **in_blocks(self.blocks, OwenBlock.parts), "head": self.classifier}


# Pulfer: patches cut one by one, attention sequence by sequence and head by head, a softmax in the end.


def pulfer_patchify(images: Tensor, n_patches: int) -> Tensor:
    n, c, h, w = images.shape
    size = h // n_patches
    patches = torch.zeros(n, n_patches**2, h * w * c // n_patches**2)
    for number, image in enumerate(images):
        for i in range(n_patches):
            for j in range(n_patches):
                patch = image[:, i * size : (i + 1) * size, j * size : (j + 1) * size]
                patches[number, i * n_patches + j] = patch.flatten()
    return patches


def pulfer_positions(length: int, d: int) -> Tensor:
    result = torch.ones(length, d)
    for i in range(length):
        for j in range(d):
            wave = math.sin(i / 10000 ** (j / d)) if j % 2 == 0 else math.cos(i / 10000 ** ((j - 1) / d))
            result[i][j] = wave
    return result


class PulferMSA(nn.Module):
    def __init__(self, d: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads, self.d_head = n_heads, d // n_heads
        self.q_mappings, self.k_mappings, self.v_mappings = (
            nn.ModuleList([nn.Linear(self.d_head, self.d_head) for _ in range(n_heads)]) for _ in range(3)
        )

    def forward(self, sequences: Tensor) -> Tensor:
        result = []
        for sequence in sequences:
            heads = []
            for head in range(self.n_heads):
                part = sequence[:, head * self.d_head : (head + 1) * self.d_head]
                q, k, v = self.q_mappings[head](part), self.k_mappings[head](part), self.v_mappings[head](part)
                heads.append((q @ k.T / self.d_head**0.5).softmax(dim=-1) @ v)
            result.append(torch.hstack(heads))
        return torch.stack(result)


class PulferBlock(nn.Module):
    def __init__(self, hidden_d: int, n_heads: int) -> None:
        super().__init__()
        self.norm1, self.mhsa, self.norm2 = nn.LayerNorm(hidden_d), PulferMSA(hidden_d, n_heads), nn.LayerNorm(hidden_d)
        self.mlp = nn.Sequential(nn.Linear(hidden_d, 4 * hidden_d), nn.GELU(), nn.Linear(4 * hidden_d, hidden_d))

    def forward(self, x: Tensor) -> Tensor:
        out = x + self.mhsa(self.norm1(x))
        return out + self.mlp(self.norm2(out))

    def parts(self) -> Parts:
        mappings = (self.mhsa.q_mappings, self.mhsa.k_mappings, self.mhsa.v_mappings)

        def all_of(ending: str) -> Tensor:  # (3, heads, …)
            return torch.stack([torch.stack([one.get_parameter(ending) for one in some]) for some in mappings])

        qkv = {"attn.qkv.weight": all_of("weight"), "attn.qkv.bias": all_of("bias")}
        return {"norm1": self.norm1, **qkv, "norm2": self.norm2, "mlp.fc1": self.mlp[0], "mlp.fc2": self.mlp[2]}


class Pulfer(Transcript):
    positions: Tensor

    def __init__(
        self, chw: tuple[int, int, int], n_patches: int, blocks: int, hidden_d: int, heads: int, out: int
    ) -> None:
        super().__init__()
        self.n_patches, self.channels = n_patches, chw[0]
        self.linear_mapper = nn.Linear(chw[0] * chw[1] * chw[2] // n_patches**2, hidden_d)
        self.class_token = nn.Parameter(torch.rand(1, hidden_d))
        self.register_buffer("positions", pulfer_positions(n_patches**2 + 1, hidden_d))
        self.blocks = nn.ModuleList([PulferBlock(hidden_d, heads) for _ in range(blocks)])
        self.mlp = nn.Sequential(nn.Linear(hidden_d, out), nn.Softmax(dim=-1))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.linear_mapper(pulfer_patchify(images, self.n_patches))
        out = torch.stack([torch.vstack((self.class_token, one)) for one in tokens]) + self.positions
        for block in self.blocks:
            out = block(out)
        return self.mlp(out[:, 0])

    def parts(self) -> Parts:
        matrix, side = self.linear_mapper.weight, round((self.linear_mapper.in_features / self.channels) ** 0.5)
        first: Parts = {
            "patch_embed.proj.weight": matrix.unflatten(1, (self.channels, side, side)),
            "patch_embed.proj.bias": self.linear_mapper.bias,
            "cls_token": self.class_token[None],
        }
        return {**first, **in_blocks(self.blocks, PulferBlock.parts), "head": self.mlp[0]}


# Bourke: blocks within blocks, dropout in the MLP, tokens of ones, no norm before the classifier.


class BourkeMSABlock(nn.Module):
    def __init__(self, embedding_dim: int, num_heads: int) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(normalized_shape=embedding_dim)
        self.multihead_attn = nn.MultiheadAttention(embedding_dim, num_heads, dropout=0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer_norm(x)
        attn_output, _ = self.multihead_attn(query=x, key=x, value=x, need_weights=False)
        return attn_output


class BourkeMLPBlock(nn.Module):
    def __init__(self, embedding_dim: int, mlp_size: int, dropout: float) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(normalized_shape=embedding_dim)
        self.mlp = nn.Sequential(
            nn.Linear(embedding_dim, mlp_size),
            nn.GELU(),
            nn.Dropout(p=dropout),
            nn.Linear(mlp_size, embedding_dim),
            nn.Dropout(p=dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.layer_norm(x))


class BourkeEncoderBlock(nn.Module):
    def __init__(self, embedding_dim: int, num_heads: int, mlp_size: int, dropout: float) -> None:
        super().__init__()
        self.msa_block = BourkeMSABlock(embedding_dim, num_heads)
        self.mlp_block = BourkeMLPBlock(embedding_dim, mlp_size, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.msa_block(x) + x
        return self.mlp_block(x) + x

    def parts(self) -> Parts:
        return {
            "norm1": self.msa_block.layer_norm,
            **multihead(self.msa_block.multihead_attn),
            "norm2": self.mlp_block.layer_norm,
            "mlp.fc1": self.mlp_block.mlp[0],
            "mlp.fc2": self.mlp_block.mlp[3],
        }


class Bourke(Transcript):
    def __init__(
        self,
        img_size: int,
        patch_size: int,
        layers: int,
        embedding_dim: int,
        num_heads: int,
        num_classes: int,
        dropout: float = 0.1,
        first: Callable[..., Tensor] = torch.ones,
    ) -> None:
        super().__init__()
        self.patcher = nn.Conv2d(3, embedding_dim, kernel_size=patch_size, stride=patch_size, padding=0)
        self.flatten = nn.Flatten(start_dim=2, end_dim=3)
        self.class_token = nn.Parameter(first(1, 1, embedding_dim))
        self.position_embedding = nn.Parameter(first(1, img_size**2 // patch_size**2 + 1, embedding_dim))
        self.transformer_encoder = nn.Sequential(
            *[BourkeEncoderBlock(embedding_dim, num_heads, 4 * embedding_dim, dropout) for _ in range(layers)]
        )
        self.classifier = nn.Sequential(nn.Linear(in_features=embedding_dim, out_features=num_classes))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.flatten(self.patcher(x)).permute(0, 2, 1)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), patches), dim=1) + self.position_embedding
        return self.classifier(self.transformer_encoder(x)[:, 0])

    def parts(self) -> Parts:
        first: Parts = {
            "patch_embed.proj": self.patcher,
            "cls_token": self.class_token,
            "pos_embed": self.position_embedding,
        }
        return {**first, **in_blocks(self.transformer_encoder, BourkeEncoderBlock.parts), "head": self.classifier[0]}
