"""Weights of what Vitral does not have: what they are, by transformers' model_type or by a tensor that tells."""

import re

from vitral.weights.stored import RawWeights

# Of transformers: what we compute as it does.
OURS = {"vit", "deit", "vit_mae", "vit_msn", "ijepa", "dinov2", "dinov2_with_registers", "flava_image_model"}
OURS |= {"timm_wrapper"}  # of which timm's own names tell

SWIN = "a Swin Transformer (attention inside of windows that shift)"
BEIT = "a BEiT or a ViT that follows it (keys without a bias, or positions by relative distance)"
ROTARY = "a ViT with rotary positions and no table of them (DINOv3, EVA)"
CLIP = "the picture side of a CLIP or SigLIP by other names than timm's"
TEXT = "a model of text"
CONVNEXT = "a ConvNeXt (a CNN)"
CNN = "a CNN"
VIDEO = "a model of videos"

MODEL_TYPES = {
    "beit": BEIT,
    "data2vec-vision": BEIT,
    "dinov3_vit": ROTARY,
    "swin": SWIN,
    "swinv2": SWIN,
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
    "bit": CNN,
    "efficientnet": CNN,
    "mobilenet_v1": CNN,
    "mobilenet_v2": CNN,
    "videomae": VIDEO,
    "vivit": VIDEO,
    "timesformer": VIDEO,
    "vjepa2": VIDEO,
    "audio-spectrogram-transformer": "a model of sounds",
}

# A pattern that one of the names has; one that none has; what it is. The first row that fits tells.
TENSORS = (
    (r"\.lora_[AB]\.", "", "a model with LoRA beside its matrices (merge_and_unload adds it to them)"),
    (r"layers\.\d+\.blocks\.\d+\.(attn|attention)\.|features\.\d+\.\d+\.attn\.relative_position", "", SWIN),
    (r"relative_position_bias|attn\.q_bias$|\.lambda_1$|attention\.q_bias$", r"stages\.", BEIT),
    (r"(^|\.)rope(_embed)?\.", "", ROTARY),
    (r"blocks\.\d+\.attn\.qkv\.weight$|layer\.\d+\.attention\.q_proj\.weight$", r"pos_embed|position", ROTARY),
    (
        r"blocks\.\d+\.(in_proj\.weight|attns\.\d+\.)",
        "",
        "a ViT with parallel blocks (attention and MLP side by side)",
    ),
    (r"(^|\.)(attn_pool\.|head\.probe$|MAPHead_\d+/)", "", "a ViT whose head pools by attention"),
    (r"(^|\.)blocks_token_only\.", "", "a CaiT (its last blocks see the class token alone)"),
    (r"patch_embed\.backbone\.|(^|\.)conv_proj\.conv_bn_relu", "", "a ViT behind a convolutional stem"),
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
    names = "\n".join(raw.prefix + name for name in raw.tensors)
    for pattern, without, words in TENSORS:
        if re.search(pattern, names, re.M) and not (without and re.search(without, names)):
            return words
    return None
