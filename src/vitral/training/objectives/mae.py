"""The masked autoencoder: "Masked Autoencoders Are Scalable Vision Learners" (He et al. 2022; arXiv:2111.06377).

Most patches of an image are hidden. The encoder, which is the model, sees the others alone. A light decoder gets what
the encoder made of these, a mask token in the place of each hidden patch, and positions; it says what the pixels of
every patch are, and the loss is how far off it is where they were hidden.

Shapes: B images, N patches of P·P·C pixels, K of them kept, D width of the encoder, d width of the decoder. The names
are the paper's, and those of its code: `ids_keep`, `ids_restore`, `mask`, `mask_token`, `decoder_embed`, ….
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitral.data.batches import Batch
from vitral.data.randomness import uniform
from vitral.errors import RecipeError
from vitral.model.config import Head, ModelConfig, Pool, Positions, Regularise, Tokens, ViTConfig
from vitral.model.interface import Model
from vitral.model.norms import norm
from vitral.model.patches import patchify, unpatchify
from vitral.model.positions import sincos_2d
from vitral.model.vit import Block
from vitral.recipe import Recipe
from vitral.training.config import MAESettings, Rising
from vitral.training.objectives.without_labels import WithoutLabels


class Masking(NamedTuple):
    """Which patches of each image are hidden."""

    ids_keep: Tensor  # (B, K) the numbers of those that are not
    ids_restore: Tensor  # (B, N) for each patch, its place in the order: kept ones first, then hidden ones
    mask: Tensor  # (B, N) 0 is kept, 1 is hidden


def random_masking(noise: Tensor, mask_ratio: float) -> Masking:  # (B, N)
    """The patches with the least noise are kept.

    >>> random_masking(torch.tensor([[0.3, 0.9, 0.1, 0.5]]), mask_ratio=0.5).mask
    tensor([[0., 1., 0., 1.]])
    """
    ids_shuffle = noise.argsort(dim=1)
    ids_restore = ids_shuffle.argsort(dim=1)
    kept = patches_kept(noise.shape[1], mask_ratio)
    return Masking(ids_shuffle[:, :kept], ids_restore, (ids_restore >= kept).float())


def patches_kept(patches: int, mask_ratio: float) -> int:
    """K of N."""
    return int(round(patches * (1 - mask_ratio), 6))  # 10 · (1 − 0.9) is a little less than 1 in floating point


class MAE(WithoutLabels):
    """The decoder, and the loss.

    >>> from vitral import ViT
    >>> model = ViT(ViTConfig(image_size=16, patch_size=4, width=32, depth=1, heads=2, classes=0, head="none"))
    >>> MAE(model).decode(torch.zeros(1, 5, 32), torch.arange(16)[None]).shape  # the class token and 4 of 16 patches
    torch.Size([1, 16, 48])
    """

    by_picture = True  # of each as many patches are hidden
    decoder_pos_embed: Tensor

    def __init__(self, model: Model, settings: MAESettings | None = None, seed: int = 0) -> None:
        super().__init__()
        config, self.settings, self.seed = model.config, settings or MAESettings(), seed
        assert isinstance(config, ViTConfig)  # by `check`
        decoder = self._decoder(config)
        self.patch_size, self.extra = config.patch_size, config.extra
        self.sees_alone = config.stem.kind == "linear"
        self.decoder_embed = nn.Linear(config.width, decoder.width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder.width))
        self.register_buffer("decoder_pos_embed", sincos_2d(config.grid, decoder.width, config.extra).float()[None])
        self.decoder_blocks = nn.ModuleList(Block(decoder, Regularise(), n) for n in range(decoder.depth))
        self.decoder_norm = norm(decoder, decoder.width)
        self.decoder_pred = nn.Linear(decoder.width, config.patch_size**2 * config.channels)
        self._initialise()

    @classmethod
    def check(cls, recipe: Recipe, config: ModelConfig) -> None:
        super().check(recipe, config)
        if not isinstance(config, ViTConfig):
            raise RecipeError(
                f"train.objective mae leaves patches out, which a model of kind {config.kind} cannot: set "
                "model.kind=vit, or train.objective=lejepa."
            )
        if config.positions.kind == "relative":
            raise RecipeError("With model.positions relative no patch can be left out, which train.objective mae does.")
        train, settings = recipe.train, recipe.train.objective
        if isinstance(train.patches, Rising) or isinstance(train.image_size, Rising):
            raise RecipeError(
                "train.objective mae leaves patches out by itself: set train.patches=fixed and train.image_size=fixed."
            )
        patches = config.grid[0] * config.grid[1]
        assert isinstance(settings, MAESettings)
        if not patches_kept(patches, settings.mask_ratio):
            raise RecipeError(
                f"With train.objective.mask_ratio={settings.mask_ratio:g} none of {patches} patches is left to look "
                f"at: set it to at most {math.floor(1000 * (1 - 1 / patches)) / 1000:g}, or model.patch_size lower."
            )

    def loss(self, model: Model, batch: Batch, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        masking = self.masking(model, batch, step)
        seen = self.visible(batch.images, masking.mask)
        pred = self.decode(model.features(seen, masking.ids_keep), masking.ids_restore)
        return self.of_pixels(pred, batch.images, masking.mask), {}

    def masking(self, model: Model, batch: Batch, step: int) -> Masking:
        """What is hidden of each image: a function of seed, step and sample."""
        down, across = model.grid_of(batch.images)
        noise = uniform(self.seed, "mask", epoch=step, samples=batch.samples, draws=down * across)
        return random_masking(torch.from_numpy(noise).to(batch.images.device), self.settings.mask_ratio)

    def visible(self, images: Tensor, mask: Tensor) -> Tensor:  # (B, C, H, W), (B, N) → (B, C, H, W)
        """The images as the model may see them. A stem of convolutions looks across the edges of patches: it finds
        zeros, the mean of all pixels, where a patch is hidden. A linear one sees each patch alone."""
        if self.sees_alone:
            return images
        patches = patchify(images, self.patch_size) * (1 - mask)[:, :, None].to(images.dtype)
        return unpatchify(patches, self.patch_size, images.shape[2], images.shape[3])

    def decode(self, latent: Tensor, ids_restore: Tensor) -> Tensor:  # (B, extra + K, D), (B, N) → (B, N, P·P·C)
        """The pixels of every patch, by what the encoder made of the kept ones."""
        x = self.decoder_embed(latent)  # (B, extra + K, d)
        B, N = ids_restore.shape
        hidden = self.mask_token.to(x.dtype).expand(B, N + self.extra - x.shape[1], -1)
        patches = torch.cat([x[:, self.extra :], hidden], dim=1)  # (B, N, d), kept ones first
        patches = patches.gather(1, ids_restore[:, :, None].expand(-1, -1, x.shape[2]))  # in reading order
        x = torch.cat([x[:, : self.extra], patches], dim=1) + self.decoder_pos_embed
        for block in self.decoder_blocks:
            x = block(x)
        pred: Tensor = self.decoder_pred(self.decoder_norm(x))
        return pred[:, self.extra :]

    def of_pixels(self, pred: Tensor, images: Tensor, mask: Tensor) -> Tensor:  # (B, N, P·P·C), (B, C, H, W), (B, N)
        """The mean square of how far off the pixels of hidden patches are."""
        target = patchify(images, self.patch_size)
        if self.settings.normalise:
            mean, deviation = _of_patches(target)
            target = (target - mean) / deviation
        off = (pred.to(target.dtype) - target).square().mean(dim=2)  # (B, N)
        return (off * mask).sum() / mask.sum()

    @torch.no_grad()
    def reconstruct(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:  # → (B, C, H, W), (B, N)
        """The images with what the decoder says in the place of hidden patches, and which these are. Where its pixels
        are normalised, they get the mean and variance that the patch really has, which it has not learnt to say."""
        masking, images = self.masking(model, batch, step=0), batch.images
        seen = self.visible(images, masking.mask)
        pred = self.decode(model.features(seen, masking.ids_keep), masking.ids_restore)
        target = patchify(images, self.patch_size)
        if self.settings.normalise:
            mean, deviation = _of_patches(target)
            pred = pred * deviation + mean
        patches = torch.where(masking.mask[:, :, None] > 0, pred.to(target.dtype), target)
        return unpatchify(patches, self.patch_size, images.shape[2], images.shape[3]), masking.mask

    def _decoder(self, config: ViTConfig) -> ViTConfig:
        """A ViT of other sizes, of which the blocks are used: their parts are those of the model."""
        return ViTConfig(
            image_size=config.image_size,
            patch_size=config.patch_size,
            channels=config.channels,
            width=self.settings.decoder_width,
            depth=self.settings.decoder_depth,
            heads=self.settings.decoder_heads,
            classes=0,
            tokens=Tokens(kind="none"),
            positions=Positions(kind="sincos-2d"),
            attention=config.attention,
            mlp=config.mlp,
            blocks=config.blocks,
            pool=Pool(kind="mean"),
            head=Head(kind="none"),
        )

    @torch.no_grad()
    def _initialise(self) -> None:
        """As in the paper's code: matrices Xavier-uniform, biases zero, the mask token N(0, 0.02²)."""
        nn.init.normal_(self.mask_token, std=0.02)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)


def _of_patches(patches: Tensor) -> tuple[Tensor, Tensor]:  # (B, N, P·P·C) → each (B, N, 1)
    """Mean and standard deviation of the pixels of each patch."""
    return patches.mean(dim=2, keepdim=True), (patches.var(dim=2, keepdim=True) + 1e-6).sqrt()
