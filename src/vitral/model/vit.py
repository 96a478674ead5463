"""The Vision Transformer: "An Image is Worth 16x16 Words" (Dosovitskiy et al., 2021; arXiv:2010.11929).

Images (B, C, H, W) come in, logits (B, classes) go out. A number in brackets in a comment marks the line that
does that equation of the paper: (1) to (4) are in its section 3.1, (5) to (8) in its appendix A. In its letters, with z
for our tokens:

    z₀  = [x_class; x₁E; x₂E; …; x_N E] + E_pos   (1)     [q, k, v] = z U_qkv         (5)
    z′ₗ = MSA(LN(zₗ₋₁)) + zₗ₋₁                    (2)     A = softmax(q kᵀ / √(D/heads))  (6)
    zₗ  = MLP(LN(z′ₗ)) + z′ₗ                      (3)     SA(z) = A v                 (7)
    y   = LN(the class token of z_L)              (4)     MSA(z) = [SA₁; SA₂; …] U    (8)

Shapes: B images in a batch, C channels, H height, W width, P pixels a side of a patch, N = H/P · W/P patches,
T tokens (the class token first, then other extra ones, then the N patches in reading order), D width of a token.

Read it from top to bottom: attention, block, model. By default it is the paper's ViT; other parts that a config can
name are in stems.py, positions.py, mlps.py, norms.py, pools.py and heads.py. Parameters have the names that timm, the
largest library of such models, gives them: most checkpoints fit as they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from vitral.model.attend import attend
from vitral.model.config import Regularise, ViTConfig
from vitral.model.heads import HEADS, PRE_LOGITS
from vitral.model.interface import Model, layer_weights, outputs_in_words
from vitral.model.mlps import MLPS
from vitral.model.norms import Drop, fill_matrix, keyless_bias, layer_scale, norm
from vitral.model.patches import select_patches
from vitral.model.pools import POOLED_WIDTHS, POOLS, attention_pool
from vitral.model.positions import BIASES, POSITIONS, ROTATIONS, TURNS, Rotation
from vitral.model.stems import STEMS


class Attention(nn.Module):
    """Multi-head self-attention, the only place where tokens learn of each other.

    Each token makes a query (what am I looking for?), a key (what do I offer?) and a value (what do I pass on?). Its
    query is compared with the keys of all tokens; the better the match, the more of that token's value it takes.
    Each head does this with its own share of the width, so that a token can look for several things at once.
    """

    def __init__(self, config: ViTConfig, regularise: Regularise) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.attention.bias is True)
        self.qv_bias = keyless_bias(config)
        self.q_norm = norm(config, config.width // config.heads, there=config.attention.qk_norm)
        self.k_norm = norm(config, config.width // config.heads, there=config.attention.qk_norm)
        self.position_bias = BIASES[config.positions.kind](config)  # nothing, unless positions are relative
        self.turn = TURNS[config.positions.kind]  # as they are, unless positions are rotary
        self.proj = nn.Linear(config.width, config.width, bias=config.blocks.bias)
        self.dropout = regularise.attention_dropout

    def queries_keys_values(self, x: Tensor, rotation: Rotation = None) -> tuple[Tensor, Tensor, Tensor]:
        B, T, D = x.shape
        qkv = self.qv_bias(self.qkv(x))  # (5)  one product for all three and all heads
        qkv = qkv.view(B, T, 3, self.heads, D // self.heads)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))  # each (B, heads, T, D/heads)
        return self.turn(self.q_norm(q), rotation), self.turn(self.k_norm(k), rotation), v

    def map(self, x: Tensor, rotation: Rotation = None) -> Tensor:  # (B, T, D) → (B, heads, T, T)
        """A, computed for those who want to see it: row i tells how much token i takes from each token, and sums to 1.

        `x` is what `forward` gets: the tokens after `norm1`. `forward` itself leaves A to a fused kernel.
        """
        q, k, _ = self.queries_keys_values(x, rotation)
        # Long vectors have large products; divided by √ of their length, softmax does not start out all-or-nothing.
        scores, bias = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, self.position_bias(q)
        return (scores if bias is None else scores + bias).softmax(dim=-1)  # (6)

    def forward(  # (B, T, D) → (B, T, D)
        self, x: Tensor, first: int | None = None, rotation: Rotation = None
    ) -> Tensor:
        q, k, v = self.queries_keys_values(x, rotation)
        bias, dropout = self.position_bias(q), self.dropout if self.training else 0.0
        if first is not None:  # only so many of the tokens ask; of all of them is taken
            q, bias = q[:, :, :first], bias if bias is None else bias[:, :, :first]
        # A v, (B, heads, T, D/heads), without ever holding all of A
        taken = attend(q, k, v, bias, dropout)  # (7)
        return self.proj(taken.transpose(1, 2).flatten(2))  # (8)  the heads side by side, then mixed


class Block(nn.Module):
    """Tokens exchange what they know (attention), then each works on it alone (MLP). Both add to what was there, so
    that the way back for gradients stays open through many blocks; LayerNorm keeps what they read in one range."""

    def __init__(self, config: ViTConfig, regularise: Regularise, number: int) -> None:
        super().__init__()
        self.norm1 = norm(config, config.width)
        self.attn = Attention(config, regularise)
        self.ls1 = layer_scale(config)
        self.norm2 = norm(config, config.width)
        self.mlp = MLPS[config.mlp.kind](config, config.blocks.bias)
        self.ls2 = layer_scale(config)
        self.drop = Drop(config, regularise, number)

    def forward(  # (B, T, D) → (B, T, D)
        self, tokens: Tensor, first: int | None = None, rotation: Rotation = None
    ) -> Tensor:
        """`first` asks for the first so many tokens alone, and spares the work on the others."""
        tokens = self.drop(self.ls1(self.attn(self.norm1(tokens), first, rotation))) + tokens[:, :first]  # (2)
        return self.drop(self.ls2(self.mlp(self.norm2(tokens)))) + tokens  # (3)


class ViT(Model):
    """A Vision Transformer, described by its config and nothing else.

    >>> model = ViT(ViTConfig(image_size=32, patch_size=8, width=64, depth=2, heads=4, classes=10))
    >>> model(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    config: ViTConfig
    head: nn.Module  # and, by the config, cls_token, dist_token, reg_token, head_dist

    attends, drops_patches, any_size, splits = True, True, True, True
    block_class: ClassVar[type[Block]] = Block

    def __init__(self, config: ViTConfig, regularise: Regularise | None = None) -> None:
        super().__init__()
        self.regularise = regularise = regularise or Regularise()
        pooled_width = config.width * POOLED_WIDTHS[config.pool.kind]
        self.config = config
        self.attends = config.pool.kind != "map"  # maps are of blocks, and there one more attention reads the answer
        self.patch_embed = STEMS[config.stem.kind](config)
        for name, count in config.extra_tokens.items():  # cls_token: 1, in the paper
            self.register_parameter(name, nn.Parameter(torch.empty(1, count, config.width)))
        self.positions = POSITIONS[config.positions.kind](config)  # the rule
        self.pos_embed = self.positions.table()  # its learned numbers, if it has any
        self.pos_drop = nn.Dropout(regularise.dropout)
        self.norm_pre = norm(config, config.width, there=config.blocks.first_norm)
        self.blocks = nn.ModuleList(self.block_class(config, regularise, n) for n in range(config.depth))
        self.norm = norm(config, config.width, there=config.pool.norm == "before")
        self.attn_pool = attention_pool(config)
        self.fc_norm = norm(config, pooled_width, there=config.pool.norm == "after")
        self.pre_logits = PRE_LOGITS[config.head.kind](config, pooled_width)
        for name in config.classifiers:
            self.add_module(name, HEADS[config.head.kind](config, pooled_width))
        self.initialise()

    def embed(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, T, D)
        """Images become tokens. Attention does not know the order of tokens, so each gets its position added.

        `keep`, (B, K), holds the numbers of the patches to keep, from 0 in reading order; the others are left out.
        """
        grid = self.grid_of(images)
        patches = self.patch_embed(images)  # (B, N, D)
        extra = [getattr(self, name).expand(images.shape[0], -1, -1) for name in self.config.extra_tokens]
        positions = self.positions(self.pos_embed, grid).to(patches)  # (1, T, D), the same for all images
        tokens = torch.cat([*extra, patches], dim=1) + positions  # (1)
        tokens = tokens if keep is None else select_patches(tokens, keep, self.config)
        return self.norm_pre(self.pos_drop(tokens))

    def rotation(self, images: Tensor, keep: Tensor | None = None) -> Rotation:
        """What blocks need beside the tokens of these images: nothing, unless positions are rotary."""
        return ROTATIONS[self.config.positions.kind](self.config, self.grid_of(images), images.device, keep)

    def features(  # (B, C, H, W) → (B, T, D)
        self, images: Tensor, keep: Tensor | None = None, first: int | None = None
    ) -> Tensor:
        """All tokens after the last block and its norm; or the `first` so many, which takes less time."""
        tokens, rotation = self.embed(images, keep), self.rotation(images, keep)
        for block in self.blocks[:-1]:
            tokens = block(tokens, rotation=rotation)
        return self.norm(self.blocks[-1](tokens, first, rotation))  # (4)

    def views(self, tokens: Tensor) -> list[Tensor]:  # (B, T, D) → each (B, D)
        """What each classifier sees: the class token, in the paper. It shows no patch, and has gathered from all."""
        return [self.fc_norm(view) for view in POOLS[self.config.pool.kind](self.attn_pool(tokens), self.config)]

    def classify(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:  # each (B, D) → each (B, classes)
        """One classifier in the paper. A distilled model has a second one, and `forward` gives their mean."""
        pairs = zip(self.config.classifiers, views, strict=True)
        return tuple(getattr(self, name)(self.pre_logits(view)) for name, view in pairs)

    def head_tokens(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, t, D)
        return self.features(images, keep, self.config.tokens_seen)

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, classes)
        return torch.stack(self.logits(self.head_tokens(images, keep))).mean(dim=0)

    def at(self, image_size: int | tuple[int, int]) -> Self:
        """A copy of the model made for another image size: its position table is resampled once, here, not in use."""
        config = type(self.config).read({**self.config.write(), "image_size": image_size}, "model.")
        return self.copy_with(config, self.positions.baked(self.state_dict(), config.grid))

    def states(self, images: Tensor) -> Iterator[Tensor]:  # (B, C, H, W) → each (B, T, D)
        tokens, rotation = self.embed(images), self.rotation(images)
        yield tokens
        for block in self.blocks:
            tokens = block(tokens, rotation=rotation)
            yield tokens

    def patch_tokens(self, tokens: Tensor) -> Tensor:  # (B, T, D) → (B, N, D)
        return tokens[:, self.config.extra :]

    def tokens_after(self, images: Tensor, depth: int) -> Tensor:  # (B, C, H, W) → (B, T, D)
        tokens, rotation = self.embed(images), self.rotation(images)
        for block in self.blocks[:depth]:
            tokens = block(tokens, rotation=rotation)
        return tokens

    def head_tokens_from(self, tokens: Tensor, depth: int) -> Tensor:  # (B, T, D) → (B, t, D)
        config = self.config
        rotation = ROTATIONS[config.positions.kind](config, config.grid, tokens.device)  # of images of its own size
        for block in self.blocks[depth:-1]:
            tokens = block(tokens, rotation=rotation)
        if depth < len(self.blocks):
            tokens = self.blocks[-1](tokens, config.tokens_seen, rotation)
        return self.norm(tokens)

    def matrices(self) -> dict[str, int]:
        """Those of the blocks, of which q, k and v lie in one, and the convolutions of a stem."""
        inside = [name for name in layer_weights(self) if name.startswith(("blocks.", "patch_embed.convs."))]
        return {name: 3 if name.endswith("qkv.weight") else 1 for name in inside}

    def fit_inputs(self, images: Tensor) -> None:
        self.patch_embed.fit(images)

    def refit_norms(self, batches: Iterable[Tensor]) -> None:
        self.patch_embed.refit_norms(batches)

    def step_words(self) -> dict[str, str]:
        measures, turns = self.config.stem.kind == "whitened", self.config.positions.kind == "rotary"
        class_token = "a token per task" if self.config.tokens.outputs else "the class token"
        return {
            "patch_embed": "measured: principal components" if measures else "cut into patches, each times E",
            "patch_embed.proj": "each patch times E",
            "cls_token": f"{class_token}, before the patches",
            "dist_token": "the distillation token, before the patches",
            "reg_token": "registers, before the patches",
            "pos_embed": "positions, added to the tokens",
            "blocks.*.attn.qkv": "queries, keys, values",
            "blocks.*.attn.qv_bias": "a bias of queries and values",
            "blocks.*.attn.position_bias": "queries with distances",
            "blocks.*.attn": "softmax(q kᵀ / √d) v" + (", q and k turned by place" if turns else ""),
            "blocks.*.attn.proj": "heads mixed; added to the tokens",
            "blocks.*.mlp.fc1": f"up, then {self.config.mlp.kind}",
            "blocks.*.mlp.fc2": "down; added to the tokens",
            "attn_pool": "a learned query asks the patches",
            "pool": f"what the head sees: {self.config.pool.kind}",
            "pre_logits": "a hidden layer, then tanh",
            "head": "a logit per class",
            "head_dist": "a logit per class",
        }

    @torch.no_grad()
    def initialise(self) -> None:
        """As in the paper's own code: matrices Xavier-uniform (q, k and v each for itself) or N(0, init_std²), biases
        zero, positions N(0, std²), class token zero, convolutions N(0, 1/fan-in); norms start as the identity, and the
        head at zero: no class is preferred before the first step. Other extra tokens start as N(0, 0.02²).
        With `blocks.start = "torch"` layers keep the values that PyTorch made them with, as in most tutorials."""
        layers = [layer for layer in self.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        keep = {id(p) for layer in layers for p in layer.parameters()} if self.config.blocks.start == "torch" else set()
        parameters = [(name, parameter) for name, parameter in self.named_parameters() if id(parameter) not in keep]
        for name, parameter in parameters:
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                for matrix in parameter.chunk(3) if name.endswith("qkv.weight") else [parameter]:
                    fill_matrix(matrix, self.config)
        stds = {"dist_token": 0.02, "reg_token": 0.02, "pos_embed": self.config.positions.std}
        for name, parameter in parameters:
            if name == "cls_token" or name.startswith("head"):
                nn.init.zeros_(parameter)
            elif parameter.ndim >= 3:  # tokens and tables; else a convolution, which gets 1/√fan-in
                nn.init.normal_(parameter, std=stds.get(name, parameter[0].numel() ** -0.5))

    def __repr__(self) -> str:
        c, (height, width), (down, across) = self.config, self.config.height_width, self.config.grid
        parameters = sum(p.numel() for p in self.parameters())
        extra = f"{c.extra} extra {'token' if c.extra == 1 else 'tokens'}"
        return (
            f"ViT({height}×{width}×{c.channels} → {down}×{across} patches of {c.patch_size} px + {extra} → "
            f"{c.depth} blocks of width {c.width}, {c.heads} heads → {outputs_in_words(c)}; {parameters:,} parameters)"
        )
