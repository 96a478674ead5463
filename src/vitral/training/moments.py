"""What a model that learns without labels sees in a few pictures, at moments of its training: a listener.

At the beginning, after epochs 1, 2, 4, 8, … and at the end it writes moments/NNNNNNNN.png into the run folder, by the
number of steps so far: a row of tiles for each kind of view, a column for each picture, each tile as large as the
model's images. The report puts them side by side.
"""

from io import BytesIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from vitral.data.batches import in_order
from vitral.files import write_whole
from vitral.look.maps import eval_mode
from vitral.look.overlay import overlay_map
from vitral.look.readings import mean_attention, patch_colours, patch_features
from vitral.model.vit import ViT
from vitral.run import MOMENTS, Run
from vitral.training.loop import Event, Finished, Started
from vitral.training.objectives.mae import MAE
from vitral.training.preparation import Plan
from vitral.training.session import Epoch

PICTURES = 6
Tiles = NDArray[np.uint8]  # (n, C, H, W)


class Moments:
    """A listener: `train(recipe, listeners=[Moments()])`. Where labels are learnt it does nothing, nor where processes
    share the model out: one alone cannot ask it."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.step = 0

    def __call__(self, event: Event) -> None:
        match event:
            case Started(run=run, plan=plan, step=step) if plan.learner.objective.watched and not plan.learner.shards:
                self.run, self.plan, self.step = run, plan, step
                if step == 0:
                    self._write(plan)
            case Epoch(epoch=epoch, step=step) if self.run:
                self.step = step
                if epoch & (epoch - 1) == 0:  # 1, 2, 4, 8, …
                    self._write(self.plan)
            case Finished() if self.run:  # else it was finished before
                self._write(self.plan)

    def _write(self, plan: Plan) -> None:
        assert self.run is not None
        model = plan.learner.average.model
        rows = views_of_pictures(model, plan) if isinstance(model, ViT) else {}
        if not rows:
            return
        about = PngInfo()
        about.add_text("rows", " ".join(rows))
        about.add_text("columns", str(len(rows["picture"])))
        sheet = np.concatenate([np.concatenate(list(tiles), axis=2) for tiles in rows.values()], axis=1)
        png = BytesIO()
        Image.fromarray(np.ascontiguousarray(sheet.transpose(1, 2, 0))).save(png, "PNG", optimize=True, pnginfo=about)
        with self.run.writing():
            (self.run.folder / MOMENTS).mkdir(exist_ok=True)
            write_whole(self.run.folder / MOMENTS / f"{self.step:08}.png", png.getvalue())


@torch.no_grad()
def views_of_pictures(model: ViT, plan: Plan) -> dict[str, Tiles]:
    """Some validation pictures, and for each what is in the rows: each (n, 3, H, W)."""
    numbers = plan.pack.of("validation")
    numbers = numbers[np.unique(np.linspace(0, len(numbers) - 1, PICTURES).astype(int))]
    [batch] = in_order(plan.pack, numbers, plan.preprocess, len(numbers))
    batch, objective = batch.to(next(model.parameters())), plan.learner.objective
    pixels = _pixels(batch.images, plan)
    rows = {"picture": pixels}
    with eval_mode(model):
        if isinstance(objective, MAE):
            said, mask = objective.reconstruct(model, batch)
            rows["hidden"] = _pixels(_without(batch.images, mask, model, plan), plan)
            rows["said"] = _pixels(said, plan)
        colours = patch_colours(patch_features(model, batch.images))
        rows["colours"] = _enlarged((255 * colours.cpu()).byte().numpy(), pixels.shape[2:])
        if model.attends and model.config.positions.kind != "relative":
            maps = mean_attention(model, batch.images).float().cpu().numpy()
            rows["attention"] = np.stack([_overlaid(*pair) for pair in zip(pixels, maps, strict=True)])
    return rows


def _pixels(images: Tensor, plan: Plan) -> Tiles:
    """Images as the model sees them, back in levels, in colour; of bands, the first."""
    preprocess = plan.preprocess
    mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (preprocess.mean, preprocess.std))
    levels = ((images.float().cpu() * std + mean) * 255).round().clamp(0, 255).byte().numpy()
    return levels if levels.shape[1] == 3 else np.repeat(levels[:, :1], 3, axis=1)


def _without(images: Tensor, mask: Tensor, model: ViT, plan: Plan) -> Tensor:
    """Images with hidden patches in middle grey."""
    down, across = model.grid_of(images)
    hidden = mask.view(-1, 1, down, across)
    for dimension in (2, 3):
        hidden = hidden.repeat_interleave(model.config.patch_size, dim=dimension)
    mean, std = (
        torch.tensor(numbers).view(-1, 1, 1).to(images) for numbers in (plan.preprocess.mean, plan.preprocess.std)
    )
    return torch.where(hidden > 0, (0.5 - mean) / std, images)


def _enlarged(tiles: NDArray[np.uint8], size: tuple[int, ...]) -> Tiles:  # (n, down, across, 3) → (n, 3, H, W)
    height, width = size
    each = [np.asarray(Image.fromarray(one).resize((width, height), Image.Resampling.NEAREST)) for one in tiles]
    return np.stack(each).transpose(0, 3, 1, 2)


def _overlaid(picture: NDArray[np.uint8], map: NDArray[np.float32]) -> NDArray[np.uint8]:  # (3, H, W)
    size = (picture.shape[2], picture.shape[1])
    return np.asarray(overlay_map(picture, map).resize(size, Image.Resampling.BOX)).transpose(2, 0, 1)
