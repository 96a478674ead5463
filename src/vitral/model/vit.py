"""The Vision Transformer: "An Image is Worth 16x16 Words" (Dosovitskiy et al., 2021; arXiv:2010.11929).

Images (B, C, H, W) come in, logits (B, classes) go out. A number in brackets in a comment marks the line that
does that equation of the paper: (1) to (4) are in its section 3.1, (5) to (8) in its appendix A. In its letters, with z
for our tokens:

    z₀  = [x_class; x₁E; x₂E; …; x_N E] + E_pos   (1)     [q, k, v] = z U_qkv         (5)
    z′ₗ = MSA(LN(zₗ₋₁)) + zₗ₋₁                    (2)     A = softmax(q kᵀ / √(D/heads))  (6)
    zₗ  = MLP(LN(z′ₗ)) + z′ₗ                      (3)     SA(z) = A v                 (7)
    y   = LN(the class token of z_L)              (4)     MSA(z) = [SA₁; SA₂; …] U    (8)

Shapes: B images in a batch, C channels, H height, W width, P pixels a side of a patch, N = H/P · W/P patches,
T = 1 + N tokens (the class token first, then the patches in reading order), D width of a token.

Read it from top to bottom: attention, block, patches, model. The MLP is in mlps.py, the position table in positions.py.
Parameters have the names that timm, the largest library of such models, gives them: most checkpoints fit as they are.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from vitral.errors import DataError, RecipeError
from vitral.model.config import ViTConfig
from vitral.model.mlps import MLPS
from vitral.model.positions import POSITIONS

NORM_EPS = 1e-6  # added to the variance in every LayerNorm; the paper's code and timm use this, torch's default is 1e-5


class Attention(nn.Module):
    """Multi-head self-attention, the only place where tokens learn of each other.

    Each token makes a query (what am I looking for?), a key (what do I offer?) and a value (what do I pass on?). Its
    query is compared with the keys of all tokens; the better the match, the more of that token's value it takes.
    Each head does this with its own share of the width, so that a token can look for several things at once.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, T, D = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.heads, D // self.heads)  # (5)  one product for all three and all heads
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, heads, T, D/heads)
        return q, k, v

    def map(self, x: Tensor) -> Tensor:  # (B, T, D) → (B, heads, T, T)
        """A, computed for those who want to see it: row i tells how much token i takes from each token, and sums to 1.

        `x` is what `forward` gets: the tokens after `norm1`. `forward` itself leaves A to a fused kernel.
        """
        q, k, _ = self.queries_keys_values(x)
        # Long vectors have large products; divided by √ of their length, softmax does not start out all-or-nothing.
        return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)  # (6)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        q, k, v = self.queries_keys_values(x)
        taken = scaled_dot_product_attention(q, k, v)  # (7)  A v, (B, heads, T, D/heads), without ever holding all of A
        return self.proj(taken.transpose(1, 2).flatten(2))  # (8)  the heads side by side, then mixed


class Block(nn.Module):
    """Tokens exchange what they know (attention), then each works on it alone (MLP). Both add to what was there, so
    that the way back for gradients stays open through many blocks; LayerNorm keeps what they read in one range."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.mlp = MLPS[config.mlp.kind](config)

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        tokens = self.attn(self.norm1(tokens)) + tokens  # (2)
        return self.mlp(self.norm2(tokens)) + tokens  # (3)


class PatchEmbed(nn.Module):
    """Each patch becomes a token by one matrix E. A convolution whose stride is its size does just that: it cuts,
    flattens and multiplies. (`patchify` in patches.py cuts by hand; a test shows that both ways are equal.)"""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(config.channels, config.width, kernel_size=config.patch_size, stride=config.patch_size)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        return self.proj(images).flatten(2).transpose(1, 2)  # the grid (B, D, H/P, W/P), read row by row


class ViT(nn.Module):
    """A Vision Transformer, described by its config and nothing else.

    >>> model = ViT(ViTConfig(image_size=32, patch_size=8, width=64, depth=2, heads=4, classes=10))
    >>> model(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        if 0 in (config.channels, config.classes):
            raise RecipeError(
                "model.channels or model.classes is 0, which in a recipe means: as the data has. "
                "A model by itself has no data: give both, as in ViTConfig(channels=3, classes=10)."
            )
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.positions = POSITIONS[config.positions.kind](config)
        self.pos_embed = nn.Parameter(torch.empty(1, self.positions.rows, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.head = nn.Linear(config.width, config.classes)
        self.initialise()

    def embed(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, T, D)
        """Images become tokens. Attention does not know the order of tokens, so each gets its position added.

        `keep`, (B, K), holds the numbers of the patches to keep, from 0 in reading order; all others are left out, as
        for dropping patches in training or for asking what a patch was worth. T is then 1 + K.
        """
        grid = self.grid_of(images)
        patches = self.patch_embed(images)  # (B, N, D)
        class_token = self.cls_token.expand(len(images), -1, -1)  # (B, 1, D)
        positions = self.positions(self.pos_embed, grid)  # (1, T, D), the same for all images
        tokens = torch.cat([class_token, patches], dim=1) + positions  # (1)
        return tokens if keep is None else select_patches(tokens, keep)

    def features(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, T, D)
        """All tokens after the last block and its norm."""
        tokens = self.embed(images)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)  # (4)  the paper needs the class token only; we keep all, and `pool` takes the first

    def pool(self, tokens: Tensor) -> Tensor:  # (B, T, D) → (B, D)
        """What the head sees: the class token. It shows no patch, and has gathered what it needs from all of them."""
        return tokens[:, 0]

    def logits(self, tokens: Tensor) -> tuple[Tensor, ...]:  # (B, T, D) → (B, classes), one tensor a classifier
        """One classifier here. A distilled model has a second one, and `forward` gives their mean."""
        return (self.head(self.pool(tokens)),)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, classes)
        return torch.stack(self.logits(self.features(images))).mean(dim=0)

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        """How many patches the images have: (down, across). Any size will do that is a whole number of patches."""
        _, channels, height, width = images.shape
        patch = self.config.patch_size
        if channels != self.config.channels:
            raise DataError(f"The images have {channels} channels, and the model takes {self.config.channels}.")
        if height % patch or width % patch or 0 in (height, width):
            below = "×".join(str(max(side // patch, 1) * patch) for side in (height, width))
            above = "×".join(str(max(-(-side // patch), 1) * patch) for side in (height, width))
            raise DataError(
                f"Patches of {patch} pixels do not divide images of {height}×{width}. Try {below} or {above}."
            )
        return height // patch, width // patch

    @torch.no_grad()
    def initialise(self) -> None:
        """As in the paper's own code: matrices Xavier-uniform (q, k and v each for itself), biases zero, positions
        N(0, std²), class token zero, E N(0, 1/(P·P·C)); norms start as the identity, and the head at zero: no class
        is preferred before the first step."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith("qkv.weight"):
                for matrix in parameter.chunk(3):
                    nn.init.xavier_uniform_(matrix)
            elif parameter.ndim == 2:  # the other linear layers; norms have one dimension, tokens and tables three
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.pos_embed, std=self.config.positions.std)
        nn.init.zeros_(self.cls_token)
        nn.init.normal_(self.patch_embed.proj.weight, std=self.patch_embed.proj.weight[0].numel() ** -0.5)
        nn.init.zeros_(self.head.weight)

    def __repr__(self) -> str:
        c, (height, width), (down, across) = self.config, self.config.height_width, self.config.grid
        parameters = sum(p.numel() for p in self.parameters())
        return (
            f"ViT({height}×{width}×{c.channels} → {down}×{across} patches of {c.patch_size} px + class token → "
            f"{c.depth} blocks of width {c.width}, {c.heads} heads → {c.classes} classes; {parameters:,} parameters)"
        )


def select_patches(tokens: Tensor, keep: Tensor) -> Tensor:  # (B, 1 + N, D), (B, K) → (B, 1 + K, D)
    """The class token, and those patches."""
    chosen = tokens[:, 1:].gather(1, keep[:, :, None].expand(-1, -1, tokens.shape[-1]))  # (B, K, D)
    return torch.cat([tokens[:, :1], chosen], dim=1)
