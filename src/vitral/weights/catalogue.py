"""Weights that are worth having: where they are, how large, under which licence, and what for. `vitral ls weights`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """Weights on the Hugging Face Hub."""

    where: str
    parameters: int  # millions
    licence: str
    what_for: str

    @property
    def megabytes(self) -> int:
        """Of the file, four bytes a number."""
        return 4 * self.parameters


KNOWN = (
    Known("hf:timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", 6, "Apache-2.0", "small and quick: photographs"),
    Known("hf:timm/vit_small_patch16_224.augreg_in21k_ft_in1k", 22, "Apache-2.0", "photographs, more exact"),
    Known("hf:facebook/deit-tiny-distilled-patch16-224", 6, "Apache-2.0", "DeiT: two tokens, taught by a CNN"),
    Known("hf:timm/vit_small_patch16_224.dino", 22, "Apache-2.0", "DINO: attention maps that show the subject"),
    Known("hf:facebook/dinov2-small", 22, "Apache-2.0", "DINOv2: features for few pictures, any subject"),
    Known("hf:facebook/dinov2-with-registers-small", 22, "Apache-2.0", "DINOv2 with registers: cleaner maps"),
    Known("hf:facebook/vit-mae-base", 112, "Apache-2.0", "MAE: to be trained further, not for features"),
)
