"""torchvision's ViT."""

from vitral.weights.names import Family, Name

NAMES = (
    Name("class_token", "cls_token"),
    Name("encoder.pos_embedding", "pos_embed"),
    Name("conv_proj.{p}", "patch_embed.proj.{p}"),
    Name("encoder.layers.encoder_layer_{n}.ln_1.{p}", "blocks.{n}.norm1.{p}"),
    Name("encoder.layers.encoder_layer_{n}.self_attention.in_proj_{p}", "blocks.{n}.attn.qkv.{p}"),
    Name("encoder.layers.encoder_layer_{n}.self_attention.out_proj.{p}", "blocks.{n}.attn.proj.{p}"),
    Name("encoder.layers.encoder_layer_{n}.ln_2.{p}", "blocks.{n}.norm2.{p}"),
    Name("encoder.layers.encoder_layer_{n}.mlp.0.{p}", "blocks.{n}.mlp.fc1.{p}"),
    Name("encoder.layers.encoder_layer_{n}.mlp.3.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("encoder.layers.encoder_layer_{n}.mlp.linear_1.{p}", "blocks.{n}.mlp.fc1.{p}"),  # before 0.12
    Name("encoder.layers.encoder_layer_{n}.mlp.linear_2.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("encoder.ln.{p}", "norm.{p}"),
    Name("heads.pre_logits.{p}", "pre_logits.fc.{p}"),
    Name("heads.head.{p}", "head.{p}"),
)

TORCHVISION = Family("torchvision", NAMES, r"^conv_proj\.weight$", resample="corners", only_class_rows=True)
FAMILIES = (TORCHVISION,)
