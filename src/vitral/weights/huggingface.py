"""Hugging Face transformers: ViT, DeiT, DINOv2 with and without registers, MAE's encoder, I-JEPA."""

from vitral.weights.names import Family, Name

AROUND = (
    Name("embeddings.cls_token", "cls_token"),
    Name("embeddings.distillation_token", "dist_token"),
    Name("embeddings.register_tokens", "reg_token"),
    Name("embeddings.position_embeddings", "pos_embed"),
    Name("embeddings.patch_embeddings.projection.{p}", "patch_embed.proj.{p}"),
    Name("layernorm.{p}", "norm.{p}"),
    Name("pooler.dense.{p}", "pre_logits.fc.{p}"),
)
ATTENTION = (
    Name("encoder.layer.{n}.attention.attention.query.{p}", "blocks.{n}.attn.q.{p}"),
    Name("encoder.layer.{n}.attention.attention.key.{p}", "blocks.{n}.attn.k.{p}"),
    Name("encoder.layer.{n}.attention.attention.value.{p}", "blocks.{n}.attn.v.{p}"),
    Name("encoder.layer.{n}.attention.output.dense.{p}", "blocks.{n}.attn.proj.{p}"),
)
VIT = (
    *AROUND,
    *ATTENTION,
    Name("encoder.layer.{n}.layernorm_before.{p}", "blocks.{n}.norm1.{p}"),
    Name("encoder.layer.{n}.layernorm_after.{p}", "blocks.{n}.norm2.{p}"),
    Name("encoder.layer.{n}.intermediate.dense.{p}", "blocks.{n}.mlp.fc1.{p}"),
    Name("encoder.layer.{n}.output.dense.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("classifier.{p}", "head.{p}"),
    Name("cls_classifier.{p}", "head.{p}"),  # DeiT with two heads
    Name("distillation_classifier.{p}", "head_dist.{p}"),
    # transformers 5 calls its modules so, and converts when it saves:
    Name("layers.{n}.attention.q_proj.{p}", "blocks.{n}.attn.q.{p}"),
    Name("layers.{n}.attention.k_proj.{p}", "blocks.{n}.attn.k.{p}"),
    Name("layers.{n}.attention.v_proj.{p}", "blocks.{n}.attn.v.{p}"),
    Name("layers.{n}.attention.o_proj.{p}", "blocks.{n}.attn.proj.{p}"),
    Name("layers.{n}.layernorm_before.{p}", "blocks.{n}.norm1.{p}"),
    Name("layers.{n}.layernorm_after.{p}", "blocks.{n}.norm2.{p}"),
    Name("layers.{n}.mlp.fc1.{p}", "blocks.{n}.mlp.fc1.{p}"),
    Name("layers.{n}.mlp.fc2.{p}", "blocks.{n}.mlp.fc2.{p}"),
)
DINO = (
    *AROUND,
    *ATTENTION,
    Name("encoder.layer.{n}.norm1.{p}", "blocks.{n}.norm1.{p}"),
    Name("encoder.layer.{n}.norm2.{p}", "blocks.{n}.norm2.{p}"),
    Name("encoder.layer.{n}.layer_scale1.lambda1", "blocks.{n}.ls1.gamma"),
    Name("encoder.layer.{n}.layer_scale2.lambda1", "blocks.{n}.ls2.gamma"),
    Name("encoder.layer.{n}.mlp.fc1.{p}", "blocks.{n}.mlp.fc1.{p}"),
    Name("encoder.layer.{n}.mlp.fc2.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("encoder.layer.{n}.mlp.weights_in.{p}", "blocks.{n}.mlp.fc1.{p}"),  # its SwiGLU
    Name("encoder.layer.{n}.mlp.weights_out.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("classifier.{p}", "head.{p}"),
)
PREFIX = r"(?:vit|deit|dinov2|dinov2_with_registers|ijepa)\."
MARK = r"embeddings\.patch_embeddings\.projection\.weight$"

REGISTERS = Family("Hugging Face DINOv2 with registers", DINO, r"embeddings\.register_tokens$", PREFIX)
DINOV2 = Family("Hugging Face DINOv2", DINO, r"layer_scale1\.lambda1$", PREFIX, resample="bicubic")
OTHERS = Family("Hugging Face ViT", VIT, MARK, PREFIX, norm_eps=1e-12, resample="bicubic")
FAMILIES = (REGISTERS, DINOV2, OTHERS)
