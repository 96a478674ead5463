"""Weights of what Vitral does not have: what they are, by transformers' model_type or by a tensor that tells."""

import re

from vitral.weights.stored import RawWeights

# Of transformers: what we compute as it does.
OURS = {"vit", "deit", "vit_mae", "vit_msn", "ijepa", "dinov2", "dinov2_with_registers", "dinov3_vit"}
OURS |= {"swin", "swinv2", "bit", "flava_image_model", "timm_wrapper"}  # of the last one, timm's own names tell

SWIN = "a Swin Transformer of another make than timm's, its authors' or transformers'"
BEIT = "a BEiT or a ViT that follows it (keys without a bias, or positions by relative distance)"
ROTARY = "a ViT with rotary positions other than DINOv3's (EVA, RoPE-ViT)"
CLIP = "the picture side of a CLIP or SigLIP by other names than timm's"
MAP = "a ViT whose head pools by attention in another way than SigLIP's of timm"
TEXT = "a model of text"
CONVNEXT = "a ConvNeXt (a CNN)"
CNN = "a CNN"
VIDEO = "a model of videos"

MODEL_TYPES = {
    "beit": BEIT,
    "data2vec-vision": BEIT,
    "donut-swin": SWIN,
    "maskformer-swin": SWIN,
    "clip_vision_model": CLIP,
    "siglip_vision_model": CLIP,
    "siglip2_vision_model": CLIP,
    "clip_text_model": TEXT,
    "siglip_text_model": TEXT,
    "bert": TEXT,
    "clip": "a whole CLIP (pictures and text)",
    "siglip": "a whole SigLIP (pictures and text)",
    "siglip2": "a whole SigLIP (pictures and text)",
    "convnext": CONVNEXT,
    "convnextv2": CONVNEXT,
    "dinov3_convnext": CONVNEXT,
    "resnet": CNN,
    "regnet": CNN,
    "efficientnet": CNN,
    "mobilenet_v1": CNN,
    "mobilenet_v2": CNN,
    "videomae": VIDEO,
    "vivit": VIDEO,
    "timesformer": VIDEO,
    "vjepa2": VIDEO,
    "audio-spectrogram-transformer": "a model of sounds",
}

# Of timm: some have the tensors of a plain ViT, table and all, and turn queries and keys besides.
ROTARY_NAMES = r"_rope_|_pe_|^eva02|_sapiens2"

# A pattern that one of the names has; one that none has; what it is, or "". The first row that fits tells.
TENSORS = (
    (r"\.lora_[AB]\.", "", "a model with LoRA beside its matrices (merge_and_unload adds it to them)"),
    (r"features\.\d+\.\d+\.attn\.relative_position", "", SWIN),
    (r"layers\.\d+\.blocks\.\d+\.(attn|attention)\.", "", ""),  # a Swin as we have it
    (r"relative_position_bias|attn\.q_bias$|\.lambda_1$|attention\.q_bias$", r"stages\.|reg_token$", BEIT),
    (r"(^|\.)rope\.", "", ROTARY),
    # Without a table of positions: DINOv3, if it has a class token and registers.
    (r"blocks\.\d+\.attn\.qkv\.weight$", r"pos_embed|reg_token$|storage_tokens$", ROTARY),
    (r"blocks\.\d+\.attn\.qkv\.weight$", r"pos_embed|cls_token$", ROTARY),
    (r"layer\.\d+\.attention\.q_proj\.weight$", r"position|embeddings\.patch_embeddings\.weight$", ROTARY),
    (
        r"blocks\.\d+\.(in_proj\.weight|attns\.\d+\.)",
        "",
        "a ViT with parallel blocks (attention and MLP side by side)",
    ),
    # timm's head of SigLIP is ours too.
    (r"(^|\.)(attn_pool\.(?!latent|q\.|kv\.|proj\.|norm\.|mlp\.)|head\.probe$|MAPHead_\d+/)", "", MAP),
    (r"(^|\.)blocks_token_only\.", "", "a CaiT (its last blocks see the class token alone)"),
    # But for the ResNet of the paper's hybrids, which is ours too.
    (
        r"patch_embed\.backbone\.(?!(stem\.)?(conv|norm)\.|stages\.\d+\.blocks\.)|(^|\.)conv_proj\.conv_bn_relu",
        "",
        "a ViT behind a convolutional stem",
    ),
    (r"token_embedding\.weight$|word_embeddings\.weight$", "patch", TEXT),
    (r"embeddings\.patch_embedding\.weight$|transformer\.resblocks\.\d", "", CLIP),
    (r"stages\.\d+\.(blocks\.|layers\.)?\d+\.(dwconv|conv_dw)\.weight$|features\.\d+\.\d+\.layer_scale$", "", CONVNEXT),
    (r"layer\d\.\d+\.conv\d\.weight$|\.running_mean$", r"qkv|q_proj|query|in_proj|attention", CNN),
)


def foreign(raw: RawWeights) -> str | None:
    """What it is, where that is nothing that we have; else None."""
    kind = raw.config.get("model_type")
    if isinstance(kind, str) and kind not in OURS:
        return MODEL_TYPES.get(kind, f"transformers' {kind}")
    if re.search(ROTARY_NAMES, str(raw.config.get("architecture", ""))):
        return ROTARY
    names = "\n".join(raw.prefix + name for name in raw.tensors)
    for pattern, without, words in TENSORS:
        if re.search(pattern, names, re.M) and not (without and re.search(without, names, re.M)):
            return words or None
    return None
