"""timm's names, which are ours too, and those of the projects that it followed: DeiT, DINO, DINOv2, MAE, CLIP."""

from vitral.weights.names import Family, Name

SAME = (  # as we have them
    "cls_token",
    "dist_token",
    "reg_token",
    "pos_embed",
    "patch_embed.proj.{p}",
    "norm_pre.{p}",
    "blocks.{n}.norm1.{p}",
    "blocks.{n}.attn.qkv.{p}",
    "blocks.{n}.attn.q_norm.{p}",
    "blocks.{n}.attn.k_norm.{p}",
    "blocks.{n}.attn.proj.{p}",
    "blocks.{n}.ls1.gamma",
    "blocks.{n}.norm2.{p}",
    "blocks.{n}.mlp.fc1.{p}",
    "blocks.{n}.mlp.fc1_g.{p}",  # a SwiGLU whose gate and value lie apart
    "blocks.{n}.mlp.fc1_x.{p}",
    "blocks.{n}.mlp.fc2.{p}",
    "blocks.{n}.ls2.gamma",
    "norm.{p}",
    "fc_norm.{p}",
    "pre_logits.fc.{p}",
    "head.{p}",
    "head_dist.{p}",
)
NAMES = (
    *(Name(name, name) for name in SAME),
    Name("register_tokens", "reg_token"),  # DINOv2
    Name("blocks.{n}.mlp.w12.{p}", "blocks.{n}.mlp.fc1.{p}"),  # its SwiGLU
    Name("blocks.{n}.mlp.w3.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("blocks.{n}.gamma_1", "blocks.{n}.ls1.gamma"),  # DeiT III
    Name("blocks.{n}.gamma_2", "blocks.{n}.ls2.gamma"),
)
PREFIX = r"(?:module\.|model\.|backbone\.|encoder\.|teacher\.|student\.)+"

DEIT3 = Family("DeiT III", NAMES, r"blocks\.\d+\.gamma_1$", PREFIX, resample="bicubic")
MAE = Family("MAE", NAMES, r"decoder_blocks\.", PREFIX, resample="bicubic")
DINOV2_REGISTERS = Family("DINOv2 with registers", NAMES, r"register_tokens$", PREFIX)
DINOV2 = Family("DINOv2", NAMES, rf"^(?:{PREFIX})?mask_token$", PREFIX, resample="dino")
DINO = Family("DINO", NAMES, r"$^", PREFIX, resample="dino")  # by its names it is timm's: about.json tells
TIMM = Family("timm", NAMES, r"patch_embed\.proj\.weight$", PREFIX)
FAMILIES = (DEIT3, MAE, DINOV2_REGISTERS, DINOV2, DINO, TIMM)
