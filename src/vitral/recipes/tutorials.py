"""The tutorials that people learn the ViT from, and which recipe is whose. `vitral ls tutorials`; docs/tutorials.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tutorial:
    """Somebody's text, and where one finds it again here.

    >>> pulfer = next(one for one in TUTORIALS if one.author == "Brian Pulfer")
    >>> pulfer.recipe, pulfer.beyond
    ('pulfer-mnist', 'mnist')
    """

    author: str
    title: str
    source: str  # an address
    recipe: str  # the tutorial's model and training
    plain: str  # our plain ViT with the same settings; "": there is none
    beyond: str  # what to go on with: the same pictures, and how far one gets
    reported: str  # what the tutorial tells of its own result, in words

    @property
    def command(self) -> str:
        return f"vitral train {self.recipe}"


TUTORIALS = (
    Tutorial(
        author="Vicki Mu",
        title="From Pixels to Predictions: Building a Transformer for Images",
        source="https://github.com/vickiiimu/vit-cifar10-tutorial",
        recipe="mu-cifar10",
        plain="tutorial-cifar10-a",
        beyond="cifar10",
        reported="about 60 % of the test pictures after 30 epochs (59.9 % in the notebook)",
    ),
    Tutorial(
        author="Owen",
        title="Building a Vision Transformer (ViT) from scratch",
        source="https://github.com/codingowen/vision-transformer-from-scratch",
        recipe="owen-cifar10",
        plain="tutorial-cifar10-b",
        beyond="cifar10",
        reported="64 % of the test pictures after 50 or 100 epochs",
    ),
    Tutorial(
        author="Brian Pulfer",
        title="Vision Transformers from Scratch (PyTorch): A step-by-step guide",
        source="https://medium.com/@brianpulfer/vision-transformers-from-scratch-pytorch-a-step-by-step-guide-96c3313c2e0c",
        recipe="pulfer-mnist",
        plain="tutorial-mnist",
        beyond="mnist",
        reported="78.85 % of the test pictures after 5 epochs",
    ),
    Tutorial(
        author="infrared1029",
        title="An Image is Worth 16x16 Words, … Paper Explained (ViT paper) PART 2, a walk through DINO's code",
        source="https://infrared1029.github.io/blog",
        recipe="dino-walk",
        plain="",
        beyond="food-finetune",
        reported="no number: nothing is trained",
    ),
    Tutorial(
        author="Daniel Bourke",
        title="Milestone Project 2: Paper Replicating (PyTorch)",
        source="https://github.com/mrdbourke/pytorch-deep-learning",
        recipe="bourke-food",
        plain="tutorial-food",
        beyond="food-features",
        reported="no number on the slides; chance in the notebook of the course",
    ),
)
