"""Google's npz files: vision_transformer (and augreg), big_vision. In flax a matrix is (in, out), and heads lie apart.

Their GELU is the tanh one; like everybody who runs these weights elsewhere we take the exact one (2e-4 of a logit). In
the ResNet of their hybrids a filter is divided by its deviation + 1e-5 and GroupNorm adds 1e-6; as timm has it, we
divide by the root of its variance + 1e-8 and add 1e-5.
"""

from torch import Tensor

from vitral.weights.names import Family, Name


def transpose(matrix: Tensor, heads: int = 0) -> Tensor:  # (in, out) → (out, in), or back
    return matrix.T.contiguous()


def from_heads(kernel: Tensor) -> Tensor:  # (in, heads, D/heads) → (out, in)
    return transpose(kernel.flatten(1))


def to_heads(matrix: Tensor, heads: int) -> Tensor:
    return transpose(matrix).unflatten(1, (heads, -1)).contiguous()


def bias_to_heads(bias: Tensor, heads: int) -> Tensor:  # (D,) → (heads, D/heads)
    return bias.unflatten(0, (heads, -1))


def to_width(kernel: Tensor) -> Tensor:  # (heads, D/heads, out) → (out, in)
    return transpose(kernel.flatten(0, 1))


def from_width(matrix: Tensor, heads: int) -> Tensor:
    return transpose(matrix).unflatten(0, (heads, -1)).contiguous()


def patches(kernel: Tensor) -> Tensor:  # (P, P, C, D) → (D, C, P, P)
    return kernel.permute(3, 2, 0, 1).contiguous()


def patches_back(kernel: Tensor, heads: int) -> Tensor:
    return kernel.permute(2, 3, 1, 0).contiguous()


def block(norm2: str, attention: str, mlp: str) -> tuple[Name, ...]:
    """The rows of a block: the parts have another number in each of the two projects."""
    before, after = "Transformer/encoderblock_{n}/", "blocks.{n}."
    attend, dense = f"{before}MultiHeadDotProductAttention_{attention}/", f"{before}MlpBlock_{mlp}/"
    return (
        *(
            row
            for part in ("query", "key", "value")
            for row in (
                Name(f"{attend}{part}/kernel", f"{after}attn.{part[0]}.weight", from_heads, to_heads),
                Name(f"{attend}{part}/bias", f"{after}attn.{part[0]}.bias", Tensor.flatten, bias_to_heads),
            )
        ),
        Name(f"{attend}out/kernel", f"{after}attn.proj.weight", to_width, from_width),
        Name(f"{attend}out/bias", f"{after}attn.proj.bias"),
        Name(f"{before}LayerNorm_0/scale", f"{after}norm1.weight"),
        Name(f"{before}LayerNorm_0/bias", f"{after}norm1.bias"),
        Name(f"{before}LayerNorm_{norm2}/scale", f"{after}norm2.weight"),
        Name(f"{before}LayerNorm_{norm2}/bias", f"{after}norm2.bias"),
        Name(f"{dense}Dense_0/kernel", f"{after}mlp.fc1.weight", transpose, transpose),
        Name(f"{dense}Dense_0/bias", f"{after}mlp.fc1.bias"),
        Name(f"{dense}Dense_1/kernel", f"{after}mlp.fc2.weight", transpose, transpose),
        Name(f"{dense}Dense_1/bias", f"{after}mlp.fc2.bias"),
    )


def resnet() -> tuple[Name, ...]:
    """The rows of a hybrid's ResNet, which counts stages and units from 1."""
    before, theirs = "patch_embed.backbone.", "block{s+1}/unit{n+1}/"
    ours = before + "stages.{s}.blocks.{n}."
    pairs = [("conv_root", "gn_root", f"{before}stem.conv", f"{before}stem.norm")]
    pairs += [(f"{theirs}conv{n}", f"{theirs}gn{n}", f"{ours}conv{n}", f"{ours}norm{n}") for n in (1, 2, 3)]
    pairs += [(f"{theirs}conv_proj", f"{theirs}gn_proj", f"{ours}downsample.conv", f"{ours}downsample.norm")]
    return tuple(
        row
        for conv, norm, our_conv, our_norm in pairs
        for row in (
            Name(f"{conv}/kernel", f"{our_conv}.weight", patches, patches_back),
            Name(f"{norm}/scale", f"{our_norm}.weight", Tensor.flatten),
            Name(f"{norm}/bias", f"{our_norm}.bias", Tensor.flatten),
        )
    )


NAMES = (
    *resnet(),
    Name("cls", "cls_token"),
    Name("Transformer/posembed_input/pos_embedding", "pos_embed"),
    Name("pos_embedding", "pos_embed"),  # big_vision
    Name("embedding/kernel", "patch_embed.proj.weight", patches, patches_back),
    Name("embedding/bias", "patch_embed.proj.bias"),
    *block(norm2="2", attention="1", mlp="3"),  # vision_transformer counts all parts
    *block(norm2="1", attention="0", mlp="0"),  # big_vision each kind by itself
    Name("Transformer/encoder_norm/scale", "norm.weight"),
    Name("Transformer/encoder_norm/bias", "norm.bias"),
    Name("pre_logits/kernel", "pre_logits.fc.weight", transpose, transpose),
    Name("pre_logits/bias", "pre_logits.fc.bias"),
    Name("head/kernel", "head.weight", transpose, transpose),
    Name("head/bias", "head.bias"),
)

GOOGLE = Family("Google", NAMES, r"embedding/kernel$", r"(?:opt/target/|params/)", half=True)
FAMILIES = (GOOGLE,)
